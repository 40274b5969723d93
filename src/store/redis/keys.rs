//! What keys and sets are called in Redis. They have names of their own each, as in the other engine, so that a key
//! and a set may be called the same.

pub struct Keys {
    prefix: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub fn value(&self, key: &str) -> String {
        [&self.prefix, ":v:", key].concat()
    }

    pub fn set(&self, set: &str) -> String {
        [&self.prefix, ":s:", set].concat()
    }
}
