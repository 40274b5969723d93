//! The one thread that writes the state. Everything that waits goes to fjall as one batch: whoever commits leaves its own
//! thread to others meanwhile, and under load the journal is paid for once for many.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::tables::Tables;
use super::{CATCH_UP, CATCH_UP_POLL, Shared, unavailable};
use crate::store::{Outcome, StoreError, Txn};

/// A group takes no more transactions beyond this many.
const GROUP_TXNS: usize = 1_024;

/// What one caller wants committed. Callers wait for the answer, so what waits is bounded by how many they are.
struct Commit {
    txns: Vec<Txn>,
    done: oneshot::Sender<Result<Vec<Outcome>, StoreError>>,
}

/// The way to the thread, which ends with it.
pub(super) struct Committer {
    commits: Option<mpsc::UnboundedSender<Commit>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let (commits, waiting) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("state-commit".to_owned());
        Ok(Self { commits: Some(commits), thread: Some(thread.spawn(move || run(&shared, waiting))?) })
    }

    /// Comes back when the transactions are written. Dropping the future does not take them back.
    pub async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
        let closed = || unavailable("it was closed");
        let (done, outcomes) = oneshot::channel();
        let commits = self.commits.as_ref().ok_or_else(closed)?;
        commits.send(Commit { txns, done }).map_err(|_| closed())?;
        outcomes.await.map_err(|_| closed())?
    }
}

impl Drop for Committer {
    /// Comes back when what was committed is written.
    fn drop(&mut self) {
        self.commits = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the state's committer had panicked");
        }
    }
}

fn run(shared: &Arc<Shared>, mut waiting: mpsc::UnboundedReceiver<Commit>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut txns = first.txns;
        let mut callers = vec![(txns.len(), first.done)];
        while txns.len() < GROUP_TXNS
            && let Ok(next) = waiting.try_recv()
        {
            callers.push((next.txns.len(), next.done));
            txns.extend(next.txns);
        }
        let written = catch_up(shared).and_then(|()| shared.write(|tables, writer| writer.commit(tables, txns)));
        let mut outcomes = written.map(Vec::into_iter);
        for (count, done) in callers {
            let answer = outcomes.as_mut().map(|outcomes| outcomes.by_ref().take(count).collect());
            // Whoever asked may be gone; it is written all the same.
            let _ = done.send(answer.map_err(|error| error.clone()));
        }
    }
}

/// Waits while the writes have run ahead of what fjall has flushed and merged.
fn catch_up(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let begun = Instant::now();
    let is_behind = || shared.read(Tables::is_behind).inspect_err(|_| Shared::reopen_later(shared));
    if !is_behind()? {
        return Ok(());
    }
    while is_behind()? {
        if begun.elapsed() > CATCH_UP {
            return Err(unavailable("the disk does not keep up"));
        }
        std::thread::sleep(CATCH_UP_POLL);
    }
    metrics::histogram!(crate::metrics::STATE_STALLS).record(begun.elapsed().as_secs_f64());
    Ok(())
}
