//! What the five steps do. Each service has `execute` and `cancel` side by side, both batch-first and idempotent, and
//! runs on either store through [`State`].
//!
//! `cancel` works on a step that never ran and leaves a tombstone for the delivery: a late or replayed `execute` for
//! it is refused with [`AlreadyCancelled`](crate::domain::ReasonCode::AlreadyCancelled).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::config::{Agent, Faulty, Settings};
use crate::domain::status::StatusSink;
use crate::domain::workflow::{Output, Reservation, Route};
use crate::domain::{DeliveryId, DeliveryRequest, Failure, StepName};
use crate::store::State;

pub mod account;
pub mod completion;
pub mod delivery;
pub mod drone;
pub mod entities;
pub mod faults;
pub mod geography;
pub mod package;
pub mod remote;
pub mod telemetry;
pub mod transport;

/// The store, shared by all services of a process.
pub type SharedState = Arc<dyn State>;

/// Where the services tell what their entities go through.
pub type SharedSink = Arc<dyn StatusSink>;

/// What a service is asked to do or to undo for one delivery.
#[derive(Clone, Debug)]
pub struct Order {
    pub id: DeliveryId,
    pub request: Arc<DeliveryRequest>,
    /// What the transport step decided, once it did.
    pub route: Option<Route>,
    /// What the drone step reserved, once it did.
    pub reservation: Option<Reservation>,
    /// The W3C `traceparent` of the request.
    pub trace: Option<String>,
}

/// Why a step did not work. The type decides whether it is tried again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// It may work later: the store was away, the service answered 5xx.
    #[error("{0}")]
    Transient(String),
    /// It will never work.
    #[error("{}: {}", .0.code.as_str(), .0.text)]
    Refused(Failure),
}

/// One backend service.
#[async_trait(?Send)]
pub trait Service {
    fn step(&self) -> StepName;

    /// The most orders of one call. One where each order takes its own time, so that a slow one holds up nobody.
    fn max_batch(&self) -> usize {
        usize::MAX
    }

    /// How long the next call takes to get to the service: made up, to see what slow services do. Whoever calls waits.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    /// Does the step for every order; the answers are in the orders' order.
    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>>;

    /// Changes what was done for every order to what the order says now, or refuses and leaves it as it was. Most
    /// services have nothing that a change of plan touches.
    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        vec![Ok(Output::Nothing); orders.len()]
    }

    /// Undoes the step for every order; the answers are in the orders' order.
    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>>;
}

/// The answer for a batch of one.
///
/// # Errors
/// The step's own, or that there was no answer.
pub fn one<T>(answers: Vec<Result<T, StepError>>) -> Result<T, StepError> {
    answers.into_iter().next().unwrap_or_else(|| Err(StepError::Transient("no answer".into())))
}

/// The five services of this process.
#[derive(Clone)]
pub struct Local {
    state: SharedState,
    sink: SharedSink,
    pub account: Arc<account::AccountService>,
    pub package: Arc<package::PackageService>,
    pub transport: Arc<transport::TransportService>,
    pub drone: Arc<drone::DroneService>,
    pub delivery: Arc<delivery::DeliveryService>,
}

impl Local {
    /// # Errors
    /// When the settings name areas or carriers that cannot be read.
    pub fn new(state: &SharedState, sink: SharedSink, settings: &Settings) -> Result<Self, geography::AreaError> {
        Ok(Self {
            account: Arc::new(account::AccountService::new(state.clone(), settings)),
            package: Arc::new(package::PackageService::new(state.clone(), settings)),
            transport: Arc::new(transport::TransportService::new(state.clone(), settings)?),
            drone: Arc::new(drone::DroneService::new(state.clone(), settings)),
            delivery: Arc::new(delivery::DeliveryService::new(state.clone(), sink.clone(), settings)),
            state: state.clone(),
            sink,
        })
    }

    /// The same with a delivery service that knows what follows a delivery.
    #[must_use]
    pub fn with_delivery(self, delivery: delivery::DeliveryService) -> Self {
        Self { delivery: Arc::new(delivery), ..self }
    }

    /// The service of a step.
    #[must_use]
    pub fn of(&self, step: StepName) -> Arc<dyn Service> {
        match step {
            StepName::Account => self.account.clone(),
            StepName::Package => self.package.clone(),
            StepName::Transport => self.transport.clone(),
            StepName::Drone => self.drone.clone(),
            StepName::Delivery => self.delivery.clone(),
        }
    }

    /// The service of a step as the settings have it: here or at an address, with faults or without.
    #[must_use]
    #[allow(clippy::arc_with_non_send_sync, reason = "an HTTP client stays on the thread of the agent it is made for")]
    pub fn as_set(&self, step: StepName, agent: &Agent, faults: &Faulty) -> Arc<dyn Service> {
        let service = if agent.url.is_empty() { self.of(step) } else { Arc::new(remote::Remote::new(step, agent)) };
        if faults::Faulty::is_needed(faults) {
            return Arc::new(faults::Faulty::new(service, faults.clone(), step.index() as u64));
        }
        service
    }
}
