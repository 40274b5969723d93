//! The status feed as its clients see it: over real sockets, on a server that has nothing but the feed.

mod broker;
mod client;
mod command;
mod delivery;
mod failures;
mod flaky;
mod limits;
mod replay;
mod rig;
