//! The integration tests: one binary, on real RabbitMQ and Redis servers that it starts itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod app;
mod bench;
mod cluster;
mod conformance;
mod demo;
mod embedded;
mod faults;
mod http;
mod leases;
mod readers;
mod records;
mod retention;
mod scheduler;
mod services;
mod status;
mod support;
mod writers;
