//! Keeps track of what one reader has read and what is finished of it, and saves the contiguous offset after so many
//! requests or so long, never making the reader wait (G4).
//!
//! What a crash does: before the save, the entries after the last saved offset are read again, and their finished
//! workflows are skipped by their records; during the save, either offset is right; after it, nothing is read twice.
//! An owner whose lease was taken over is refused by its epoch and ends itself and its reader.

use std::collections::VecDeque;
use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;

use super::lifeline::Lifeline;
use super::reader::{Credit, Reader};
use crate::crashes::{self, Point};
use crate::domain::time::Timestamp;
use crate::domain::window::Window;
use crate::store::checkpoints::{Checkpoints, Lease, SaveError};

/// An entry was read that holds this many operations of this reader.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Opened {
    pub offset: u64,
    pub at: Timestamp,
    pub operations: u32,
}

/// Operations came to their end: so many of each entry.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Finished(pub Vec<(u64, u32)>);

/// Saves what there is to save; answers when it is saved, or could not be.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Flush;

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub in_flight: usize,
    pub finished: u64,
    pub checkpoint: Option<u64>,
    pub saved: Option<u64>,
    pub oldest_open: Option<u64>,
    /// When the oldest unfinished entry was written: the truth about the lag when one request is stuck.
    pub oldest_open_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub requests: u64,
    pub time: Duration,
}

pub struct Checkpointer {
    lease: Lease,
    checkpoints: Checkpoints,
    pace: Pace,
    window: Window,
    /// When the entries of the window were written.
    times: VecDeque<(u64, Timestamp)>,
    reader: Addr<Reader>,
    saved: Option<u64>,
    saving: bool,
    finished: u64,
    /// Finished since the last save.
    unsaved: u64,
    lifeline: Lifeline,
}

impl Checkpointer {
    #[must_use]
    pub fn new(
        lease: Lease,
        checkpoints: Checkpoints,
        pace: Pace,
        reader: Addr<Reader>,
        saved: Option<u64>,
        lifeline: Lifeline,
    ) -> Self {
        let window = Window::after(saved);
        let times = VecDeque::new();
        Self {
            lease,
            checkpoints,
            pace,
            window,
            times,
            reader,
            saved,
            saving: false,
            finished: 0,
            unsaved: 0,
            lifeline,
        }
    }

    fn forget_times(&mut self) {
        let oldest = self.window.oldest_open().unwrap_or(u64::MAX);
        while self.times.front().is_some_and(|(offset, _)| *offset < oldest) {
            self.times.pop_front();
        }
    }

    /// Saves the checkpoint unless a save is under way or there is nothing new.
    fn save(&mut self, ctx: &mut Context<Self>) {
        if let Some(save) = self.start_save() {
            ctx.spawn(save.into_actor(self).map(|saved, me, ctx| me.saved(saved, ctx)));
        }
    }

    fn start_save(&mut self) -> Option<impl Future<Output = (u64, Result<(), SaveError>)> + 'static> {
        let offset = self.window.checkpoint().filter(|offset| !self.saving && self.saved != Some(*offset))?;
        self.saving = true;
        self.unsaved = 0;
        let (checkpoints, lease) = (self.checkpoints.clone(), self.lease);
        crashes::at(Point::CheckpointDue);
        Some(async move { (offset, checkpoints.save(lease, offset).await) })
    }

    fn saved(&mut self, (offset, saved): (u64, Result<(), SaveError>), ctx: &mut Context<Self>) {
        self.saving = false;
        match saved {
            Ok(()) => {
                crashes::at(Point::CheckpointSaved);
                self.saved = Some(offset);
                self.reader.do_send(super::reader::Saved(offset));
            }
            Err(SaveError::Fenced) => {
                tracing::warn!(share = %self.lease.share, epoch = self.lease.epoch, offset, "checkpoint refused: taken over");
                ctx.terminate();
            }
            Err(SaveError::Store(error)) => {
                tracing::warn!(share = %self.lease.share, offset, %error, "checkpoint not saved; it is saved with the next");
            }
        }
    }
}

impl Actor for Checkpointer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.run_interval(self.pace.time, Self::save);
    }
}

impl Handler<Opened> for Checkpointer {
    type Result = ();
    fn handle(&mut self, opened: Opened, _: &mut Context<Self>) {
        self.window.open(opened.offset, opened.operations);
        self.times.push_back((opened.offset, opened.at));
        self.forget_times();
    }
}

impl Handler<Finished> for Checkpointer {
    type Result = ();
    fn handle(&mut self, Finished(entries): Finished, ctx: &mut Context<Self>) {
        let before = self.window.in_flight();
        for (offset, operations) in entries {
            self.window.finish(offset, operations);
        }
        self.forget_times();
        let finished = before - self.window.in_flight();
        self.finished += finished as u64;
        self.unsaved += finished as u64;
        self.reader.do_send(Credit(finished));
        if self.unsaved >= self.pace.requests {
            self.save(ctx);
        }
    }
}

impl Handler<Flush> for Checkpointer {
    type Result = ResponseActFuture<Self, ()>;
    fn handle(&mut self, _: Flush, _: &mut Context<Self>) -> Self::Result {
        match self.start_save() {
            Some(save) => Box::pin(save.into_actor(self).map(|saved, me, ctx| me.saved(saved, ctx))),
            None => Box::pin(actix::fut::ready(())),
        }
    }
}

impl Handler<Observe> for Checkpointer {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        Observed {
            in_flight: self.window.in_flight(),
            finished: self.finished,
            checkpoint: self.window.checkpoint(),
            saved: self.saved,
            oldest_open: self.window.oldest_open(),
            oldest_open_at: self.times.front().map(|(_, at)| *at),
        }
    }
}
