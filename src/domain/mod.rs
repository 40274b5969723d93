//! Plain types and rules, no I/O. What crosses two stages is defined here.

pub mod operation;
pub mod request;
pub mod status;
pub mod time;
pub mod workflow;

pub use operation::{Operation, OperationKind, partition_of};
pub use request::{Confirmation, DeliveryId, DeliveryRequest, Location, PackageInfo, PackageSize};
pub use workflow::{Failure, ReasonCode, Status, StepName, StepState, Workflow};
