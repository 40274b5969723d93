//! The demo on both stores: what is seeded and taken back, and flights that go on over restarts, other processes and
//! cancelled deliveries. Time is handed to the pilot, so nothing here waits for a clock.

mod flying;
mod seeding;

use drone_delivery::config::{self, Settings};
use drone_delivery::services::SharedState;
use drone_delivery::services::geography::Areas;

fn settings() -> config::Demo {
    Settings::builtin().unwrap().demo
}

fn areas() -> Areas {
    Areas::load("").unwrap()
}

async fn seed(state: &SharedState, settings: &config::Demo) -> usize {
    drone_delivery::demo::seed::seed(&**state, settings, &areas()).await.unwrap()
}

/// A small demo, where the numbers do not matter.
fn small() -> config::Demo {
    config::Demo { accounts: 3, drones: 40, ..settings() }
}
