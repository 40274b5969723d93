//! A server with the feed alone, its hub under a supervisor, on streams that the test writes to.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use actix_web::dev::ServerHandle;
use actix_web::web;
use drone_delivery::actors::notice::StatusLines;
use drone_delivery::actors::slot::Slot;
use drone_delivery::actors::status_hub::{Observe, Observed, StatusFeed, StatusHub};
use drone_delivery::actors::supervisor::{Child, Restarts, Retire, Supervisor, Watch};
use drone_delivery::alerts::Alerts;
use drone_delivery::config::{self, Panics};
use drone_delivery::domain::DeliveryId;
use drone_delivery::domain::status::{EventType, StatusEvent};
use drone_delivery::domain::time::now;
use drone_delivery::http::status;
use drone_delivery::stream::{Stream, Streams, embedded};
use tempfile::TempDir;

use super::flaky::{Faults, Flaky, Reader};

/// Longer than a broker takes to come back on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, poll).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// Embedded streams of which little is kept.
pub fn embedded_streams(dir: &Path) -> Result<Arc<dyn Streams>, embedded::OpenError> {
    let settings = embedded::Settings {
        data_dir: dir.to_owned(),
        partitions: 1,
        segment_bytes: 1024 * 1024,
        retention_bytes: 32 * 1024 * 1024,
        max_age: None,
        dead_letters: Duration::from_secs(3600),
    };
    Ok(embedded::open(&settings)?.streams)
}

/// Settings whose times are long beside what the tests wait for.
pub fn settings() -> config::StatusFeed {
    config::StatusFeed { buffer: 1_024, ping: Duration::from_secs(300), max_subscribers: 100 }
}

pub struct Rig {
    pub address: SocketAddr,
    pub streams: Arc<dyn Streams>,
    pub faults: Arc<Faults>,
    pub feed: StatusFeed,
    pub hub: Slot<StatusHub>,
    supervisor: Addr<Supervisor>,
    server: ServerHandle,
    made: AtomicU64,
    pub dir: Option<TempDir>,
}

impl Rig {
    /// On fresh embedded streams.
    pub fn start(settings: &config::StatusFeed) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let streams = embedded_streams(&dir.path().join("data")).unwrap();
        Self { dir: Some(dir), ..Self::on(streams, settings) }
    }

    pub fn on(streams: Arc<dyn Streams>, settings: &config::StatusFeed) -> Self {
        let faults = Arc::<Faults>::default();
        let flaky =
            |reader| -> Arc<dyn Streams> { Arc::new(Flaky { inner: streams.clone(), reader, faults: faults.clone() }) };
        let hub = Slot::<StatusHub>::default();
        let supervisor =
            Supervisor::new(Alerts::default(), Panics::default(), tokio_util::sync::CancellationToken::new()).start();
        let (slot, source, buffer) = (hub.clone(), flaky(Reader::Hub), settings.buffer);
        supervisor.do_send(Watch(Child::new("status-hub", move |lifeline| {
            slot.set(StatusHub::new(source.clone(), buffer, lifeline).start());
        })));
        let feed = StatusFeed::new(flaky(Reader::Subscription), settings, hub.clone());
        let (address, server) = serve(&feed);
        Self { address, streams, faults, feed, hub, supervisor, server, made: AtomicU64::new(0), dir: None }
    }

    /// As when the process ends; the directory stays.
    pub async fn stop(self) -> Option<TempDir> {
        self.supervisor.send(Retire("status-hub".to_owned())).await.unwrap();
        self.feed.close();
        self.server.stop(true).await;
        self.dir
    }

    /// Appends one entry with so many events, which are numbered over all entries and belong to the deliveries
    /// `d-0` to `d-9` of the owners `o-0` and `o-1` in turn.
    pub async fn append(&self, events: u64) {
        self.append_with(events, "").await;
    }

    pub async fn append_with(&self, events: u64, padding: &str) {
        let first = self.made.fetch_add(events, Ordering::SeqCst);
        let mut lines = StatusLines::default();
        for number in first..first + events {
            let id = DeliveryId::parse(&format!("d-{}", number % 10)).unwrap();
            let mut event = StatusEvent::new(EventType::Step, now(), id, format!("o-{}", number % 2));
            event.detail = Some(format!("{number} {padding}").into());
            lines.push(&event);
        }
        let body = lines.into_body();
        // As the status writer does: an entry that was not confirmed is written again.
        let deadline = std::time::Instant::now() + PATIENCE;
        while let Err(error) = self.streams.append(Stream::Status, body.clone()).await {
            assert!(std::time::Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many events were appended.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    pub async fn observe(&self) -> Option<Observed> {
        self.hub.get()?.send(Observe).await.ok()
    }

    /// Waits until so many are live.
    pub async fn until_live(&self, subscribers: usize) {
        until("all are live", async || self.observe().await.is_some_and(|seen| seen.subscribers == subscribers)).await;
    }

    pub async fn hub_restarts(&self) -> u64 {
        self.supervisor.send(Restarts).await.unwrap().iter().map(|(_, restarts)| restarts).sum()
    }

    pub fn url(&self, scheme: &str, path_and_query: &str) -> String {
        format!("{scheme}://{}{path_and_query}", self.address)
    }
}

fn serve(feed: &StatusFeed) -> (SocketAddr, ServerHandle) {
    let mut http = config::Settings::builtin().unwrap().http;
    (http.listen, http.workers) = ("127.0.0.1:0".to_owned(), 1);
    let feed = feed.clone();
    let routes = move |config: &mut web::ServiceConfig| {
        config.app_data(web::Data::new(feed.clone())).configure(status::configure);
    };
    let (server, address) = drone_delivery::http::serve(&http, vec![Arc::new(routes)], 1).unwrap();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    (address, handle)
}
