//! What keys and sets are called in Redis. They have names of their own each, as in the other engine, so that a key
//! and a set may be called the same.

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

pub struct Keys {
    value: String,
    set: String,
    log: String,
}

/// A name that is written straight into a command: there are many, and they are long.
pub struct Name<'a>([&'a str; 2]);

impl Keys {
    pub fn new(prefix: &str) -> Self {
        let name = |kind: &str| format!("{prefix}:{kind}:");
        Self { value: name("v"), set: name("s"), log: name("l") }
    }

    pub fn value<'a>(&'a self, key: &'a str) -> Name<'a> {
        Name([&self.value, key])
    }

    /// A set's members, in order.
    pub fn set<'a>(&'a self, set: &'a str) -> Name<'a> {
        Name([&self.set, set])
    }

    /// What was added to a set and removed from it and is not among its members yet.
    pub fn log<'a>(&'a self, set: &'a str) -> Name<'a> {
        Name([&self.log, set])
    }
}

impl ToRedisArgs for Name<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut arg = out.writer_for_next_arg();
        for part in self.0 {
            // Writing to memory cannot fail.
            let _ = std::io::Write::write_all(&mut arg, part.as_bytes());
        }
    }
}

impl ToSingleRedisArg for Name<'_> {}
