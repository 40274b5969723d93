//! `health`: asks a running process whether it is ready, for health checks in images that hold nothing else to ask with.

use std::time::Duration;

use clap::Args;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 64 * 1024;

/// Whom to ask.
#[derive(Clone, Debug, Args)]
pub struct Health {
    /// Where the application is served
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
}

/// Why a process does not count as ready.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("no answer: {0}")]
    NoAnswer(String),
    #[error("not ready ({0}): {1}")]
    NotReady(awc::http::StatusCode, String),
}

/// What `/readyz` says when all is well.
///
/// # Errors
/// When it says anything else, or nothing in time.
pub async fn ask(health: &Health) -> Result<String, HealthError> {
    let asked = timeout(TIMEOUT, async {
        let url = format!("{}/readyz", health.url.trim_end_matches('/'));
        let mut answer = awc::Client::new().get(url).send().await.map_err(|error| error.to_string())?;
        let body = answer.body().limit(MAX_ANSWER).await.map_err(|error| error.to_string())?;
        Ok((answer.status(), String::from_utf8_lossy(&body).into_owned()))
    });
    match asked.await {
        Ok(Ok((status, body))) if status.is_success() => Ok(body),
        Ok(Ok((status, body))) => Err(HealthError::NotReady(status, body)),
        Ok(Err(reason)) => Err(HealthError::NoAnswer(reason)),
        Err(_) => Err(HealthError::NoAnswer(format!("nothing within {} s", TIMEOUT.as_secs()))),
    }
}
