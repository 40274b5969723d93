//! The writes of one commit while its checks are still being made. Every transaction is checked against what those
//! before it wrote, then against the tables; at the end the overlay is the one batch that goes to the journal, with a
//! key in it at most once (fjall gives all writes of a batch the same number, so two for one key would have no order).

use std::collections::HashMap;

use bytes::Bytes;
use fjall::OwnedWriteBatch;

use super::tables::{Stored, Tables, expiry_key, member_key};
use crate::domain::Map;
use crate::store::{Check, Expect, Outcome, Txn, Write};

pub(super) struct Overlay<'a> {
    tables: &'a Tables,
    now: u64,
    values: Map<String, Option<Stored>>,
    /// By set and member: in or out.
    members: Map<(String, Bytes), bool>,
}

impl<'a> Overlay<'a> {
    pub fn new(tables: &'a Tables, now: u64) -> Self {
        Self { tables, now, values: Map::default(), members: Map::default() }
    }

    pub fn apply(&mut self, txn: Txn) -> fjall::Result<Outcome> {
        for check in &txn.checks {
            if !self.holds(check)? {
                return Ok(Outcome::Conflict);
            }
        }
        for write in txn.writes {
            self.write(write);
        }
        Ok(Outcome::Done)
    }

    fn holds(&self, check: &Check) -> fjall::Result<bool> {
        let read;
        let stored = if let Some(written) = self.values.get(&check.key) {
            written.as_ref().filter(|stored| stored.is_alive(self.now))
        } else {
            read = self.tables.value(&check.key, self.now)?;
            read.as_ref()
        };
        Ok(match &check.expect {
            Expect::Absent => stored.is_none(),
            Expect::Present => stored.is_some(),
            Expect::Is(value) => stored.is_some_and(|stored| stored.value == value),
        })
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Put { key, value, ttl } => {
                let millis = |ttl: std::time::Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                let expires = ttl.map_or(0, |ttl| self.now.saturating_add(millis(ttl)));
                self.values.insert(key, Some(Stored { expires, value }));
            }
            Write::Delete { key } => {
                self.values.insert(key, None);
            }
            Write::Add { set, member } => {
                self.members.insert((set, member), true);
            }
            Write::Remove { set, member } => {
                self.members.insert((set, member), false);
            }
        }
    }

    /// How much the sizes of those sets change whose size is known.
    pub fn changes(&self, counts: &HashMap<String, u64>) -> fjall::Result<Vec<(String, i64)>> {
        let mut changes = Vec::new();
        for ((set, member), is_in) in self.members.iter().filter(|((set, _), _)| counts.contains_key(set)) {
            let was_in = self.tables.members(set).contains_key(member_key(set, member))?;
            if was_in != *is_in {
                changes.push((set.clone(), if *is_in { 1 } else { -1 }));
            }
        }
        Ok(changes)
    }

    /// The earliest end of a value that was written.
    pub fn earliest_expiry(&self) -> Option<u64> {
        self.values.values().flatten().map(|stored| stored.expires).filter(|expires| *expires > 0).min()
    }

    pub fn fill(self, batch: &mut OwnedWriteBatch) {
        for (key, stored) in self.values {
            let values = self.tables.values(key.as_bytes());
            match stored {
                Some(stored) => {
                    if stored.expires > 0 {
                        batch.insert(&self.tables.expiry, expiry_key(stored.expires, key.as_bytes()), Bytes::new());
                    }
                    batch.insert(values, key, stored.encode());
                }
                None => batch.remove(values, key),
            }
        }
        for ((set, member), is_in) in self.members {
            let (members, key) = (self.tables.members(&set), member_key(&set, &member));
            if is_in {
                batch.insert(members, key, Bytes::new());
            } else {
                batch.remove(members, key);
            }
        }
    }
}
