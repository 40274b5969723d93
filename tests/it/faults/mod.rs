//! What goes wrong, on real processes of the built program: killed, frozen, without its broker, its Redis or its disk,
//! talked to by strangers. Every run is under load, and ends with a checker that compares what was accepted with the
//! final states, and those with what the services hold ([`checker`]).
//!
//! The runs are short; `FAULT_ROUNDS=10` makes them ten times as long.

mod cancels;
mod checker;
mod crashes;
mod drain;
mod hostile;
mod kills;
mod load;
mod outages;
mod owners;
mod panics;
mod pods;
mod poison;
pub mod program;
mod replay;
mod storage;

use tokio::sync::{Semaphore, SemaphorePermit};

/// One fault run at a time: each is a load of its own on the machine.
pub async fn turn() -> SemaphorePermit<'static> {
    static TURN: Semaphore = Semaphore::const_new(1);
    TURN.acquire().await.unwrap()
}

/// So many rounds, times `FAULT_ROUNDS`.
pub fn rounds(usual: u32) -> u32 {
    usual * std::env::var("FAULT_ROUNDS").map_or(1, |times| times.parse().expect("FAULT_ROUNDS is a number"))
}
