//! The writes of one commit while its checks are still being made. Every transaction is checked against what those
//! before it wrote, then against the tables; at the end the overlay is the one batch that goes to the journal, with a
//! key in it at most once (fjall gives all writes of a batch the same number, so two for one key would have no order).

use std::collections::HashMap;
use std::time::Duration;

use fjall::{OwnedWriteBatch, Slice};
use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::keys::{expiry_key, member_key};
use super::tables::{Held, Place, Stored, Tables};
use crate::store::{Check, Expect, Outcome, Txn, Write};

/// The value of what has none.
const NOTHING: [u8; 0] = [];

pub(super) struct Overlay<'a> {
    tables: &'a Tables,
    now: u64,
    /// In the order they came: neighbours are of one kind and one time, so they go to the same ends of the same tables.
    values: IndexMap<Place, Option<Stored>, RandomState>,
    members: IndexMap<Slice, Membership, RandomState>,
    /// The keys of values that end, with their end.
    ending: Vec<(u64, String)>,
}

struct Membership {
    set: String,
    is_in: bool,
}

impl<'a> Overlay<'a> {
    pub fn new(tables: &'a Tables, now: u64) -> Self {
        Self { tables, now, values: IndexMap::default(), members: IndexMap::default(), ending: Vec::new() }
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
        let place = Place::of(&check.key);
        let read;
        let found = if let Some(written) = self.values.get(&place) {
            written.as_ref().filter(|stored| stored.is_alive(self.now)).map(|stored| &*stored.value)
        } else {
            read = self.tables.value(&place, self.now)?;
            read.as_ref().map(Held::value)
        };
        Ok(match &check.expect {
            Expect::Absent => found.is_none(),
            Expect::Present => found.is_some(),
            Expect::Is(value) => found == Some(value),
        })
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Put { key, value, ttl } => {
                let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                let expires = ttl.map_or(0, |ttl| self.now.saturating_add(millis(ttl)));
                self.values.insert(Place::of(&key), Some(Stored { expires, value }));
                if expires > 0 {
                    self.ending.push((expires, key));
                }
            }
            Write::Delete { key } => {
                self.values.insert(Place::of(&key), None);
            }
            Write::Add { set, member } => self.put_member(set, &member, true),
            Write::Remove { set, member } => self.put_member(set, &member, false),
        }
    }

    fn put_member(&mut self, set: String, member: &[u8], is_in: bool) {
        self.members.insert(member_key(&set, member).into(), Membership { set, is_in });
    }

    /// How much the sizes of those sets change whose size is known.
    pub fn changes(&self, counts: &HashMap<String, u64>) -> fjall::Result<Vec<(String, i64)>> {
        let mut changes = Vec::new();
        for (key, Membership { set, is_in }) in self.members.iter().filter(|(_, m)| counts.contains_key(&m.set)) {
            let was_in = self.tables.members(set).contains_key(key)?;
            if was_in != *is_in {
                changes.push((set.clone(), if *is_in { 1 } else { -1 }));
            }
        }
        Ok(changes)
    }

    /// The earliest end of a value that was written.
    pub fn earliest_expiry(&self) -> Option<u64> {
        self.ending.iter().map(|(expires, _)| *expires).min()
    }

    pub fn fill(self, batch: &mut OwnedWriteBatch) {
        for (place, stored) in self.values {
            let values = self.tables.values(&place);
            match stored {
                Some(stored) => batch.insert(values, place.name, stored.encode()),
                None => batch.remove(values, place.name),
            }
        }
        for (key, Membership { set, is_in }) in self.members {
            let members = self.tables.members(&set);
            if is_in {
                batch.insert(members, key, NOTHING);
            } else {
                batch.remove(members, key);
            }
        }
        for (expires, key) in self.ending {
            batch.insert(&self.tables.expiry, expiry_key(expires, key.as_bytes()), NOTHING);
        }
    }
}
