//! A server for one test, and the switches to make things go wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actix::Actor;
use actix_web::web;
use async_trait::async_trait;
use bytes::Bytes;
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::writer::{Limits, Writer, WriterHandle};
use drone_delivery::config::Settings;
use drone_delivery::domain::Operation;
use drone_delivery::health::Health;
use drone_delivery::http::ingestion::Ingestion;
use drone_delivery::http::intake::Intake;
use drone_delivery::http::{Routes, probes, serve};
use drone_delivery::store::embedded::EmbeddedState;
use drone_delivery::store::{Outcome, Scan, State, StoreError, Txn};
use drone_delivery::stream::{AppendError, Bounds, From, ReadError, Stream, StreamReader, Streams};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Streams that remember what was appended, and can be held up or be away.
pub struct TestStreams {
    entries: Mutex<Vec<(Stream, Bytes)>>,
    pub away: AtomicBool,
    /// Appends that have begun.
    begun: watch::Sender<usize>,
    /// Appends go on while this is true.
    open: watch::Sender<bool>,
}

impl TestStreams {
    fn new() -> Self {
        let (entries, away) = (Mutex::default(), AtomicBool::new(false));
        Self { entries, away, begun: watch::Sender::new(0), open: watch::Sender::new(true) }
    }

    pub fn hold_up(&self) {
        self.open.send_replace(false);
    }

    pub fn go_on(&self) {
        self.open.send_replace(true);
    }

    /// Waits until so many appends have begun.
    pub async fn begun(&self, count: usize) {
        let mut begun = self.begun.subscribe();
        let reached = begun.wait_for(|begun| *begun >= count);
        tokio::time::timeout(Duration::from_secs(60), reached).await.expect("appends begin").unwrap();
    }

    pub fn entries(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    pub fn operations(&self) -> Vec<Operation> {
        let entries = self.entries.lock().unwrap();
        let lines = entries.iter().flat_map(|(_, body)| body.split(|b| *b == b'\n').filter(|line| !line.is_empty()));
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

#[async_trait]
impl Streams for TestStreams {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        self.begun.send_modify(|begun| *begun += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        if self.away.load(Ordering::SeqCst) {
            return Err(AppendError::Unavailable { part: "stream", reason: "switched off".into() });
        }
        self.entries.lock().unwrap().push((stream, body));
        Ok(())
    }

    async fn read(&self, stream: Stream, _: From) -> Result<Box<dyn StreamReader>, ReadError> {
        Err(ReadError::Missing(format!("{stream:?}")))
    }

    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        Err(ReadError::Missing(format!("{stream:?}")))
    }

    async fn release(&self, _: Stream, _: u64) {}

    async fn ensure(&self, _: Stream) -> Result<(), AppendError> {
        Ok(())
    }
}

/// A store that can be away.
pub struct TestState {
    inner: EmbeddedState,
    pub away: AtomicBool,
}

impl TestState {
    fn there(&self) -> Result<(), StoreError> {
        let away = self.away.load(Ordering::SeqCst);
        if away { Err(StoreError { part: "store", reason: "switched off".into() }) } else { Ok(()) }
    }
}

#[async_trait]
impl State for TestState {
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.there()?;
        self.inner.get(keys).await
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
        self.there()?;
        self.inner.commit(txns).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<Bytes>, StoreError> {
        self.there()?;
        self.inner.scan(scan).await
    }

    async fn count(&self, set: &str) -> Result<u64, StoreError> {
        self.there()?;
        self.inner.count(set).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.there()
    }
}

pub struct TestApi {
    pub address: std::net::SocketAddr,
    pub streams: Arc<TestStreams>,
    pub state: Arc<TestState>,
    pub health: Health,
    client: awc::Client,
    server: actix_web::dev::ServerHandle,
    _dir: tempfile::TempDir,
}

/// An answer, read to its end.
pub struct Answer {
    pub status: u16,
    pub headers: awc::http::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn id(&self) -> &str {
        self.body["deliveryId"].as_str().unwrap()
    }

    /// The pointers of a problem's errors, sorted.
    pub fn pointers(&self) -> Vec<&str> {
        let mut all: Vec<_> =
            self.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
        all.sort_unstable();
        all
    }

    /// Asserts that this is a problem of the given status, whole and well-formed.
    pub fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.body["status"], status);
        for member in ["type", "title", "detail", "instance"] {
            assert!(self.body[member].is_string(), "{member} in {}", self.body);
        }
        assert!(self.header("x-request-id").is_some());
    }
}

impl TestApi {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A server whose settings differ from the defaults.
    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::builtin().unwrap();
        settings.http.listen = "127.0.0.1:0".into();
        settings.http.workers = 1;
        settings.http.limit_route = true;
        // Far longer than any test: only a test that is about time-outs sets one.
        settings.http.body_timeout = Duration::from_secs(120);
        settings.ingestion.claim_ttl = Duration::from_secs(600);
        settings.ingestion.write_timeout = Duration::from_secs(120);
        change(&mut settings);
        let dir = tempfile::tempdir().unwrap();
        let inner = EmbeddedState::open(dir.path()).unwrap();
        let state = Arc::new(TestState { inner, away: AtomicBool::new(false) });
        let streams = Arc::new(TestStreams::new());
        let health = Health::default();
        let writers = writers(&settings, &streams);
        let (shared_settings, shared_state) = (settings.clone(), state.clone());
        let shared = web::Data::new(health.clone());
        let routes: Vec<Routes> = vec![
            Arc::new(move |config| {
                let intake = Intake::new(&writers);
                let ingestion = Ingestion::new(&shared_settings, intake, shared_state.clone());
                Ingestion::routes(&web::Data::new(ingestion), config);
            }),
            Arc::new(move |config| {
                config.app_data(shared.clone()).configure(probes::routes).route("/panic", web::get().to(panics));
            }),
        ];
        let (server, address) = serve(&settings.http, routes, 1).unwrap();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        let client = awc::Client::builder().timeout(Duration::from_secs(60)).finish();
        Self { address, streams, state, health, client, server: handle, _dir: dir }
    }

    pub fn request(&self, method: &str, path: &str) -> awc::ClientRequest {
        self.client.request(method.parse().unwrap(), format!("http://{}{path}", self.address))
    }

    pub async fn post(&self, body: &Value) -> Answer {
        answer(self.request("POST", "/api/deliveryrequests").send_json(body)).await
    }

    pub async fn post_with_key(&self, key: &str, body: &Value) -> Answer {
        let request = self.request("POST", "/api/deliveryrequests").insert_header(("idempotency-key", key));
        answer(request.send_json(body)).await
    }

    pub async fn put(&self, id: &str, body: &Value) -> Answer {
        answer(self.request("PUT", &format!("/api/deliveryrequests/{id}")).send_json(body)).await
    }

    pub async fn batch(&self, content_type: &str, body: String) -> Answer {
        let request = self.request("POST", "/api/deliveryrequests/batch").insert_header(("content-type", content_type));
        answer(request.send_body(body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        answer(self.request("GET", path).send()).await
    }

    pub async fn stop(self) {
        self.server.stop(false).await;
    }
}

pub async fn answer(request: awc::SendClientRequest) -> Answer {
    let mut response = request.await.unwrap();
    let bytes = response.body().limit(10_000_000).await.unwrap();
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Answer { status: response.status().as_u16(), headers: response.headers().clone(), body }
}

fn writers(settings: &Settings, streams: &Arc<TestStreams>) -> Vec<WriterHandle> {
    let limits = Limits {
        waiting: settings.ingestion.max_waiting,
        batch_lines: settings.ingestion.batch_requests,
        batch_bytes: settings.ingestion.batch_bytes,
        in_flight: settings.ingestion.writes_in_flight,
        timeout: settings.ingestion.write_timeout,
        few: 16,
        linger: settings.ingestion.linger,
        recent_bytes: settings.ingestion.recent_bytes,
    };
    (0..settings.partitions.count)
        .map(|partition| {
            let handle = WriterHandle::new(&limits);
            let stream = Stream::Requests(partition);
            let writer = Writer::new(stream, streams.clone(), limits, &handle, Lifeline::unwatched());
            handle.slot().set(writer.start());
            handle
        })
        .collect()
}

async fn panics() -> &'static str {
    panic!("on purpose")
}

/// The request of the API's example.
pub fn example() -> Value {
    json!({
        "ownerId": "contoso",
        "pickupLocation": {"latitude": 47.6101, "longitude": -122.2015},
        "dropOffLocation": "47.6205,-122.3493",
        "packageInfo": {"size": "Small", "weight": 1.5, "tag": "books"}
    })
}

/// The same for another owner.
pub fn example_of(owner: &str) -> Value {
    let mut body = example();
    body["ownerId"] = json!(owner);
    body
}

/// Polls until it holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
