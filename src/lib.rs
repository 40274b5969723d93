//! The Drone Delivery application: it takes delivery requests in at high rate, never loses one, and carries each
//! through a five-step workflow that either completes or is undone.
//!
//! The map, in the order the data flows:
//!
//! - [`http`] takes requests in, validates them and answers once they are durable; it also serves the services'
//!   own calls, the status feed and the operations calls.
//! - [`actors`] is what moves: writers, readers, scheduler, agents, checkpointer, compensator, status hub, and the
//!   supervisor that restarts them.
//! - [`services`] is what the five steps do: account, package, transport, drone, delivery.
//! - [`stream`] keeps the accepted requests, the status events and the queues: on this disk or in RabbitMQ.
//! - [`store`] keeps the state: on this disk or in Redis.
//! - [`cluster`] opens what the two keep in RabbitMQ and Redis.
//! - [`demo`] makes accounts and drones and flies them, for those who want to see it move.
//! - [`domain`] is the plain types and rules that the others share; it does no I/O.
//! - [`mod@bench`] puts load on all of it and measures.
//! - [`crashes`] ends the process at a point of one's choice, to try out what the others promise.
//! - [`config`] is the settings, [`app`] wires it all up by role, [`cli`] is the command line.

pub mod actors;
pub mod alerts;
pub mod app;
pub mod bench;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod crashes;
pub mod demo;
pub mod domain;
pub mod engine;
pub mod health;
pub mod http;
pub mod metrics;
pub mod services;
pub mod store;
pub mod stream;
pub mod telemetry;
