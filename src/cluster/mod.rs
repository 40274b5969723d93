//! The cluster engine: streams and queues in RabbitMQ, state in Redis. It is opened once in a process; what it hands
//! out may be used from any thread and any runtime, because the connections live on a runtime of their own.

pub mod link;
pub mod runtime;
