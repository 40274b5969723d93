//! The one thread that writes the state. Everything that waits goes to fjall as one batch: whoever commits leaves its own
//! thread to others meanwhile, and under load the journal is paid for once for many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::{CATCH_UP, CATCH_UP_POLL, Shared, Writer, unavailable};
use crate::store::{Outcome, StoreError, Txn};

/// A group takes no more transactions beyond this many.
const GROUP_TXNS: usize = 1_024;

/// fjall asks its worker to seal a memtable with every batch that finds it too large, in a queue of a thousand. While a
/// merge holds the worker up no more than this may come together: it puts messages into that queue itself, and would wait
/// for ever in front of a full one.
const MOST_ASKED: usize = 300;

/// What one caller wants committed. Callers wait for the answer, and what nobody waits for any more is left out, so what
/// waits is bounded by how many they are.
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

    /// Comes back when the transactions are written. Whether they are is not known when the future is dropped.
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
    let mut asked = Asked::default();
    while let Some(first) = waiting.blocking_recv() {
        let caught_up = catch_up(shared, &mut asked);
        let most = if caught_up.is_ok() { GROUP_TXNS } else { usize::MAX };
        let (txns, callers) = gather(first, &mut waiting, most);
        let written = caught_up.and_then(|()| write(shared, txns));
        let mut outcomes = written.map(Vec::into_iter);
        for (count, done) in callers {
            let answer = outcomes.as_mut().map(|outcomes| outcomes.by_ref().take(count).collect());
            // Whoever asked may be gone; it is written all the same.
            let _ = done.send(answer.map_err(|error| error.clone()));
        }
    }
}

type Caller = (usize, oneshot::Sender<Result<Vec<Outcome>, StoreError>>);

/// What goes out together, and who waits for how much of it.
fn gather(first: Commit, waiting: &mut mpsc::UnboundedReceiver<Commit>, most: usize) -> (Vec<Txn>, Vec<Caller>) {
    let (mut txns, mut callers) = (Vec::new(), Vec::new());
    let mut next = Some(first);
    while let Some(commit) = next {
        if !commit.done.is_closed() {
            callers.push((commit.txns.len(), commit.done));
            txns.extend(commit.txns);
        }
        next = if txns.len() < most { waiting.try_recv().ok() } else { None };
    }
    (txns, callers)
}

/// A panic must not end the one thread that writes: it is a failed write like others, and the database is opened anew.
fn write(shared: &Arc<Shared>, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
    let write = || shared.write(|tables, writer| writer.commit(tables, txns));
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        *shared.writer() = Writer::default();
        Shared::reopen_later(shared);
        Err(unavailable("a commit panicked; it is being opened anew"))
    })
}

/// How often fjall's worker was asked to seal a memtable since there was last none too large.
#[derive(Default)]
struct Asked(usize);

impl Asked {
    /// Whether one more batch may come, which asks once for every memtable that is too large.
    fn may_go_on(&mut self, too_large: usize, behind: bool) -> bool {
        if too_large == 0 {
            self.0 = 0;
        }
        let may = !behind && self.0 < MOST_ASKED;
        self.0 += if may { too_large } else { 0 };
        may
    }
}

/// Waits while the writes have run ahead of what fjall has flushed and merged. When that takes too long its worker may
/// have stopped for good, and the database is opened anew.
fn catch_up(shared: &Arc<Shared>, asked: &mut Asked) -> Result<(), StoreError> {
    let begun = Instant::now();
    let mut stalled = false;
    loop {
        let looked = shared.read(|tables| Ok((tables.too_large().count(), tables.is_behind()?)));
        let (too_large, behind) = looked.inspect_err(|_| Shared::reopen_later(shared))?;
        if asked.may_go_on(too_large, behind) {
            break;
        }
        if begun.elapsed() > CATCH_UP {
            Shared::reopen_later(shared);
            return Err(unavailable("the disk does not keep up"));
        }
        stalled = true;
        std::thread::sleep(CATCH_UP_POLL);
    }
    if stalled {
        metrics::histogram!(crate::metrics::STATE_STALLS).record(begun.elapsed().as_secs_f64());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::EmbeddedState;
    use super::*;
    use crate::store::State;

    type Answer = oneshot::Receiver<Result<Vec<Outcome>, StoreError>>;

    fn commit(count: usize) -> (Commit, Answer) {
        let (done, answer) = oneshot::channel();
        (Commit { txns: vec![Txn::new(); count], done }, answer)
    }

    #[test]
    fn a_group_is_bounded_and_leaves_out_what_nobody_waits_for() {
        let (sender, mut waiting) = mpsc::unbounded_channel();
        let (first, _hears) = commit(2);
        let mut hear = Vec::new();
        for count in [3, 5, 7, 9] {
            let (commit, answer) = commit(count);
            assert!(sender.send(commit).is_ok());
            // The second one's caller is gone.
            hear.extend((count != 5).then_some(answer));
        }
        let (txns, callers) = gather(first, &mut waiting, 12);
        assert_eq!((txns.len(), callers.iter().map(|(count, _)| *count).collect::<Vec<_>>()), (12, vec![2, 3, 7]));
        let (first, _hears) = commit(1);
        let (txns, callers) = gather(first, &mut waiting, usize::MAX);
        assert_eq!((txns.len(), callers.len()), (10, 2), "behind a stalled disk all that waits is answered at once");
    }

    #[test]
    fn the_worker_is_not_asked_more_often_than_its_queue_holds() {
        let mut asked = Asked::default();
        let batches = (0..10_000).take_while(|_| asked.may_go_on(2, false)).count();
        assert_eq!(batches, MOST_ASKED / 2);
        assert!(!asked.may_go_on(1, false), "the worker has done nothing yet");
        assert!(!asked.may_go_on(0, true), "it has sealed them all, and is behind with the rest");
        assert!(asked.may_go_on(2, false));
    }

    #[tokio::test]
    async fn a_panic_in_a_commit_is_a_failed_write_and_the_state_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = EmbeddedState::open(folder.path()).unwrap();
        state.commit(vec![Txn::new().put("k/a", "1")]).await.unwrap();
        // fjall panics at a key of this length; the state's own `commit` would refuse it.
        let panics = state.committer.commit(vec![Txn::new().put("k".repeat(70_000), "1")]).await;
        assert!(panics.unwrap_err().to_string().contains("panicked"));
        assert!(state.ping().await.is_err(), "it is not ready until it is open again");
        let open = async {
            while state.ping().await.is_err() {
                tokio::time::sleep(CATCH_UP_POLL).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), open).await.unwrap();
        state.commit(vec![Txn::new().put("k/b", "2")]).await.unwrap();
        let values = state.get(&["k/a".to_owned(), "k/b".to_owned()]).await.unwrap();
        assert_eq!(values, [Some("1".into()), Some("2".into())]);
    }
}
