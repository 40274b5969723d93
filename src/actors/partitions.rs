//! Decides which shares of the partitions this instance reads, and starts and ends their readers.
//!
//! Dynamic: every instance says that it is alive; each takes free shares up to its fair part and gives up what is
//! above it, so that a joining instance gets its part without stopping the others, and a dead one's shares are taken
//! when its leases end. Static: the ordinal at the end of the pod's name decides.
//!
//! A lease is renewed three times in its life. One that could not be renewed for its whole life is another's by now:
//! its reader is ended; had it gone on, its checkpoint would be refused by its epoch anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;

use super::backoff::Backoff;
use super::checkpointer::{self, Checkpointer, Pace};
use super::lifeline::Lifeline;
use super::reader::{self, Begin, Offer, Plan, Reader};
use super::slot::Slot;
use super::supervisor::{Child, Retire, Supervisor, Watch};
use crate::alerts::Alerts;
use crate::config::{Assignment, Settings};
use crate::store::checkpoints::{Checkpoints, Lease, Share};
use crate::stream::Streams;

/// Starts the flow of one share: it lives with the lifeline and tells the checkpointer of each operation's end.
pub type StartFlow = Arc<dyn Fn(Share, Recipient<checkpointer::Finished>, Lifeline) -> Recipient<Offer> + Send + Sync>;

/// What every reader needs.
#[derive(Clone)]
pub struct Parts {
    pub streams: Arc<dyn Streams>,
    pub checkpoints: Checkpoints,
    pub settings: Arc<Settings>,
    pub alerts: Alerts,
    pub start_flow: StartFlow,
    /// Where the actors of a share run.
    pub arbiters: Vec<ArbiterHandle>,
}

/// A reader and its checkpointer, wherever they are at the moment.
#[derive(Clone, Default)]
pub struct Running {
    pub reader: Slot<Reader>,
    pub checkpointer: Slot<Checkpointer>,
}

/// Gives every share up after finishing what is in flight.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Drain;

#[derive(Message)]
#[rtype(result = "Vec<(Share, Running)>")]
pub struct Held;

struct HeldShare {
    lease: Lease,
    running: Running,
    renewed: Instant,
    leaving: bool,
}

pub struct Partitions {
    parts: Parts,
    supervisor: Addr<Supervisor>,
    held: HashMap<Share, HeldShare>,
    busy: bool,
    draining: bool,
    lifeline: Lifeline,
}

fn child_name(share: Share) -> String {
    format!("partition/{share}")
}

impl Partitions {
    #[must_use]
    pub fn new(parts: Parts, supervisor: Addr<Supervisor>, lifeline: Lifeline) -> Self {
        Self { parts, supervisor, held: HashMap::new(), busy: false, draining: false, lifeline }
    }

    fn lease_time(&self) -> Duration {
        self.parts.settings.partitions.lease
    }

    /// No round takes longer: when one hangs, there is time for another before the leases end.
    fn patience(&self) -> Duration {
        self.lease_time() / 2
    }

    /// One round: renew what is held, drop what is lost, take or give up shares.
    fn round(&mut self, ctx: &mut Context<Self>) {
        if self.busy || self.draining {
            return;
        }
        self.busy = true;
        // Those that are being given up too: they are kept until what is in flight is finished.
        let leases: Vec<Lease> = self.held.values().map(|h| h.lease).collect();
        let (checkpoints, wanted) = (self.parts.checkpoints.clone(), wanted(&self.parts.settings));
        let assignment = self.parts.settings.partitions.assignment;
        let renew = async move {
            let lost = checkpoints.renew(&leases).await?;
            let members = checkpoints.heartbeat().await?;
            let owners = checkpoints.owners(&wanted).await?;
            let fair = match assignment {
                Assignment::Dynamic => fair_part(wanted.len(), members, owners.into_iter().filter_map(|o| o.owner)),
                Assignment::Static => wanted.len(),
            };
            Ok((leases, lost, wanted, fair))
        };
        let renew = tokio::time::timeout(self.patience(), renew);
        ctx.spawn(renew.into_actor(self).map(|renewed, me, ctx| {
            me.busy = false;
            match renewed {
                Ok(Ok((leases, lost, wanted, fair))) => {
                    me.renewed(&leases, &lost);
                    me.balance(wanted, fair, ctx);
                }
                Ok(Err(crate::store::StoreError { reason, .. })) => me.not_renewed(&reason),
                Err(_) => me.not_renewed("no answer in time"),
            }
        }));
    }

    fn renewed(&mut self, leases: &[Lease], lost: &[Lease]) {
        let at = Instant::now();
        for lease in leases.iter().filter(|l| !lost.contains(l)) {
            if let Some(held) = self.held.get_mut(&lease.share).filter(|h| h.lease == *lease) {
                held.renewed = at;
            }
        }
        for lease in lost {
            // One that is being given up may just have been released.
            if self.held.get(&lease.share).is_some_and(|h| !h.leaving) {
                tracing::warn!(share = %lease.share, epoch = lease.epoch, "partition lost to another owner");
                self.end(lease.share);
            }
        }
    }

    fn not_renewed(&mut self, reason: &str) {
        let life = self.lease_time();
        let over: Vec<Share> = self.held.iter().filter(|(_, h)| h.renewed.elapsed() > life).map(|(s, _)| *s).collect();
        for share in over {
            tracing::warn!(%share, reason, "lease not renewed in time; reading stopped");
            self.end(share);
        }
    }

    fn balance(&mut self, wanted: Vec<Share>, fair: usize, ctx: &mut Context<Self>) {
        let staying = self.held.values().filter(|h| !h.leaving).count();
        if staying > fair {
            let surplus: Vec<Share> =
                self.held.iter().filter(|(_, h)| !h.leaving).map(|(s, _)| *s).take(staying - fair).collect();
            for share in surplus {
                self.leave(share, ctx);
            }
        } else if staying < fair {
            let mut free: Vec<Share> = wanted.into_iter().filter(|s| !self.held.contains_key(s)).collect();
            // Instances that start together look at different shares first.
            let turn = std::process::id() as usize % free.len().max(1);
            free.rotate_left(turn);
            self.take(free, fair - staying, ctx);
        }
    }

    /// Takes up to `room` of the free shares and starts their readers.
    fn take(&mut self, free: Vec<Share>, room: usize, ctx: &mut Context<Self>) {
        self.busy = true;
        let (checkpoints, patience) = (self.parts.checkpoints.clone(), self.patience());
        let take = async move {
            let mut taken = Vec::new();
            for share in free {
                if taken.len() == room {
                    break;
                }
                match tokio::time::timeout(patience, checkpoints.acquire(share)).await {
                    Ok(Ok(lease)) => taken.extend(lease),
                    Ok(Err(error)) => {
                        tracing::warn!(%share, %error, "lease not taken");
                        break;
                    }
                    // Should it be taken all the same, it is found to be our own in the next round.
                    Err(_) => break,
                }
            }
            taken
        };
        ctx.spawn(take.into_actor(self).map(|taken, me, _| {
            me.busy = false;
            for lease in taken {
                me.begin(lease);
            }
        }));
    }

    fn begin(&mut self, lease: Lease) {
        if self.draining {
            return;
        }
        tracing::info!(share = %lease.share, epoch = lease.epoch, "partition taken");
        let running = Running::default();
        let (parts, slots) = (self.parts.clone(), running.clone());
        self.supervisor.do_send(Watch(Child::new(child_name(lease.share), move |lifeline| {
            start_share(parts.clone(), lease, slots.clone(), lifeline);
        })));
        self.held.insert(lease.share, HeldShare { lease, running, renewed: Instant::now(), leaving: false });
    }

    fn end(&mut self, share: Share) {
        // model: Retire
        if self.held.remove(&share).is_some() {
            self.supervisor.do_send(Retire(child_name(share)));
        }
    }

    /// Finishes what is in flight, saves the checkpoint and gives the share up.
    fn leave(&mut self, share: Share, ctx: &mut Context<Self>) {
        let Some(held) = self.held.get_mut(&share) else { return };
        held.leaving = true;
        tracing::info!(%share, "giving the partition up");
        let finish = finish(held.running.clone(), held.lease, self.parts.checkpoints.clone());
        ctx.spawn(finish.into_actor(self).map(move |(), me, _| me.end(share)));
    }
}

/// How many shares an instance may hold: as many as the others, or one more when they do not come out even, but not
/// while another has less than its part.
fn fair_part(shares: usize, members: usize, owners: impl Iterator<Item = String>) -> usize {
    let members = members.max(1);
    let mut held = HashMap::<String, usize>::new();
    for owner in owners {
        *held.entry(owner).or_default() += 1;
    }
    let least = shares / members;
    let provided = held.values().filter(|count| **count >= least).count();
    let all_held = held.values().sum::<usize>() == shares;
    if least > 0 && all_held && provided < members { least } else { shares.div_ceil(members) }
}

/// The shares this instance may read.
fn wanted(settings: &Settings) -> Vec<Share> {
    let (count, readers) = (settings.partitions.count, settings.partitions.readers);
    match settings.partitions.assignment {
        Assignment::Dynamic => {
            (0..count).flat_map(|partition| (0..readers).map(move |reader| Share { partition, reader })).collect()
        }
        Assignment::Static => {
            let ordinal = settings.ordinal().unwrap_or(0);
            let share = Share { partition: ordinal % count, reader: ordinal / count };
            if share.reader < readers { vec![share] } else { Vec::new() }
        }
    }
}

/// Starts reader, flow and checkpointer of a share, which live and die together.
fn start_share(parts: Parts, lease: Lease, slots: Running, lifeline: Lifeline) {
    let arbiter = parts.arbiters[lease.share.partition as usize % parts.arbiters.len()].clone();
    if !arbiter.spawn_fn(move || drop(actix::spawn(run_share(parts, lease, slots, lifeline)))) {
        tracing::error!(share = %lease.share, "no thread to run the partition on");
    }
}

async fn run_share(parts: Parts, lease: Lease, slots: Running, lifeline: Lifeline) {
    let checkpoints = parts.checkpoints;
    // model: LoadCheckpoint
    let load = async || checkpoints.load(lease.share).await;
    let checkpoint = Backoff::ENGINE.until_ok("loading a checkpoint", load).await;
    let settings = &parts.settings;
    let shares = (settings.partitions.count * settings.partitions.readers).max(1) as usize;
    let plan = Plan {
        lease,
        readers: settings.partitions.readers,
        window: (settings.scheduler.max_in_flight / shares).max(1),
        mode: settings.scheduler.mode,
        batch: settings.scheduler.batch,
        checkpoint,
    };
    let pace = Pace { requests: settings.checkpoint.every_requests, time: settings.checkpoint.every };
    let reader = Reader::new(plan, parts.streams, checkpoints.clone(), parts.alerts, lifeline.share()).start();
    let checkpointer =
        Checkpointer::new(lease, checkpoints, pace, reader.clone(), checkpoint, lifeline.share()).start();
    let flow = (parts.start_flow)(lease.share, checkpointer.clone().recipient(), lifeline);
    slots.reader.set(reader.clone());
    slots.checkpointer.set(checkpointer.clone());
    reader.do_send(Begin { flow, checkpointer });
}

async fn finish(running: Running, lease: Lease, checkpoints: Checkpoints) {
    if let (Some(reader), Some(checkpointer)) = (running.reader.get(), running.checkpointer.get()) {
        if tokio::time::timeout(reader::DRAIN, reader.send(reader::Drain)).await.is_err() {
            tracing::warn!(share = %lease.share, "not all was finished in time; the rest is read again");
        }
        save_all(&checkpointer).await;
    }
    if let Err(error) = checkpoints.release(lease).await {
        tracing::warn!(share = %lease.share, %error, "lease not released; it ends by itself");
    }
}

/// Saves the checkpoint, also when another save was under way.
async fn save_all(checkpointer: &Addr<Checkpointer>) {
    for _ in 0..50 {
        if checkpointer.send(checkpointer::Flush).await.is_err() {
            return;
        }
        match checkpointer.send(checkpointer::Observe).await {
            Ok(seen) if seen.saved != seen.checkpoint => tokio::time::sleep(Duration::from_millis(50)).await,
            _ => return,
        }
    }
}

impl Actor for Partitions {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        self.round(ctx);
        ctx.run_interval(self.lease_time() / 3, Self::round);
    }
}

impl Partitions {
    fn end_all(&mut self) {
        let shares: Vec<Share> = self.held.keys().copied().collect();
        for share in shares {
            self.end(share);
        }
    }
}

/// Whoever follows takes the shares anew: what this one started must not go on beside it.
impl Drop for Partitions {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl Handler<Drain> for Partitions {
    type Result = ResponseActFuture<Self, ()>;
    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        self.draining = true;
        let checkpoints = self.parts.checkpoints.clone();
        let all: Vec<_> = self.held.values().map(|h| finish(h.running.clone(), h.lease, checkpoints.clone())).collect();
        let drain = async move {
            futures_util::future::join_all(all).await;
            if let Err(error) = checkpoints.leave().await {
                tracing::warn!(%error, "leaving not told; the heartbeat ends by itself");
            }
        };
        Box::pin(drain.into_actor(self).map(|(), me, _| me.end_all()))
    }
}

impl Handler<Held> for Partitions {
    type Result = MessageResult<Held>;
    fn handle(&mut self, _: Held, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.held.iter().map(|(share, held)| (*share, held.running.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fair(shares: usize, members: usize, held: &[(&str, usize)]) -> usize {
        let owners = held.iter().flat_map(|(owner, count)| std::iter::repeat_n((*owner).to_owned(), *count));
        fair_part(shares, members, owners)
    }

    #[test]
    fn nobody_keeps_more_while_another_has_less_than_its_part() {
        assert_eq!(fair(4, 1, &[]), 4);
        assert_eq!(fair(4, 2, &[("a", 4)]), 2);
        assert_eq!(fair(4, 3, &[("a", 2), ("b", 2)]), 1, "the third has none");
        assert_eq!(fair(4, 3, &[("a", 2), ("b", 1)]), 2, "there is a free one");
        assert_eq!(fair(4, 3, &[("a", 2), ("b", 1), ("c", 1)]), 2);
        assert_eq!(fair(10, 4, &[("a", 3), ("b", 3), ("c", 3), ("d", 1)]), 2, "one has too few");
        assert_eq!(fair(2, 5, &[("a", 1), ("b", 1)]), 1, "there is not enough for all");
    }
}
