//! The integration tests: one binary, on real RabbitMQ and Redis servers that it starts itself.

mod support;
