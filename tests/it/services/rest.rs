//! The services' calls over HTTP, on a real server.

use std::net::SocketAddr;
use std::sync::Arc;

use awc::Client;
use awc::http::Method;
use drone_delivery::config::Settings;
use drone_delivery::domain::status::{EventType, Stage};
use drone_delivery::http;
use drone_delivery::services::Local;
use drone_delivery::store::Txn;
use serde_json::{Value, json};

use super::{Told, order};
use crate::conformance::embedded::Embedded;
use crate::conformance::state::StateFixture;

/// A server with all services on a store of its own.
pub struct Server {
    pub address: SocketAddr,
    pub services: Local,
    pub told: Arc<Told>,
    store: Embedded,
}

impl Server {
    pub fn start() -> Self {
        let store = Embedded::start();
        let mut settings = Settings::builtin().unwrap();
        settings.http.listen = "127.0.0.1:0".into();
        settings.http.workers = 1;
        let told = Arc::new(Told::default());
        let services = Local::new(&store.state(), told.clone(), &settings).unwrap();
        let routes = http::services::routes(services.clone(), &settings);
        let (server, address) = http::serve(&settings.http, vec![routes], 1).unwrap();
        actix_web::rt::spawn(server);
        Self { address, services, told, store }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let request =
            client().request(method, format!("{}{path}", self.url())).timeout(super::super::conformance::PATIENCE);
        let mut response = match body {
            Some(body) => request.send_json(body).await.unwrap(),
            None => request.send().await.unwrap(),
        };
        let status = response.status().as_u16();
        if status >= 400 {
            assert_eq!(response.headers().get("content-type").unwrap(), "application/problem+json", "{path}");
        }
        let body = response.body().await.unwrap();
        (status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() })
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.call(Method::GET, path, None).await
    }

    async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::PUT, path, Some(body)).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn delete(&self, path: &str) -> u16 {
        self.call(Method::DELETE, path, None).await.0
    }
}

fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

fn drone() -> Value {
    json!({"home": "47.6101,-122.2015", "speedKmh": 60, "rangeKm": 60, "payloadKg": 5})
}

fn request() -> Value {
    serde_json::to_value(&*order("x").request).unwrap()
}

fn pointers(problem: &Value) -> Vec<&str> {
    let mut pointers: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    pointers.sort_unstable();
    pointers
}

#[actix_web::test]
async fn accounts() {
    let server = Server::start();
    assert_eq!(server.get("/api/accounts/contoso").await.0, 404);
    let account = json!({"status": "Active", "name": "Contoso", "email": "a@example.com"});
    assert_eq!(server.put("/api/accounts/contoso", &account).await, (201, account.clone()));
    assert_eq!(server.put("/api/accounts/contoso", &account).await, (204, Value::Null));
    assert_eq!(server.get("/api/accounts/contoso").await, (200, account));
    assert_eq!(server.delete("/api/accounts/contoso").await, 204);
    assert_eq!(server.delete("/api/accounts/contoso").await, 204);
    assert_eq!(server.get("/api/accounts/contoso").await.0, 404);
}

#[actix_web::test]
async fn bad_input_is_told_all_at_once() {
    let server = Server::start();
    let cases = [
        ("/api/accounts/a", json!({"status": "Odd", "email": 7, "extra": 1}), vec!["/email", "/extra", "/status"]),
        ("/api/packages/a", json!({"weight": 0, "size": "Huge"}), vec!["/deliveryId", "/size", "/weight"]),
        (
            "/api/drones/a",
            json!({"home": "99,0", "speedKmh": -1, "rangeKm": 1, "id": "b"}),
            vec!["/home/latitude", "/id", "/payloadKg", "/speedKmh"],
        ),
        ("/api/dronedeliveries/a", json!({"route": 1}), vec!["/ownerId", "/packageInfo", "/route"]),
    ];
    for (path, body, expected) in cases {
        let (status, problem) = server.put(path, &body).await;
        assert_eq!(status, 422, "{path}");
        let found = pointers(&problem);
        assert!(expected.iter().all(|pointer| found.contains(pointer)), "{path}: {found:?}");
        assert_eq!(problem["instance"], path);
    }
    let bad = [
        ("/api/accounts/a%20b", 422),
        ("/api/deliveries", 422),
        ("/api/drones?limit=0", 422),
        ("/api/drones?x=1", 422),
    ];
    for (path, expected) in bad {
        assert_eq!(server.get(path).await.0, expected, "{path}");
    }
    let (status, problem) = server.post("/api/deliveries/a/notifymerequests", &json!({})).await;
    assert_eq!((status, problem["detail"].as_str()), (422, Some("email or webhook must be given")));
    let mut broken = client().put(format!("{}/api/accounts/a", server.url())).send_body("{").await.unwrap();
    assert_eq!(broken.status(), 400);
    assert!(broken.body().await.unwrap().starts_with(b"{"));
}

#[actix_web::test]
async fn packages() {
    let server = Server::start();
    let package = json!({"deliveryId": "d-1", "size": "Small", "weight": 1.5, "tag": "books"});
    assert_eq!(server.put("/api/packages/p", &package).await, (201, package.clone()));
    assert_eq!(server.put("/api/packages/p", &package).await.0, 204);
    assert_eq!(server.get("/api/packages/p").await, (200, package.clone()));
    assert_eq!(server.delete("/api/packages/p?deliveryId=other").await, 204);
    assert_eq!(server.get("/api/packages/p").await.0, 200, "it is not the other's");
    for _ in 0..2 {
        assert_eq!(server.delete("/api/packages/p?deliveryId=d-1").await, 204);
    }
    assert_eq!(server.get("/api/packages/p").await.0, 404);
    let (status, problem) = server.put("/api/packages/p", &package).await;
    assert_eq!((status, &problem["code"]), (409, &json!("AlreadyCancelled")));
    let heavy = json!({"deliveryId": "d-2", "size": "Small", "weight": 99});
    let (status, problem) = server.put("/api/packages/q", &heavy).await;
    assert_eq!((status, &problem["code"]), (422, &json!("PackageTooHeavy")));
}

#[actix_web::test]
async fn third_party_deliveries() {
    let server = Server::start();
    let (status, booking) = server.put("/api/thirdpartydeliveries/near", &request()).await;
    assert_eq!((status, booking["route"]["legs"].is_null()), (200, true), "nothing to book");
    assert_eq!(server.get("/api/thirdpartydeliveries/near").await.0, 404);
    let mut far = request();
    far["pickupLocation"] = json!({"latitude": 47.48, "longitude": -122.20});
    let (status, booking) = server.put("/api/thirdpartydeliveries/far", &far).await;
    assert_eq!((status, booking["route"]["legs"][0]["carrier"].as_str()), (201, Some("puget-couriers")));
    assert_eq!(server.put("/api/thirdpartydeliveries/far", &far).await, (200, booking.clone()));
    assert_eq!(server.get("/api/thirdpartydeliveries/far").await, (200, booking));
    assert_eq!(server.delete("/api/thirdpartydeliveries/far").await, 204);
    assert_eq!(server.get("/api/thirdpartydeliveries/far").await.0, 410);
    assert_eq!(server.put("/api/thirdpartydeliveries/far", &far).await.0, 409);
    far["pickupLocation"] = json!("45.52,-122.68");
    let (status, problem) = server.put("/api/thirdpartydeliveries/out", &far).await;
    assert_eq!((status, &problem["code"]), (422, &json!("OutOfArea")));
}

#[actix_web::test]
async fn drones_and_their_reservations() {
    let server = Server::start();
    for id in ["d-1", "d-2", "d-3"] {
        assert_eq!(server.put(&format!("/api/drones/{id}"), &drone()).await.0, 201);
    }
    let (_, shown) = server.get("/api/drones/d-1").await;
    assert_eq!((shown["status"].as_str(), shown["home"]["latitude"].as_f64()), (Some("Active"), Some(47.6101)));
    assert_eq!(server.put("/api/drones/d-1", &shown).await.0, 204, "what was read can be written");
    let (_, first) = server.get("/api/drones?limit=2").await;
    assert_eq!((first["items"].as_array().unwrap().len(), first["next"].as_str()), (2, Some("d-2")));
    let (_, second) = server.get("/api/drones?limit=2&cursor=d-2").await;
    assert_eq!((second["items"][0]["id"].as_str(), second["next"].is_null()), (Some("d-3"), true));

    let (status, reservation) = server.put("/api/dronedeliveries/a", &request()).await;
    assert_eq!(status, 201);
    assert_eq!(server.put("/api/dronedeliveries/a", &request()).await, (200, reservation.clone()));
    assert_eq!(server.get("/api/dronedeliveries/a").await, (200, reservation.clone()));
    let path = format!("/api/drones/{}", reservation["droneId"].as_str().unwrap());
    let (_, listed) = server.get(&format!("{path}/reservations")).await;
    assert_eq!(
        listed["items"],
        json!([{"deliveryId": "a", "from": reservation["from"], "until": reservation["until"]}])
    );
    assert_eq!(server.delete(&path).await, 409, "somebody counts on it");
    for _ in 0..2 {
        assert_eq!(server.delete("/api/dronedeliveries/a").await, 204);
    }
    assert_eq!(server.get("/api/dronedeliveries/a").await.0, 410);
    assert_eq!(server.put("/api/dronedeliveries/a", &request()).await.0, 409);
    assert_eq!(server.delete("/api/dronedeliveries/b").await, 204, "one that never had any is cancelled all the same");
    assert_eq!(server.put("/api/dronedeliveries/b", &request()).await.0, 409, "and a late call for it is refused");
    for _ in 0..2 {
        assert_eq!(server.delete(&path).await, 204);
    }
    assert_eq!(server.get(&path).await.0, 404);
    assert_eq!(server.get(&format!("{path}/reservations")).await.0, 404);
}

#[actix_web::test]
async fn a_delivery_s_life() {
    let server = Server::start();
    server.put("/api/drones/d-1", &drone()).await;
    let mut body = request();
    let (_, reservation) = server.put("/api/dronedeliveries/a", &body).await;
    body["reservation"] = reservation.clone();
    let (status, made) = server.put("/api/deliveries/a", &body).await;
    assert_eq!((status, made["stage"].as_str(), made["droneId"].as_str()), (201, Some("Created"), Some("d-1")));
    assert_eq!(server.put("/api/deliveries/a", &body).await, (204, Value::Null));
    server.told.take();

    let report =
        json!({"location": {"latitude": 47.61, "longitude": -122.21}, "deliveryId": "a", "stage": "HeadedToPickup"});
    assert_eq!(server.post("/api/drones/d-1/telemetry", &report).await.0, 204);
    let told: Vec<EventType> = server.told.take().iter().map(|event| event.kind).collect();
    assert_eq!(told, [EventType::Stage, EventType::Location]);
    let (_, status) = server.get("/api/deliveries/a/status").await;
    assert_eq!(status["stage"], "HeadedToPickup");
    assert_eq!((&status["location"], &status["eta"]), (&report["location"], &reservation["dropOffAt"]));
    assert_eq!(server.get("/api/drones/d-1").await.1["position"]["deliveryId"], "a");

    let patch = async |body: Value| server.call(Method::PATCH, "/api/deliveries/a", Some(&body)).await;
    assert_eq!(patch(json!({"stage": "PickedUp", "deadline": "2199-01-01T00:00:00Z"})).await.1["stage"], "PickedUp");
    assert_eq!(patch(json!({"stage": "Cancelled"})).await.0, 422);
    assert_eq!(patch(json!({"deadline": "1999-01-01T00:00:00Z"})).await.0, 422);
    let (_, events) = server.get("/api/deliveries/a/events").await;
    let stages: Vec<&str> = events["items"].as_array().unwrap().iter().filter_map(|e| e["stage"].as_str()).collect();
    assert_eq!(stages, ["Created", "HeadedToPickup", "PickedUp"]);

    let picture = json!({"type": "Picture", "reference": "p-1"});
    assert_eq!(server.post("/api/deliveries/a/confirmations", &picture).await.0, 201);
    assert_eq!(server.post("/api/deliveries/a/confirmations", &json!({"type": "Voice"})).await.0, 422);
    let wish = json!({"email": "a@example.com", "stage": "Delivered"});
    assert_eq!(server.post("/api/deliveries/a/notifymerequests", &wish).await, (201, wish));

    let (_, listed) = server.get("/api/deliveries?ownerId=contoso").await;
    assert_eq!(listed["items"][0]["id"], "a");
    for _ in 0..2 {
        assert_eq!(server.delete("/api/deliveries/a").await, 204);
    }
    assert_eq!(server.told.take().last().unwrap().stage, Some(Stage::Cancelled));
    for path in ["/api/deliveries/a", "/api/deliveries/a/status", "/api/deliveries/a/events"] {
        assert_eq!(server.get(path).await.0, 410, "{path}");
    }
    assert_eq!(server.put("/api/deliveries/a", &body).await.0, 409);
    assert_eq!(server.post("/api/deliveries/a/confirmations", &picture).await.0, 410);
    assert_eq!(server.get("/api/deliveries/never").await.0, 404);
    assert_eq!(server.get("/api/deliveries?ownerId=contoso").await.1, json!({"items": []}));
}

/// What cannot be read is told as such, and put anew like anything else.
#[actix_web::test]
async fn what_is_damaged_may_be_put_anew() {
    let server = Server::start();
    let account = json!({"status": "Active"});
    let package = json!({"deliveryId": "a", "size": "Small", "weight": 1.0});
    let drone = json!({"home": "47.6,-122.2", "speedKmh": 60.0, "rangeKm": 60.0, "payloadKg": 5.0});
    for (path, key, entity) in [
        ("/api/accounts/x", "account/x", account),
        ("/api/packages/x", "package/x", package),
        ("/api/drones/x", "drone/x", drone),
    ] {
        let damage = Txn::new().put(key, "no entity");
        server.store.state().commit(vec![damage]).await.unwrap();
        let (status, problem) = server.get(path).await;
        assert_eq!((status, &problem["code"]), (409, &json!("Damaged")), "{path}");
        assert_eq!(server.put(path, &entity).await.0, 204, "{path}");
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
}
