//! What the integration tests share.
#![allow(dead_code, reason = "each test module uses a part of it")]

pub mod disk;
pub mod http;
pub mod process;
pub mod servers;
pub mod webhooks;
