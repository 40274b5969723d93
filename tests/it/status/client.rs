//! Clients of the feed: a websocket and an event source.

use actix_web::http::StatusCode;
use actix_web::web::Bytes;
use awc::error::PayloadError;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::rig::{PATIENCE, Rig};

pub struct Watcher {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// What a websocket says.
#[derive(Debug)]
pub enum Heard {
    Event(Value),
    Ping,
    Closed(Option<CloseCode>),
}

impl Watcher {
    pub async fn open(rig: &Rig, query: &str) -> Self {
        Self::try_open(rig, query).await.unwrap()
    }

    pub async fn try_open(rig: &Rig, query: &str) -> Result<Self, tokio_tungstenite::tungstenite::Error> {
        let (socket, _) = tokio_tungstenite::connect_async(rig.url("ws", &format!("/api/status{query}"))).await?;
        Ok(Self { socket })
    }

    pub async fn hear(&mut self) -> Heard {
        let heard = tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("nothing was heard in time");
        match heard {
            Some(Ok(Message::Text(text))) => Heard::Event(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Ping(_))) => Heard::Ping,
            Some(Ok(Message::Close(frame))) => Heard::Closed(frame.map(|frame| frame.code)),
            None | Some(Err(_)) => Heard::Closed(None),
            Some(Ok(other)) => panic!("{other:?}"),
        }
    }

    pub async fn event(&mut self) -> Value {
        loop {
            match self.hear().await {
                Heard::Event(event) => return event,
                Heard::Ping => {}
                Heard::Closed(code) => panic!("closed with {code:?}"),
            }
        }
    }

    pub async fn events(&mut self, count: u64) -> Vec<Value> {
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(self.event().await);
        }
        events
    }

    /// The code it is closed with, whatever is said before.
    pub async fn closed(&mut self) -> Option<CloseCode> {
        loop {
            if let Heard::Closed(code) = self.hear().await {
                return code;
            }
        }
    }
}

/// An event source, as a browser's.
pub struct Source {
    body: Box<dyn Stream<Item = Result<Bytes, PayloadError>> + Unpin>,
    text: String,
    pub last_event_id: String,
}

impl Source {
    pub async fn open(rig: &Rig, query: &str, last_event_id: &str) -> Self {
        let request = awc::Client::builder().disable_timeout().finish();
        let request = request.get(rig.url("http", &format!("/api/status/events{query}")));
        let response = request.insert_header(("last-event-id", last_event_id)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().get("content-type").unwrap(), "text/event-stream");
        Self { body: Box::new(response), text: String::new(), last_event_id: last_event_id.to_owned() }
    }

    /// The next event, or none at the end.
    pub async fn event(&mut self) -> Option<Value> {
        loop {
            while let Some((message, rest)) = self.text.split_once("\n\n") {
                let lines: Vec<_> = message.lines().filter_map(|line| line.split_once(": ")).collect();
                let field = |name| lines.iter().find(|(field, _)| *field == name).map(|(_, value)| (*value).to_owned());
                let (id, data) = (field("id"), field("data"));
                self.text = rest.to_owned();
                self.last_event_id = id.unwrap_or_else(|| self.last_event_id.clone());
                if let Some(data) = data {
                    return Some(serde_json::from_str(&data).unwrap());
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("nothing was heard in time");
            self.text.push_str(std::str::from_utf8(&chunk?.ok()?).unwrap());
        }
    }

    pub async fn events(&mut self, count: u64) -> Vec<Value> {
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(self.event().await.expect("the feed goes on"));
        }
        events
    }
}

/// The numbers that the rig gave the events.
pub fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(number).collect()
}

pub fn number(event: &Value) -> u64 {
    let detail = event["detail"].as_str().unwrap_or_else(|| panic!("{event}"));
    detail.split(' ').next().unwrap().parse().unwrap()
}

pub fn id(event: &Value) -> &str {
    event["id"].as_str().unwrap_or_else(|| panic!("{event}"))
}
