//! How the state lies in fjall: its keyspaces, their keys, and sizes that keep the memory bounded.
//!
//! - `values` and `values-workflow`, `values-delivery` and so on: key → 8 bytes of expiry (milliseconds since the
//!   epoch, 0 for never), then the value. A key's kind is what stands before its first slash; the kinds that every
//!   workflow writes have a keyspace each, whose keys go without the kind's name. Ids grow with time, so a kind's tables
//!   hardly overlap and are moved down instead of merged; and to look for a tombstone where there is none costs next to
//!   nothing.
//! - `members` and `members-status`: set, a zero byte, member → nothing. Names of sets hold no zero byte. The sets of
//!   workflows by their status have a keyspace of their own for the same reason: they grow at their ends. One member
//!   is looked for only to keep the sizes of sets, so there are no filters.
//! - `expiry`: 8 bytes of expiry, key → nothing: what is to be purged when. An entry says nothing by itself: the
//!   value may have been written again since, with another expiry.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{FilterPolicy, PinningPolicy};
use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Slice};

use super::keys::{member_key, range_of, value_key};
use crate::store::Scan;

const MIB: u64 = 1024 * 1024;
const CACHE_BYTES: u64 = 24 * MIB;
const JOURNAL_BYTES: u64 = 128 * MIB;
/// fjall sleeps without end in a write when it has 4 unflushed memtables or 30 unmerged tables. Should its workers
/// have died of a full disk that would be for ever, so we wait ourselves, before that.
const SEALED_MEMTABLES: usize = 3;
const UNMERGED_TABLES: usize = 24;
/// What is written and not flushed is in memory. While a large merge holds the worker up no more than this comes together.
const UNFLUSHED_BYTES: u64 = 32 * MIB;
/// Tables that come together before they are merged into the next level. A merge reads and writes most of that level, so
/// twice the usual number halves what merging costs, for a few more tables to look through.
const MERGED_TABLES: u8 = 8;
/// How the names of the sets in `members-status` begin.
const STATUS_SETS: &str = "workflows/status/";

/// The kinds of keys with a keyspace of their own, and the size of its memtable.
const KINDS: [(&str, u64); 6] = [
    ("workflow", 4 * MIB),
    ("delivery", 2 * MIB),
    ("package", 2 * MIB),
    ("resv", 2 * MIB),
    ("cal", 4 * MIB),
    ("tomb", MIB),
];

pub(super) struct Tables {
    pub db: Database,
    /// In the order of [`KINDS`], the one for all others last.
    values: Vec<Keyspace>,
    members: Keyspace,
    status_members: Keyspace,
    pub expiry: Keyspace,
    /// All of them, each with the size of its memtable.
    all: Vec<(Keyspace, u64)>,
}

/// Where a value is.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Its number in [`KINDS`], or one more.
    kind: usize,
    pub name: Slice,
}

impl Place {
    pub fn of(key: &str) -> Self {
        let named = |(kind, _): &(&str, u64)| key.strip_prefix(kind)?.strip_prefix('/');
        let of_kind = KINDS.iter().enumerate().find_map(|(number, kind)| Some((number, named(kind)?)));
        let (kind, name) = of_kind.unwrap_or((KINDS.len(), key));
        Self { kind, name: value_key(name) }
    }
}

/// A value and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub expires: u64,
    pub value: Bytes,
}

/// A value as it lies in its table.
pub(super) struct Held {
    pub expires: u64,
    raw: Slice,
}

impl Tables {
    pub fn open(path: &Path) -> fjall::Result<Self> {
        // One worker: with more, the first hands a compaction back to the queue as fast as it can while another is at
        // work, which costs a whole core.
        let builder = Database::builder(path).cache_size(CACHE_BYTES).max_journaling_size(JOURNAL_BYTES);
        let db = builder.worker_threads(1).open()?;
        // Blocks that are pinned stay in memory with their table, however many tables there are: all go by the cache.
        let bounded = |memtable_bytes| {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable_bytes)
                .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(MERGED_TABLES)))
                .index_block_pinning_policy(PinningPolicy::all(false))
                .filter_block_pinning_policy(PinningPolicy::all(false))
        };
        let mut all = Vec::new();
        let mut keyspace = |name: &str, memtable_bytes, filters: Option<FilterPolicy>| {
            let options = || filters.into_iter().fold(bounded(memtable_bytes), KeyspaceCreateOptions::filter_policy);
            db.keyspace(name, options).inspect(|keyspace| all.push((keyspace.clone(), memtable_bytes)))
        };
        let mut of_names = |name, memtable_bytes| keyspace(name, memtable_bytes, Some(FilterPolicy::disabled()));
        let (members, status_members) = (of_names("members", 4 * MIB)?, of_names("members-status", MIB)?);
        let expiry = of_names("expiry", MIB)?;
        let mut values = Vec::with_capacity(KINDS.len() + 1);
        for (kind, memtable_bytes) in KINDS {
            values.push(keyspace(&format!("values-{kind}"), memtable_bytes, None)?);
        }
        values.push(keyspace("values", MIB, None)?);
        let tables = Self { values, members, status_members, expiry, all, db };
        // All that a crash left unflushed is in these memtables again, and fjall has only a batch seal them: while
        // they are so large that none is let through, nobody would.
        for keyspace in tables.too_large() {
            keyspace.rotate_memtable()?;
        }
        Ok(tables)
    }

    /// The values of the keys at one moment: never half of a commit.
    pub fn get(&self, keys: &[String], now: u64) -> fjall::Result<Vec<Option<Bytes>>> {
        let snapshot = self.db.snapshot();
        let get = |key: &String| {
            let place = Place::of(key);
            let held = alive(snapshot.get(self.values(&place), &place.name)?, now);
            Ok(held.map(|held| Bytes::copy_from_slice(held.value())))
        };
        keys.iter().map(get).collect()
    }

    pub fn value(&self, place: &Place, now: u64) -> fjall::Result<Option<Held>> {
        Ok(alive(self.values(place).get(&place.name)?, now))
    }

    pub fn values(&self, place: &Place) -> &Keyspace {
        &self.values[place.kind]
    }

    /// The keyspace of a set's members.
    pub fn members(&self, set: &str) -> &Keyspace {
        if set.starts_with(STATUS_SETS) { &self.status_members } else { &self.members }
    }

    pub fn scan(&self, scan: &Scan) -> fjall::Result<Vec<Bytes>> {
        let Some(range) = range_of(scan) else { return Ok(Vec::new()) };
        let skip = scan.set.len() + 1;
        let member = |entry: fjall::Guard| Ok(Bytes::copy_from_slice(entry.key()?.get(skip..).unwrap_or_default()));
        let range = self.members(&scan.set).range(range);
        if scan.backwards {
            range.rev().take(scan.limit).map(member).collect()
        } else {
            range.take(scan.limit).map(member).collect()
        }
    }

    pub fn count(&self, set: &str) -> fjall::Result<u64> {
        let members = self.members(set).prefix(member_key(set, b""));
        members.into_iter().try_fold(0, |count, entry| entry.key().map(|_| count + 1))
    }

    /// The keyspaces whose memtable is larger than it should be and not sealed yet.
    pub fn too_large(&self) -> impl Iterator<Item = &Keyspace> {
        let too_large = |(keyspace, most): &&(Keyspace, u64)| keyspace.tree.active_memtable().size() > *most;
        self.all.iter().filter(too_large).map(|(keyspace, _)| keyspace)
    }

    /// Whether the writes have run ahead of flushing and merging; an error if these have died.
    pub fn is_behind(&self) -> fjall::Result<bool> {
        let behind = self.db.write_buffer_size() >= UNFLUSHED_BYTES
            || self.all.iter().any(|(keyspace, _)| {
                keyspace.sealed_memtable_count() >= SEALED_MEMTABLES || keyspace.l0_table_count() >= UNMERGED_TABLES
            });
        if behind {
            self.db.persist(PersistMode::Buffer)?;
        }
        Ok(behind)
    }
}

impl Stored {
    pub fn encode(&self) -> Vec<u8> {
        [&self.expires.to_be_bytes(), &*self.value].concat()
    }

    pub fn is_alive(&self, now: u64) -> bool {
        is_alive(self.expires, now)
    }
}

impl Held {
    pub fn read(raw: Slice) -> Option<Self> {
        let expires = u64::from_be_bytes(*raw.first_chunk()?);
        Some(Self { expires, raw })
    }

    pub fn value(&self) -> &[u8] {
        &self.raw[8..]
    }
}

fn is_alive(expires: u64, now: u64) -> bool {
    expires == 0 || expires > now
}

fn alive(raw: Option<Slice>, now: u64) -> Option<Held> {
    raw.and_then(Held::read).filter(|held| is_alive(held.expires, now))
}
