//! Wires the parts up by role, starts them, and drains them when a signal says so (G8).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use actix_web::dev::ServerHandle;
use actix_web::web;
use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::actors::agent::{Agent, Agents};
use crate::actors::backoff::Backoff;
use crate::actors::compensator::{self, Compensator};
use crate::actors::forwarder::Forwarder;
use crate::actors::lifeline::Lifeline;
use crate::actors::notifier::{self, Notifier};
use crate::actors::partitions::{self, Partitions, StartFlow};
use crate::actors::purger::{self, Purger};
use crate::actors::scheduler::{self, Scheduler};
use crate::actors::slot::Slot;
use crate::actors::status_hub::{StatusFeed, StatusHub};
use crate::actors::supervisor::{Child, Supervisor, Watch};
use crate::actors::sweeper::{self, Sweeper};
use crate::actors::switches::Switches;
use crate::actors::teller::{Teller, TellerHandle};
use crate::actors::worker::Worker;
use crate::actors::writer::{Limits, Writer, WriterHandle};
use crate::alerts::Alerts;
use crate::config::{self, Mode, Role, Settings};
use crate::demo::flights::Flights;
use crate::demo::plan::Planner;
use crate::demo::{pilot, seed};
use crate::domain::StepName;
use crate::engine::Engine;
use crate::health::Health;
use crate::http::ingestion::Ingestion;
use crate::http::intake::Intake;
use crate::http::operations::Operations;
use crate::http::{self, Routes};
use crate::services::completion::Completion;
use crate::services::delivery::DeliveryService;
use crate::services::geography::Areas;
use crate::services::{Local, SharedSink};
use crate::store::checkpoints::Checkpoints;
use crate::store::workflows::Workflows;
use crate::stream::Stream;

/// Runs until a signal ends it, then drains.
///
/// # Errors
/// When a part cannot be started, or the supervisor has ended: then nobody would start again what ends, and the process
/// has to be started again as a whole.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let app = App::start(settings).await?;
    tracing::info!(address = %app.address, "serving");
    let ended = app.unsupervised.clone();
    let end = tokio::select! {
        signal = signalled() => signal,
        () = ended.cancelled() => Err(anyhow::anyhow!("the supervisor has ended; the process is to be started again")),
    };
    app.drain().await;
    end
}

async fn signalled() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}

/// Fewer requests than this for a partition are given a moment to become more. With more, a few hundred clients that each
/// wait for their answer would wait for each other; but a message costs the broker more than a group costs the disk.
const fn few_requests(engine: config::Engine) -> usize {
    match engine {
        config::Engine::Embedded => 16,
        config::Engine::Cluster => 24,
    }
}
/// The same for status events, of which every workflow makes several and for which no client waits.
const FEW_EVENTS: usize = 1_024;

/// The running application.
pub struct App {
    pub address: SocketAddr,
    server: ServerHandle,
    engine: Engine,
    health: Health,
    partitions: Slot<Partitions>,
    feed: StatusFeed,
    drain: Duration,
    /// Cancelled when the supervisor has ended.
    unsupervised: CancellationToken,
}

/// What the parts share while they are started.
struct Starting {
    settings: Arc<Settings>,
    engine: Engine,
    alerts: Alerts,
    supervisor: Addr<Supervisor>,
    unsupervised: CancellationToken,
    arbiters: Vec<ArbiterHandle>,
    /// The drone agent's own thread: where the fleet is full, choosing takes a while, and nobody else waits for it.
    planning: ArbiterHandle,
    /// The writers' own thread: what is accepted never waits for what is scheduled, and what the engine confirms at
    /// once is heard of at once.
    writers: ArbiterHandle,
}

impl App {
    /// Starts every part of the configured roles.
    ///
    /// # Errors
    /// When the engine cannot be opened or the address cannot be bound.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        crate::metrics::start();
        crate::crashes::arm(&settings.crashes);
        let health = Health::default();
        let engine = Engine::open(&settings, &health).await?;
        if settings.demo.enabled && settings.has(Role::Services) {
            seed_demo(&settings, &engine).await?;
        }
        let alerts = Alerts::default();
        let unsupervised = CancellationToken::new();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let starting = Starting {
            engine: engine.clone(),
            supervisor: Supervisor::new(alerts.clone(), settings.panics.clone(), unsupervised.clone()).start(),
            unsupervised,
            settings: Arc::new(settings),
            alerts,
            // Few: what actors of one thread say to each other wakes nobody, and the other cores have the connections, the
            // engine and the store.
            arbiters: (0..(cores / 2).max(1)).map(|_| Arbiter::new().handle()).collect(),
            planning: Arbiter::new().handle(),
            writers: Arbiter::new().handle(),
        };
        starting.start(health)
    }

    /// No new intake, what is in flight finished or left to the replay, checkpoints saved.
    pub async fn drain(self) {
        self.health.down("process", "draining");
        let intake = self.server.stop(true);
        self.feed.close();
        let all = async {
            if let Some(partitions) = self.partitions.get()
                && partitions.send(partitions::Drain).await.is_err()
            {
                tracing::warn!("the partitions were not drained; what was in flight is read again");
            }
            intake.await;
        };
        if tokio::time::timeout(self.drain, all).await.is_err() {
            tracing::warn!("not all was finished in time; the rest is read again");
        }
        self.engine.sync();
        tracing::info!("drained");
    }
}

impl Starting {
    fn start(self, health: Health) -> anyhow::Result<App> {
        let settings = self.settings.clone();
        let status = self.start_status_writer();
        let teller = self.start_teller(&status);
        let sink: SharedSink = Arc::new(teller);
        let planner = settings.demo.enabled.then(|| Planner { time_factor: settings.demo.time_factor });
        let local = Local::new(&self.engine.state, sink.clone(), &settings)
            .context("the services cannot be started")?
            .with_delivery(self.delivery_service(&sink, planner));
        let feed = self.start_hub();
        let mut routes: Vec<Routes> = vec![common_routes(&health, &feed)];
        if settings.has(Role::Ingestion) {
            routes.push(self.start_ingestion());
        }
        if settings.has(Role::Services) {
            routes.push(http::services::routes(local.clone(), &settings));
            planner.into_iter().for_each(|planner| self.start_flights(&local, &sink, planner));
        }
        let agents = Agents::default();
        if settings.has(Role::Scheduler) || settings.has(Role::Supervisor) {
            self.start_agents(&agents, &local);
        }
        if settings.has(Role::Supervisor) {
            self.start_compensator(&agents, &status);
            self.start_sweeper(&status);
            self.start_purger(&local);
            self.start_notifier(&local);
        }
        let partitions = Slot::default();
        if settings.has(Role::Scheduler) {
            self.start_partitions(&partitions, &agents, &status);
        }
        self.start_switches(&agents, &partitions);
        routes.push(self.operations_routes(&agents, &partitions, &status));
        let drain = settings.drain;
        let (server, address) = http::serve(&settings.http, routes, drain.as_secs())
            .with_context(|| format!("cannot listen on {}", settings.http.listen))?;
        let handle = server.handle();
        actix::spawn(server);
        let (engine, unsupervised) = (self.engine, self.unsupervised);
        Ok(App { address, server: handle, engine, health, partitions, feed, drain, unsupervised })
    }

    /// A child that runs one actor on one of the threads, found through its slot.
    fn watch<A, F>(&self, name: impl Into<String>, turn: usize, slot: &Slot<A>, make: F)
    where
        A: Actor<Context = Context<A>>,
        F: Fn(Lifeline) -> A + Send + Clone + 'static,
    {
        self.watch_on(self.thread(turn), name, slot, make);
    }

    fn thread(&self, turn: usize) -> &ArbiterHandle {
        &self.arbiters[turn % self.arbiters.len()]
    }

    fn watch_on<A, F>(&self, arbiter: &ArbiterHandle, name: impl Into<String>, slot: &Slot<A>, make: F)
    where
        A: Actor<Context = Context<A>>,
        F: Fn(Lifeline) -> A + Send + Clone + 'static,
    {
        let (arbiter, slot) = (arbiter.clone(), slot.clone());
        self.supervisor.do_send(Watch(Child::new(name, move |lifeline| {
            let (make, slot) = (make.clone(), slot.clone());
            if !arbiter.spawn_fn(move || slot.set(make(lifeline).start())) {
                tracing::error!("a thread is gone; its actors cannot be started again");
            }
        })));
    }

    fn start_status_writer(&self) -> WriterHandle {
        // Events come in large pieces from few senders, each of which waits for its piece: that is their bound.
        let limits = self.writer_limits();
        let limits =
            Limits { waiting: usize::MAX, batch_lines: usize::MAX, few: FEW_EVENTS, recent_bytes: 0, ..limits };
        let handle = WriterHandle::new(&limits);
        self.start_writer(Stream::Status, "writer/status", limits, &handle);
        handle
    }

    fn start_partition_writers(&self) -> Vec<WriterHandle> {
        let limits = self.writer_limits();
        let handles = WriterHandle::group(&limits, self.settings.partitions.count as usize);
        for (partition, handle) in (0..).zip(&handles) {
            self.start_writer(Stream::Requests(partition), &format!("writer/{partition}"), limits, handle);
        }
        handles
    }

    fn writer_limits(&self) -> Limits {
        let ingestion = &self.settings.ingestion;
        Limits {
            waiting: ingestion.max_waiting,
            batch_lines: ingestion.batch_requests,
            batch_bytes: ingestion.batch_bytes,
            in_flight: ingestion.writes_in_flight,
            timeout: ingestion.write_timeout,
            few: few_requests(self.settings.engine),
            linger: ingestion.linger,
            recent_bytes: ingestion.recent_bytes / self.settings.partitions.count as usize,
        }
    }

    fn start_writer(&self, stream: Stream, name: &str, limits: Limits, handle: &WriterHandle) {
        let (streams, writer) = (self.engine.streams.clone(), handle.clone());
        self.watch_on(&self.writers, name, handle.slot(), move |lifeline| {
            Writer::new(stream, streams.clone(), limits, &writer, lifeline)
        });
    }

    fn start_teller(&self, status: &WriterHandle) -> TellerHandle {
        let (handle, status) = (TellerHandle::default(), status.clone());
        self.watch("teller", 0, &handle.slot, move |lifeline| Teller::new(status.clone(), lifeline));
        handle
    }

    fn start_ingestion(&self) -> Routes {
        let writers = self.start_partition_writers();
        let (settings, state) = (self.settings.clone(), self.engine.state.clone());
        Arc::new(move |config| {
            let ingestion = Ingestion::new(&settings, Intake::new(&writers), state.clone());
            Ingestion::routes(&web::Data::new(ingestion), config);
        })
    }

    fn start_agents(&self, agents: &Agents, local: &Local) {
        for (turn, step) in StepName::ALL.into_iter().enumerate() {
            let (settings, local, alerts) = (self.settings.clone(), local.clone(), self.alerts.clone());
            let thread = if step == StepName::Drone { &self.planning } else { self.thread(turn) };
            self.watch_on(thread, format!("agent/{}", step.as_str()), agents.slot(step), move |lifeline| {
                let service = local.as_set(step, settings.agents.get(step), settings.faults.get(step));
                Agent::new(service, settings.agents.get(step).clone(), alerts.clone(), lifeline)
            });
        }
    }

    fn delivery_service(&self, sink: &SharedSink, planner: Option<Planner>) -> DeliveryService {
        let workflows = Workflows::new(self.engine.state.clone());
        let completion = Completion::new(workflows, self.engine.queues.clone(), sink.clone());
        DeliveryService::new(self.engine.state.clone(), sink.clone(), &self.settings)
            .completing(completion)
            .flown_by(planner)
    }

    fn start_flights(&self, local: &Local, sink: &SharedSink, planner: Planner) {
        let parts = pilot::Parts {
            state: self.engine.state.clone(),
            delivery: local.delivery.clone(),
            sink: sink.clone(),
            planner,
            instance: self.engine.instance.clone(),
        };
        self.watch("flights", 1, &Slot::default(), move |lifeline| Flights::new(parts.clone(), lifeline));
    }

    fn start_compensator(&self, agents: &Agents, status: &WriterHandle) {
        let parts = compensator::Parts {
            workflows: Workflows::new(self.engine.state.clone()),
            agents: agents.clone(),
            queues: self.engine.queues.clone(),
            status: status.clone(),
            settings: self.settings.compensation.clone(),
            alerts: self.alerts.clone(),
        };
        self.watch("compensator", 1, &Slot::default(), move |lifeline| Compensator::new(parts.clone(), lifeline));
    }

    fn start_worker(&self, flow: scheduler::Parts) {
        let (queues, window) = (self.engine.queues.clone(), self.settings.scheduler.max_in_flight);
        self.watch("worker", 1, &Slot::default(), move |lifeline| {
            Worker::new(queues.clone(), flow.clone(), window, lifeline)
        });
    }

    fn start_sweeper(&self, status: &WriterHandle) {
        let parts = sweeper::Parts {
            workflows: Workflows::new(self.engine.state.clone()),
            queues: self.engine.queues.clone(),
            status: status.clone(),
            every: self.settings.supervisor.sweep_every,
            grace: self.settings.supervisor.grace,
        };
        self.watch("sweeper", 1, &Slot::default(), move |lifeline| Sweeper::new(parts.clone(), lifeline));
    }

    fn start_purger(&self, local: &Local) {
        let parts = purger::Parts {
            workflows: Workflows::new(self.engine.state.clone()),
            services: local.clone(),
            settings: self.settings.retention.clone(),
        };
        self.watch("purger", 1, &Slot::default(), move |lifeline| Purger::new(parts.clone(), lifeline));
    }

    fn start_notifier(&self, local: &Local) {
        let parts = notifier::Parts {
            queues: self.engine.queues.clone(),
            local: local.clone(),
            settings: self.settings.notifications.clone(),
            alerts: self.alerts.clone(),
        };
        self.watch("notifier", 1, &Slot::default(), move |lifeline| Notifier::new(parts.clone(), lifeline));
    }

    fn start_hub(&self) -> StatusFeed {
        let (slot, streams, buffer) = (Slot::default(), self.engine.streams.clone(), self.settings.status.buffer);
        let feed = StatusFeed::new(streams.clone(), &self.settings.status, slot.clone());
        self.watch("status-hub", 1, &slot, move |lifeline| StatusHub::new(streams.clone(), buffer, lifeline));
        feed
    }

    fn start_switches(&self, agents: &Agents, partitions: &Slot<Partitions>) {
        let (state, agents, partitions) = (self.engine.state.clone(), agents.clone(), partitions.clone());
        let count = self.settings.partitions.count;
        self.watch("switches", 1, &Slot::default(), move |lifeline| {
            Switches::new(state.clone(), agents.clone(), partitions.clone(), count, lifeline)
        });
    }

    fn operations_routes(&self, agents: &Agents, partitions: &Slot<Partitions>, status: &WriterHandle) -> Routes {
        let operations = web::Data::new(Operations {
            settings: self.settings.clone(),
            engine: self.engine.clone(),
            workflows: Workflows::new(self.engine.state.clone()),
            alerts: self.alerts.clone(),
            supervisor: self.supervisor.clone(),
            agents: agents.clone(),
            partitions: partitions.clone(),
            status: status.clone(),
        });
        Arc::new(move |config| Operations::routes(&operations, config))
    }

    fn start_partitions(&self, slot: &Slot<Partitions>, agents: &Agents, status: &WriterHandle) {
        let flow = scheduler::Parts {
            workflows: Workflows::new(self.engine.state.clone()),
            agents: agents.clone(),
            queues: self.engine.queues.clone(),
            status: status.clone(),
            streams: self.engine.streams.clone(),
            alerts: self.alerts.clone(),
            complete_by: self.settings.scheduler.complete_by,
            patient: false,
        };
        let start_flow = match self.settings.scheduler.mode {
            Mode::Stream | Mode::Batch => scheduling(flow),
            Mode::Queue => {
                self.start_worker(flow.clone());
                forwarding(scheduler::Parts { patient: true, ..flow })
            }
        };
        let lease = self.settings.partitions.lease;
        let parts = partitions::Parts {
            streams: self.engine.streams.clone(),
            checkpoints: Checkpoints::new(self.engine.state.clone(), &self.engine.instance, lease),
            settings: self.settings.clone(),
            alerts: self.alerts.clone(),
            start_flow,
            arbiters: self.arbiters.clone(),
        };
        let supervisor = self.supervisor.clone();
        self.watch("partitions", 0, slot, move |lifeline| Partitions::new(parts.clone(), supervisor.clone(), lifeline));
    }
}

/// Puts the demo's accounts and drones in place before anybody can ask for them.
async fn seed_demo(settings: &Settings, engine: &Engine) -> anyhow::Result<()> {
    let areas = Areas::load(&settings.services.areas).context("the service areas cannot be used")?;
    let seed = async || seed::seed(&*engine.state, &settings.demo, &areas).await;
    let seeded = Backoff::ENGINE.until_ok("seeding the demo", seed).await;
    tracing::info!(seeded, "the demo is on");
    Ok(())
}

/// A share whose requests are scheduled where they are read.
fn scheduling(flow: scheduler::Parts) -> StartFlow {
    Arc::new(move |_, finished, lifeline| Scheduler::new(flow.clone(), finished, lifeline).start().recipient())
}

/// A share whose requests are copied to the work queue.
fn forwarding(flow: scheduler::Parts) -> StartFlow {
    Arc::new(move |_, finished, lifeline| {
        let others = Scheduler::new(flow.clone(), finished.clone(), lifeline.share()).start().recipient();
        Forwarder::new(flow.queues.clone(), finished, others, lifeline).start().recipient()
    })
}

/// What every role serves: probes, metrics and the status feed.
fn common_routes(health: &Health, feed: &StatusFeed) -> Routes {
    let (health, feed) = (web::Data::new(health.clone()), web::Data::new(feed.clone()));
    Arc::new(move |config| {
        config.app_data(health.clone()).configure(http::probes::routes).configure(http::openapi::routes);
        config.app_data(feed.clone()).configure(http::status::configure);
    })
}
