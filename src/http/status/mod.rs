//! The status feed: `GET /api/status` as a websocket, `GET /api/status/events` as server-sent events. Both tell the
//! same messages of the same [`Subscription`](crate::actors::status_hub::Subscription); only the wire differs.
//!
//! A peer costs what its buffers hold and no more: one that reads too slowly is told so and closed, one that does not
//! read at all or does not answer pings is cut off.

mod events;
mod websocket;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};

use super::problem::{Kind, Problem};
use crate::actors::status_hub::{Filter, Refused, StatusFeed};
use crate::domain::draft::{NAME_RULE, is_name};
use crate::domain::status::{EventId, InvalidEventId};
use crate::domain::{DeliveryId, Fault};

const LAST_EVENT_ID: &str = "last-event-id";

/// The routes. They need a [`StatusFeed`] as `web::Data`.
pub fn configure(config: &mut web::ServiceConfig) {
    config.service(web::resource("/api/status").get(watch)).service(web::resource("/api/status/events").get(follow));
}

async fn watch(
    request: HttpRequest,
    body: web::Payload,
    feed: web::Data<StatusFeed>,
) -> Result<HttpResponse, actix_web::Error> {
    let wish = Wish::read(request.query_string(), None)?;
    if !asks_for_websocket(request.headers()) {
        return Ok(upgrade_required(request.path()));
    }
    let (response, session, messages) = actix_ws::handle(&request, body).map_err(|error| {
        let status = error.as_response_error().status_code();
        Problem::new(Kind::from(status), error.to_string())
    })?;
    let mut subscription = feed.subscribe(wish.filter, wish.since).map_err(Problem::from)?;
    subscription.take_place().await;
    actix_web::rt::spawn(websocket::serve(StatusFeed::clone(&feed), subscription, session, messages));
    Ok(response)
}

async fn follow(request: HttpRequest, feed: web::Data<StatusFeed>) -> Result<HttpResponse, Problem> {
    let wish = Wish::read(request.query_string(), request.headers().get(LAST_EVENT_ID))?;
    let mut subscription = feed.subscribe(wish.filter, wish.since)?;
    subscription.take_place().await;
    Ok(events::respond(StatusFeed::clone(&feed), subscription))
}

fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|upgrade| upgrade.to_ascii_lowercase().contains("websocket"))
}

fn upgrade_required(path: &str) -> HttpResponse {
    let detail = "this is a websocket; the same feed as server-sent events is at /api/status/events";
    let mut response = Problem::new(Kind::Other(StatusCode::UPGRADE_REQUIRED), detail).respond(Some(path));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    response
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        Self::new(Kind::Unavailable, refused.to_string())
    }
}

/// What a client wants to hear.
#[derive(Debug, Default, PartialEq)]
struct Wish {
    filter: Filter,
    since: Option<EventId>,
}

impl Wish {
    /// Reads the query. A browser that comes back by itself repeats the query and adds the header, so the header wins.
    fn read(query: &str, last_event_id: Option<&HeaderValue>) -> Result<Self, Problem> {
        let pairs = web::Query::<Vec<(String, String)>>::from_query(query)
            .map_err(|error| Problem::new(Kind::Malformed, format!("the query cannot be read: {error}")))?;
        let (mut wish, mut faults) = (Self::default(), Vec::new());
        for (name, value) in pairs.into_inner() {
            wish.take(&name, &value).unwrap_or_else(|detail| faults.push(Fault::new(format!("/{name}"), detail)));
        }
        // An EventSource that has seen nothing yet may send an empty one.
        let last_event_id = last_event_id.map(HeaderValue::as_bytes).filter(|value| !value.is_empty());
        if let Some(value) = last_event_id {
            let taken = wish.take("since", &String::from_utf8_lossy(value));
            taken.unwrap_or_else(|detail| faults.push(Fault::new("/Last-Event-ID", detail)));
        }
        if faults.is_empty() { Ok(wish) } else { Err(Problem::invalid(faults)) }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "deliveryId" => {
                let id = DeliveryId::parse(value).map_err(|error| error.to_string())?;
                self.filter.delivery_id = Some(id.to_string());
            }
            "ownerId" if is_name(value) => self.filter.owner_id = Some(value.to_owned()),
            "ownerId" => return Err(NAME_RULE.to_owned()),
            "since" => {
                let id = value.parse().map_err(|error: InvalidEventId| error.to_string())?;
                self.since = Some(id);
            }
            _ => return Err("there is no such parameter; there are deliveryId, ownerId and since".to_owned()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read() {
        let wish = Wish::read("deliveryId=d-1&ownerId=a%2Db&since=7-2", None).unwrap();
        let filter = Filter { delivery_id: Some("d-1".into()), owner_id: Some("a-b".into()) };
        assert_eq!(wish, Wish { filter, since: "7-2".parse().ok() });
        assert_eq!(Wish::read("", None).unwrap(), Wish::default());
    }

    #[test]
    fn the_header_of_a_browser_that_comes_back_wins() {
        let header = HeaderValue::from_static("9-0");
        assert_eq!(Wish::read("since=7-2", Some(&header)).unwrap().since, "9-0".parse().ok());
        assert_eq!(Wish::read("since=7-2", Some(&HeaderValue::from_static(""))).unwrap().since, "7-2".parse().ok());
    }

    #[test]
    fn every_fault_is_named() {
        let header = HeaderValue::from_static("x");
        let problem = Wish::read("deliveryId=a/b&ownerId=&since=7&limit=3", Some(&header)).unwrap_err();
        let pointers: Vec<_> = problem.errors.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/deliveryId", "/ownerId", "/since", "/limit", "/Last-Event-ID"]);
    }
}
