//! What a value may be where its type does not say it. A key without a rule: text is free, a whole number is at
//! least 1, any other number at least 0.

use std::fmt;

use config::ValueKind;

/// What is allowed for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Free,
    Between(f64, f64),
    AtLeast(f64),
    OneOf(&'static [&'static str]),
    /// An address that begins with one of these.
    Url(&'static [&'static str]),
    /// The same, or nothing.
    UrlOrEmpty(&'static [&'static str]),
    /// `host:port`.
    Listen,
    /// What fits into the names of queues and keys.
    Name,
    /// What fits into the name of an HTTP header.
    Header,
}

const REDIS_URLS: &[&str] =
    &["redis://", "rediss://", "redis-sentinel://", "rediss-sentinel://", "redis+sentinel://", "rediss+sentinel://"];

/// A key's `*` stands for any one part of it.
const RULES: &[(&str, Rule)] = &[
    ("engine", Rule::OneOf(&["embedded", "cluster"])),
    ("prefix", Rule::Name),
    ("roles", Rule::OneOf(&["ingestion", "scheduler", "supervisor", "services"])),
    ("log.format", Rule::OneOf(&["text", "json"])),
    ("http.listen", Rule::Listen),
    ("http.workers", Rule::Between(0.0, 1024.0)),
    ("http.max_body_bytes", Rule::Between(1024.0, 16_777_216.0)),
    ("http.max_batch_bytes", Rule::Between(1024.0, 268_435_456.0)),
    ("http.client_header", Rule::Header),
    ("rabbitmq.url", Rule::Url(&["amqp://", "amqps://"])),
    ("rabbitmq.retention_bytes", Rule::AtLeast(1_000_000.0)),
    ("rabbitmq.retention_hours", Rule::Between(0.0, 876_000.0)),
    ("rabbitmq.segment_bytes", Rule::Between(1_000_000.0, 3_000_000_000.0)),
    ("redis.url", Rule::Url(REDIS_URLS)),
    ("embedded.retention_bytes", Rule::AtLeast(0.0)),
    ("embedded.retention_hours", Rule::Between(0.0, 876_000.0)),
    ("embedded.segment_bytes", Rule::AtLeast(65_536.0)),
    ("partitions.count", Rule::Between(1.0, 1024.0)),
    ("partitions.assignment", Rule::OneOf(&["dynamic", "static"])),
    ("partitions.readers", Rule::Between(1.0, 64.0)),
    ("partitions.lease_ms", Rule::Between(500.0, 600_000.0)),
    ("ingestion.writes_in_flight", Rule::Between(1.0, 64.0)),
    ("ingestion.linger_ms", Rule::Between(0.0, 1_000.0)),
    ("ingestion.batch_requests", Rule::Between(1.0, 100_000.0)),
    ("ingestion.deadline_s", Rule::Between(1.0, 31_536_000.0)),
    ("ingestion.recent_bytes", Rule::AtLeast(0.0)),
    ("scheduler.mode", Rule::OneOf(&["stream", "batch", "queue"])),
    ("scheduler.batch", Rule::Between(1.0, 1_000_000.0)),
    ("scheduler.max_in_flight", Rule::Between(1.0, 1_000_000.0)),
    ("agents.*.url", Rule::UrlOrEmpty(&["http://", "https://"])),
    ("agents.*.attempts", Rule::Between(1.0, 1000.0)),
    ("agents.*.batch", Rule::Between(1.0, 10_000.0)),
    ("agents.*.concurrency", Rule::Between(1.0, 10_000.0)),
    ("agents.*.breaker_failures", Rule::Between(1.0, 1_000_000.0)),
    ("compensation.in_flight", Rule::Between(1.0, 10_000.0)),
    ("compensation.attempts", Rule::Between(1.0, 1000.0)),
    ("retention.batch", Rule::Between(1.0, 10_000.0)),
    ("services.max_size", Rule::OneOf(&["Small", "Medium", "Large"])),
    ("services.zone_resolution", Rule::Between(0.0, 15.0)),
    ("demo.accounts", Rule::Between(0.0, 1_000_000.0)),
    ("demo.drones", Rule::Between(0.0, 1_000_000.0)),
    ("demo.seed", Rule::AtLeast(0.0)),
    ("demo.time_factor", Rule::Between(0.001, 100_000.0)),
    ("faults.*.latency_ms", Rule::Between(0.0, 600_000.0)),
    ("faults.*.latency", Rule::OneOf(&["fixed", "heavy"])),
    ("faults.*.error_rate", Rule::Between(0.0, 1.0)),
    ("faults.*.lost_reply_rate", Rule::Between(0.0, 1.0)),
    ("faults.*.panic_rate", Rule::Between(0.0, 1.0)),
    ("crashes.point", Rule::OneOf(crate::crashes::NAMES)),
];

/// Keys whose names end like this hold a time; a century is more than enough and keeps sums from overflowing.
const TIMES: [(&str, f64); 2] = [("_ms", 3.2e12), ("_s", 3.2e9)];

impl Rule {
    /// The rule of a key whose default is `default`.
    #[must_use]
    pub fn of(key: &str, default: &ValueKind) -> Self {
        if let Some((_, rule)) = RULES.iter().find(|(pattern, _)| matches(pattern, key)) {
            return *rule;
        }
        if let Some((_, most)) = TIMES.iter().find(|(suffix, _)| key.ends_with(suffix)) {
            return Self::Between(1.0, *most);
        }
        match default {
            ValueKind::I64(_) => Self::AtLeast(1.0),
            ValueKind::Float(_) => Self::AtLeast(0.0),
            _ => Self::Free,
        }
    }

    /// Whether a value of the right type keeps the rule. A list keeps it when each of its members does; out of a
    /// few names at least one is chosen.
    #[must_use]
    pub fn allows(&self, value: &ValueKind) -> bool {
        match value {
            ValueKind::Array(members) => {
                let chosen = !(members.is_empty() && matches!(self, Self::OneOf(_)));
                chosen && members.iter().all(|member| self.allows(&member.kind))
            }
            ValueKind::String(text) => self.allows_text(text),
            #[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
            ValueKind::I64(number) => self.allows_number(*number as f64),
            ValueKind::Float(number) => self.allows_number(*number),
            _ => true,
        }
    }

    fn allows_number(&self, number: f64) -> bool {
        match self {
            Self::Between(least, most) => (*least..=*most).contains(&number),
            Self::AtLeast(least) => number.is_finite() && number >= *least,
            _ => true,
        }
    }

    fn allows_text(&self, text: &str) -> bool {
        let address =
            |schemes: &[&str]| schemes.iter().any(|s| text.strip_prefix(s).is_some_and(|rest| !rest.is_empty()));
        match self {
            Self::OneOf(names) => names.contains(&text),
            Self::Url(schemes) => address(schemes),
            Self::UrlOrEmpty(schemes) => text.is_empty() || address(schemes),
            Self::Listen => {
                text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            }
            Self::Name => {
                (1..=32).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            }
            Self::Header => !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            Self::Free | Self::Between(..) | Self::AtLeast(_) => true,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("anything"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
            // The empty name, where there is one, stands for none of them.
            Self::OneOf(["", names @ ..]) => write!(f, "nothing, or {}", names.join(", ")),
            Self::OneOf(names) => f.write_str(&names.join(", ")),
            Self::Url(schemes) => write!(f, "an address that begins with {}", schemes.join(" or ")),
            Self::UrlOrEmpty(schemes) => write!(f, "nothing, or an address that begins with {}", schemes.join(" or ")),
            Self::Listen => f.write_str("host:port, such as 127.0.0.1:8080"),
            Self::Name => f.write_str("1 to 32 letters, digits, '_' and '-'"),
            Self::Header => f.write_str("letters, digits and '-'"),
        }
    }
}

fn matches(pattern: &str, key: &str) -> bool {
    pattern.split('.').count() == key.split('.').count()
        && pattern.split('.').zip(key.split('.')).all(|(p, k)| p == "*" || p == k)
}
