//! Puts a load on a server, from one thread: a task for each connection, and one that keeps the time.
//!
//! Open loop: arrivals are released when they are due and whichever connection is free takes the next one; if none is
//! free it waits, and the wait counts. Closed loop: every connection calls again as soon as it is answered.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::http::{CallError, Connection, Reply, accepted_of};
use super::schedule::Schedule;
use super::tally::Tally;
use super::workload::Workload;

/// How often due arrivals are released. An arrival is late by this at most, and that counts as latency.
const TICK: Duration = Duration::from_millis(1);
/// A connection that failed comes back after this.
const PAUSE: Duration = Duration::from_millis(50);

pub enum Pace {
    /// On a schedule of calls.
    Open(Schedule),
    /// As fast as answers come, for this long.
    For(Duration),
    /// As fast as answers come, this many calls.
    Calls(u64),
}

#[derive(Clone, Copy)]
pub struct Client {
    pub address: SocketAddr,
    pub connections: usize,
    pub timeout: Duration,
}

struct Load {
    workload: Rc<Workload>,
    pace: Pace,
    begun: Instant,
    taken: Cell<u64>,
    released: Semaphore,
    tally: RefCell<Tally>,
}

/// Calls until the pace says stop, and comes back when the last answer is there.
///
/// # Errors
/// When the connections cannot be opened.
pub async fn put(client: Client, workload: Rc<Workload>, pace: Pace) -> anyhow::Result<Tally> {
    let mut connections = Vec::with_capacity(client.connections);
    for _ in 0..client.connections {
        let mut connection = Connection::new(client.address, client.timeout);
        connection.open().await?;
        connections.push(connection);
    }
    let tally = RefCell::new(Tally::new()?);
    let (taken, released) = (Cell::new(0), Semaphore::new(0));
    let load = Rc::new(Load { workload, pace, begun: Instant::now(), taken, released, tally });
    let tasks = LocalSet::new();
    for connection in connections {
        tasks.spawn_local(calls(load.clone(), connection));
    }
    if let Pace::Open(_) = load.pace {
        tasks.spawn_local(release(load.clone(), client.connections));
    }
    tasks.await;
    let mut tally = load.tally.replace(Tally::new()?);
    tally.elapsed = load.begun.elapsed();
    Ok(tally)
}

/// Releases arrivals as they are due, and in the end every connection that waits for more.
async fn release(load: Rc<Load>, connections: usize) {
    let Pace::Open(schedule) = &load.pace else { return };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let (mut released, all) = (0, schedule.arrivals());
    while released < all {
        ticks.tick().await;
        let due = schedule.due_by(load.begun.elapsed());
        load.released.add_permits(usize::try_from(due - released).unwrap_or(0));
        released = due;
    }
    load.released.add_permits(connections);
}

impl Load {
    /// When the next call is due, since the beginning; none when there are no more.
    async fn next(&self) -> Option<Duration> {
        let take = || self.taken.replace(self.taken.get() + 1);
        match &self.pace {
            Pace::Open(schedule) => {
                self.released.acquire().await.ok()?.forget();
                schedule.due(take())
            }
            Pace::For(length) => Some(self.begun.elapsed()).filter(|elapsed| elapsed < length),
            Pace::Calls(calls) => (take() < *calls).then(|| self.begun.elapsed()),
        }
    }

    fn note(&self, reply: Result<Reply<'_>, CallError>, due: Duration, took: Duration) {
        let batch = self.workload.batch;
        let mut tally = self.tally.borrow_mut();
        match reply {
            Ok(reply) if reply.status == 202 => {
                let accepted = if batch > 1 { accepted_of(reply.body).unwrap_or(0) } else { 1 };
                tally.accept(batch, accepted, due, took);
            }
            Ok(reply) => tally.refuse(batch, reply.status),
            Err(error) => tally.fail(batch, &error),
        }
    }
}

async fn calls(load: Rc<Load>, mut connection: Connection) {
    let mut bytes = Vec::new();
    while let Some(due) = load.next().await {
        load.workload.next(&mut bytes);
        let reply = connection.call(&bytes).await;
        let took = load.begun.elapsed().saturating_sub(due);
        let failed = reply.is_err();
        load.note(reply, due, took);
        if failed {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
