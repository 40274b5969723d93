//! Wires the parts up by role, starts them and drains them.

use crate::config::Settings;

/// Runs until a signal ends it.
///
/// # Errors
/// When a part cannot be started.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    tracing::info!(listen = settings.http.listen, "nothing to serve yet");
    Ok(())
}
