//! The HTTP calls on a real server with real writers, over a stream that can be held up and a store that can be away.

mod errors;
mod ingestion;
mod openapi;
mod support;
