//! The state on this disk, in fjall. One thread checks and writes ([`committer`]), and what it writes goes to fjall's
//! journal as one batch, so commits are durable in their order: a crash of the process loses none, a power cut leaves a
//! prefix. There is no fsync in a commit; [`EmbeddedState::sync`] makes one.
//!
//! A full disk: the commit is refused as a whole and fjall takes no more writes. Reading goes on. A thread opens the
//! database anew after a moment, and again until that works, so writing comes back by itself once there is room.
//!
//! A value with a `ttl` is absent as soon as its time is over; commits purge a few such values each. The size of a set is
//! counted once when it is first asked for and kept up to date from then on.

mod committer;
mod keys;
mod overlay;
mod tables;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::PersistMode;

use self::committer::Committer;
use self::keys::{expiry_key, split_expiry};
use self::overlay::Overlay;
use self::tables::{Held, Place, Tables};
use super::{Outcome, Scan, State, StoreError, Txn, Write};
use crate::domain::time::now_millis;

/// How many values whose time is over one commit removes at most, unless it is large itself.
const PURGE_STEP: usize = 64;
/// How many sets' sizes are kept; beyond that they are counted anew.
const COUNTED_SETS: usize = 1024;
/// Longer keys than fjall takes, with what we put around them, are refused.
const KEY_BYTES: usize = 60_000;
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// How long a commit waits for flushing and merging to catch up.
const CATCH_UP: Duration = Duration::from_secs(10);
const CATCH_UP_POLL: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process uses {}: stop it first, or use another data directory", .0.display())]
    InUse(PathBuf),
    #[error("the state in {} cannot be opened: {reason}", .path.display())]
    Failed { path: PathBuf, reason: String },
}

#[derive(Clone)]
pub struct EmbeddedState {
    /// Dropped first, so that nothing is written any more when the tables are closed.
    committer: Arc<Committer>,
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    /// Nothing while the database is being opened anew.
    tables: RwLock<Option<Tables>>,
    writer: Mutex<Writer>,
    reopening: AtomicBool,
}

/// What only the holder of the commit lock touches.
#[derive(Default)]
struct Writer {
    counts: HashMap<String, u64>,
    /// No value ends before this time.
    next_expiry: u64,
}

impl EmbeddedState {
    /// Opens the state in a directory of its own, making it when there is none.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let tables = Tables::open(path).map_err(|error| match error {
            fjall::Error::Locked => OpenError::InUse(path.to_owned()),
            error => OpenError::Failed { path: path.to_owned(), reason: reason(&error) },
        })?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            tables: RwLock::new(Some(tables)),
            writer: Mutex::default(),
            reopening: AtomicBool::new(false),
        });
        let failed = |error: std::io::Error| OpenError::Failed { path: path.to_owned(), reason: error.to_string() };
        let committer = Arc::new(Committer::start(shared.clone()).map_err(failed)?);
        Ok(Self { committer, shared })
    }

    /// Makes everything committed so far survive a power cut.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.shared.write(|tables, _| tables.db.persist(PersistMode::SyncAll))
    }
}

impl Shared {
    fn read<T>(&self, read: impl FnOnce(&Tables) -> fjall::Result<T>) -> Result<T, StoreError> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let tables = tables.as_ref().ok_or_else(|| unavailable("it is being opened anew"))?;
        read(tables).map_err(|error| unavailable(reason(&error)))
    }

    fn write<T>(
        self: &Arc<Self>,
        write: impl FnOnce(&Tables, &mut Writer) -> fjall::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer();
        self.read(|tables| write(tables, &mut writer)).inspect_err(|_| {
            *writer = Writer::default();
            Self::reopen_later(self);
        })
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the database closed and opened again, after a moment, by a thread of its own: replaying the journal takes
    /// time that no caller should wait. One such thread at a time.
    fn reopen_later(this: &Arc<Self>) {
        if this.reopening.swap(true, Ordering::SeqCst) {
            return;
        }
        let weak = Arc::downgrade(this);
        let thread = std::thread::Builder::new().name("state-reopen".to_owned()).spawn(move || Self::reopen(&weak));
        if let Err(error) = thread {
            this.reopening.store(false, Ordering::SeqCst);
            tracing::error!(%error, "cannot start a thread to open the state anew");
        }
    }

    fn reopen(this: &Weak<Self>) {
        loop {
            std::thread::sleep(REOPEN_AFTER);
            let Some(shared) = this.upgrade() else { return };
            drop(shared.swap(None));
            match Tables::open(&shared.path) {
                Ok(tables) => {
                    shared.swap(Some(tables));
                    shared.reopening.store(false, Ordering::SeqCst);
                    tracing::info!("the state was opened anew after a failed write");
                    return;
                }
                Err(error) => tracing::warn!(error = reason(&error), "the state cannot be opened anew yet"),
            }
        }
    }

    fn swap(&self, tables: Option<Tables>) -> Option<Tables> {
        std::mem::replace(&mut *self.tables.write().unwrap_or_else(PoisonError::into_inner), tables)
    }
}

#[async_trait]
impl State for EmbeddedState {
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.shared.read(|tables| tables.get(keys, now()))
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
        if txns.iter().flat_map(|txn| &txn.writes).any(|write| !(1..=KEY_BYTES).contains(&key_bytes(write))) {
            return Err(unavailable(format!("a key is empty or longer than {KEY_BYTES} bytes")));
        }
        self.committer.commit(txns).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<Bytes>, StoreError> {
        self.shared.read(|tables| tables.scan(scan))
    }

    async fn count(&self, set: &str) -> Result<u64, StoreError> {
        let mut writer = self.shared.writer();
        self.shared.read(|tables| writer.count(tables, set))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.shared.reopening.load(Ordering::SeqCst) {
            return Err(unavailable("a write failed; it is being opened anew"));
        }
        self.shared.read(|_| Ok(()))
    }
}

impl Writer {
    fn commit(&mut self, tables: &Tables, txns: Vec<Txn>) -> fjall::Result<Vec<Outcome>> {
        let now = now();
        self.purge(tables, now, PURGE_STEP.max(4 * txns.len()))?;
        let mut overlay = Overlay::new(tables, now);
        let outcomes = txns.into_iter().map(|txn| overlay.apply(txn)).collect::<fjall::Result<_>>()?;
        let changes = overlay.changes(&self.counts)?;
        let earliest = overlay.earliest_expiry();
        let mut batch = tables.db.batch();
        overlay.fill(&mut batch);
        batch.commit()?;
        for (set, change) in changes {
            self.counts.entry(set).and_modify(|count| *count = count.saturating_add_signed(change));
        }
        self.next_expiry = self.next_expiry.min(earliest.unwrap_or(u64::MAX));
        Ok(outcomes)
    }

    fn count(&mut self, tables: &Tables, set: &str) -> fjall::Result<u64> {
        if let Some(count) = self.counts.get(set) {
            return Ok(*count);
        }
        let count = tables.count(set)?;
        if self.counts.len() >= COUNTED_SETS {
            self.counts.clear();
        }
        self.counts.insert(set.to_owned(), count);
        Ok(count)
    }

    /// Removes a few values whose time is over.
    fn purge(&mut self, tables: &Tables, now: u64, most: usize) -> fjall::Result<()> {
        if now < self.next_expiry {
            return Ok(());
        }
        let mut batch = tables.db.batch();
        let mut entries = tables.expiry.range(expiry_key(self.next_expiry, b"")..);
        self.next_expiry = loop {
            let Some(entry) = entries.next() else { break u64::MAX };
            let entry = entry.key()?;
            let Some((expires, key)) = split_expiry(&entry) else { continue };
            if expires > now || batch.len() >= most {
                break expires;
            }
            let place = Place::of(key);
            let values = tables.values(&place);
            if values.get(&place.name)?.and_then(Held::read).is_some_and(|held| held.expires == expires) {
                batch.remove(values, place.name);
            }
            batch.remove(&tables.expiry, entry);
        };
        batch.commit()
    }
}

fn now() -> u64 {
    now_millis().unsigned_abs()
}

fn key_bytes(write: &Write) -> usize {
    match write {
        Write::Put { key, .. } | Write::Delete { key } => key.len(),
        Write::Add { set, member } | Write::Remove { set, member } => set.len() + 1 + member.len(),
    }
}

fn unavailable(reason: impl Into<String>) -> StoreError {
    StoreError { part: "embedded state", reason: reason.into() }
}

fn reason(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => "no room on the disk".to_owned(),
        fjall::Error::Poisoned => "an earlier write failed; it is being opened anew".to_owned(),
        error => format!("{error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_crash_left_unflushed_does_not_keep_writes_out() {
        let folder = tempfile::tempdir().unwrap();
        {
            // Memtables so large that none is sealed: all of it is in the journal alone.
            let db = fjall::Database::builder(folder.path()).open().unwrap();
            let options = || fjall::KeyspaceCreateOptions::default().max_memtable_size(1 << 30);
            let keyspace = db.keyspace("values", options).unwrap();
            for n in 0..40_u32 {
                keyspace.insert(format!("k/{n}"), vec![0; 1 << 20]).unwrap();
            }
        }
        let state = EmbeddedState::open(folder.path()).unwrap();
        state.commit(vec![Txn::new().put("k/a", "1")]).await.unwrap();
    }

    /// What ends must be purged faster than it can come, also when it comes in large groups.
    #[tokio::test]
    async fn a_large_commit_purges_more_than_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let state = EmbeddedState::open(folder.path()).unwrap();
        let ending = |n: u32| Txn::new().put_for(format!("tomb/{n}"), "1", Duration::from_millis(1));
        let outlasting = |n: u32| Txn::new().put(format!("tomb/kept-{n}"), "1");
        let left = |state: &EmbeddedState| state.shared.read(|tables| tables.expiry.len()).unwrap();
        state.commit((0..1_500).map(ending).collect()).await.unwrap();
        assert_eq!(left(&state), 1_500);
        tokio::time::sleep(Duration::from_millis(10)).await;
        state.commit((0..500).map(outlasting).collect()).await.unwrap();
        assert!(left(&state) <= 1_000, "{}", left(&state));
        state.commit((0..500).map(outlasting).collect()).await.unwrap();
        assert_eq!(left(&state), 0);
        let keys = ["tomb/7", "tomb/kept-7"].map(str::to_owned);
        assert_eq!(state.get(&keys).await.unwrap(), [None, Some(Bytes::from_static(b"1"))]);
    }
}
