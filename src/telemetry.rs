//! Logs: `RUST_LOG` says what, the setting `log.format` says how.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// The clients of the broker and of Redis tell of every reconnect; that is logged here, once, where it is handled. The
/// embedded database tells of its own files.
const DEFAULT_FILTER: &str = "info,lapin=off,redis=error,fjall=warn,lsm_tree=warn";

/// Begins to log to stderr. A second call does nothing, so that tests may call it too.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    drop(started);
}
