//! Pause and resume of a service or a partition. The wish is a key in the store, so it holds for every process of the
//! installation and over restarts; each process looks at the keys every second and tells its own actors.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::agent::{self, Agents};
use super::lifeline::Lifeline;
use super::partitions::{Held, Partitions};
use super::reader;
use super::slot::Slot;
use crate::domain::StepName;
use crate::store::{State, StoreError, Txn};

/// What can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    Service(StepName),
    Partition(u32),
}

impl Switch {
    fn key(self) -> String {
        match self {
            Self::Service(step) => format!("paused/service/{}", step.as_str()),
            Self::Partition(partition) => format!("paused/partition/{partition}"),
        }
    }

    /// Pauses or resumes, everywhere, within about a second.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn set(self, state: &dyn State, paused: bool) -> Result<(), StoreError> {
        let txn = if paused { Txn::new().put(self.key(), "") } else { Txn::new().delete(self.key()) };
        state.commit(vec![txn]).await.map(drop)
    }

    /// Which of these are paused, in their order.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn are_paused(state: &dyn State, switches: &[Self]) -> Result<Vec<bool>, StoreError> {
        let keys: Vec<String> = switches.iter().map(|s| s.key()).collect();
        Ok(state.get(&keys).await?.iter().map(Option::is_some).collect())
    }
}

pub struct Switches {
    state: Arc<dyn State>,
    agents: Agents,
    partitions: Slot<Partitions>,
    count: u32,
    busy: bool,
    lifeline: Lifeline,
}

const EVERY: Duration = Duration::from_secs(1);

impl Switches {
    #[must_use]
    pub fn new(
        state: Arc<dyn State>,
        agents: Agents,
        partitions: Slot<Partitions>,
        count: u32,
        lifeline: Lifeline,
    ) -> Self {
        Self { state, agents, partitions, count, busy: false, lifeline }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.busy, true) {
            return;
        }
        let (state, agents) = (self.state.clone(), self.agents.clone());
        let (partitions, count) = (self.partitions.clone(), self.count);
        let look = async move {
            if let Err(error) = tell(&*state, &agents, &partitions, count).await {
                tracing::debug!(%error, "switches not looked at");
            }
        };
        ctx.spawn(look.into_actor(self).map(|(), me, _| me.busy = false));
    }
}

async fn tell(state: &dyn State, agents: &Agents, partitions: &Slot<Partitions>, count: u32) -> Result<(), StoreError> {
    let services = StepName::ALL.map(Switch::Service);
    for (step, paused) in StepName::ALL.into_iter().zip(Switch::are_paused(state, &services).await?) {
        if let Some(agent) = agents.slot(step).get() {
            agent.do_send(agent::Pause(paused));
        }
    }
    let all: Vec<Switch> = (0..count).map(Switch::Partition).collect();
    let paused = Switch::are_paused(state, &all).await?;
    let held = match partitions.get() {
        Some(partitions) => partitions.send(Held).await.unwrap_or_default(),
        None => Vec::new(),
    };
    for (share, running) in held {
        if let (Some(reader), Some(paused)) = (running.reader.get(), paused.get(share.partition as usize)) {
            reader.do_send(reader::Pause(*paused));
        }
    }
    Ok(())
}

impl Actor for Switches {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.run_interval(EVERY, Self::look);
    }
}
