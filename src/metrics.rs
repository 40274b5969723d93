//! The names of all metrics, in one place.

pub const ALERTS: &str = "drone_alerts_total";
pub const ACTOR_RESTARTS: &str = "drone_actor_restarts_total";
pub const WORKFLOWS: &str = "drone_workflows_total";
pub const ACCEPT_TO_SCHEDULED: &str = "drone_accept_to_scheduled_seconds";
