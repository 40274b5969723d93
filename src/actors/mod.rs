//! What moves: one actor a file.
//!
//! The way of a request: [`writer`] → stream → [`reader`] → [`scheduler`] (whose steps are done by [`agent`]s) →
//! [`checkpointer`]; in the mode `queue` a [`forwarder`] and [`worker`]s stand between reader and scheduler. What fails
//! for good goes to the [`compensator`]. [`partitions`] decides which partitions this instance reads, [`supervisor`]
//! starts and restarts everything. The [`status_hub`] tells whoever watches of every change.

pub mod agent;
pub mod backoff;
pub mod checkpointer;
pub mod compensator;
pub mod consumer;
pub mod dead_letters;
pub mod forwarder;
pub mod lifeline;
pub mod notice;
pub mod notifier;
pub mod partitions;
pub mod purger;
pub mod reader;
pub mod scheduler;
pub mod slot;
pub mod status_hub;
pub mod supervisor;
pub mod sweeper;
pub mod switches;
pub mod teller;
pub mod worker;
pub mod writer;
