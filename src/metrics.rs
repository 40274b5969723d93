//! The names of all metrics, and the recorder behind `/metrics`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::StatusCode;
use metrics::{Counter, Histogram, Unit, describe_counter, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// How long calls took, by route, method and status.
pub const HTTP_SECONDS: &str = "drone_http_request_seconds";
/// Requests answered 202: durable.
pub const ACCEPTED: &str = "drone_requests_accepted_total";
/// Requests that were not taken, by reason.
pub const REFUSED: &str = "drone_requests_refused_total";

/// Alerts raised, by kind.
pub const ALERTS: &str = "drone_alerts_total";
/// Actors started again, by name.
pub const ACTOR_RESTARTS: &str = "drone_actor_restarts_total";
/// Workflows that a scheduler is through with, by status.
pub const WORKFLOWS: &str = "drone_workflows_total";
/// Requests that were read again though their workflows were through, after a crash or a takeover.
pub const REPLAYED: &str = "drone_requests_replayed_total";
/// From the acceptance of a request until all its steps are done.
pub const ACCEPT_TO_SCHEDULED: &str = "drone_accept_to_scheduled_seconds";
/// How long commits waited for the embedded state to catch up with what was written.
pub const STATE_STALLS: &str = "drone_state_stall_seconds";
/// Events of the services that found no room on their way to the status stream.
pub const STATUS_DROPPED: &str = "drone_status_events_dropped_total";

const SECONDS: [f64; 15] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Samples wait in memory until they are put into their buckets, this often.
const UPKEEP: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Begins to count. Only the first call does something.
pub fn start() {
    RECORDER.get_or_init(|| match install() {
        Ok(handle) => Some(handle),
        Err(error) => {
            tracing::error!(%error, "metrics are off");
            None
        }
    });
}

/// Everything counted so far, in Prometheus's text format.
#[must_use]
pub fn render() -> String {
    RECORDER.get().and_then(Option::as_ref).map(PrometheusHandle::render).unwrap_or_default()
}

fn install() -> anyhow::Result<PrometheusHandle> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    let handle = builder.install_recorder()?;
    describe_histogram!(HTTP_SECONDS, Unit::Seconds, "How long calls took");
    describe_histogram!(STATE_STALLS, Unit::Seconds, "How long commits waited for the embedded state to catch up");
    describe_counter!(ACCEPTED, "Requests that were answered 202");
    describe_counter!(REFUSED, "Requests that were not taken");
    let upkeep = handle.clone();
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        loop {
            std::thread::sleep(UPKEEP);
            upkeep.run_upkeep();
        }
    })?;
    Ok(handle)
}

thread_local! {
    /// Asking the recorder for it costs several times what counting does.
    static ACCEPTED_HERE: Counter = metrics::counter!(ACCEPTED);
}

/// Counts requests that were answered 202.
pub fn accepted(count: usize) {
    ACCEPTED_HERE.with(|counter| counter.increment(count as u64));
}

/// Counts requests that were not taken.
pub fn refused(reason: &'static str, count: usize) {
    metrics::counter!(REFUSED, "reason" => reason).increment(count as u64);
}

thread_local! {
    /// The histograms this thread has used: looking one up here costs a tenth of asking the recorder for it.
    static CALLS: RefCell<HashMap<(String, &'static str, u16), Histogram>> = RefCell::default();
}

/// Counts one call. Paths that match no route count together: anybody can make them up.
pub fn http_call(request: &HttpRequest, status: StatusCode, took: Duration) {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let route = request.match_pattern().unwrap_or_else(|| "none".to_owned());
    let method = METHODS.into_iter().find(|known| *known == request.method().as_str()).unwrap_or("other");
    CALLS.with_borrow_mut(|calls| {
        let histogram = calls.entry((route, method, status.as_u16())).or_insert_with_key(|(route, method, status)| {
            metrics::histogram!(HTTP_SECONDS, "route" => route.clone(), "method" => *method, "status" => status.to_string())
        });
        histogram.record(took);
    });
}
