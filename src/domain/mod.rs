//! Plain types and rules, no I/O. What crosses two stages is defined here.

pub mod compact;
pub mod draft;
pub mod fault;
pub mod operation;
pub mod request;
pub mod status;
pub mod time;
pub mod window;
pub mod wire;
pub mod workflow;

/// A map whose keys are ids and names: quicker to look up in than the standard one, and seeded like it.
pub type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

pub use draft::{Draft, DraftError};
pub use fault::Fault;
pub use operation::{Operation, OperationKind, partition_of};
pub use request::{Confirmation, DeliveryId, DeliveryRequest, Location, PackageInfo, PackageSize};
pub use workflow::{Failure, ReasonCode, Status, StepName, StepState, Workflow};
