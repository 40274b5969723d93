//! The demo: accounts and a fleet over a real city ([`seed`]), and drones that fly what they are reserved for
//! ([`flights`]), so that a newcomer sees deliveries move. `[demo]` of the configuration switches it; switched off, no
//! request pays for it.

pub mod flights;
pub mod pilot;
pub mod plan;
pub mod seed;

use crate::config::Settings;
use crate::engine::Engine;
use crate::health::Health;

/// Takes back what was seeded into the configured engine; says how many accounts and drones that was.
///
/// # Errors
/// When the engine cannot be opened or its store does not answer.
pub async fn remove(settings: &Settings) -> anyhow::Result<usize> {
    let engine = Engine::open(settings, &Health::default()).await?;
    let removed = seed::remove(&*engine.state).await?;
    engine.sync();
    Ok(removed)
}
