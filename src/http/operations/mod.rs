//! What operators see and do: how much there is of what, who reads which partition and how far behind, what the agents
//! are at, alerts, dead letters; and redrive, abandon, pause and resume, each with an honest answer.

use std::sync::Arc;

use actix::Addr;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::problem::Problem;
use crate::actors::agent::{self, Agents};
use crate::actors::partitions::Partitions;
use crate::actors::slot::Slot;
use crate::actors::supervisor::{Restarts, Supervisor};
use crate::actors::switches::Switch;
use crate::actors::writer::WriterHandle;
use crate::alerts::Alerts;
use crate::config::Settings;
use crate::domain::StepName;
use crate::engine::Engine;
use crate::store::workflows::Workflows;
use crate::stream::{Queue, ReadError};

mod dead_letters;
mod partitions;
mod workflows;

/// What the calls need.
pub struct Operations {
    pub settings: Arc<Settings>,
    pub engine: Engine,
    pub workflows: Workflows,
    pub alerts: Alerts,
    pub supervisor: Addr<Supervisor>,
    pub agents: Agents,
    pub partitions: Slot<Partitions>,
    pub status: WriterHandle,
}

impl Operations {
    pub fn routes(operations: &web::Data<Self>, config: &mut web::ServiceConfig) {
        let at = |path: &str| web::resource(format!("/api/operations/{path}"));
        config
            .app_data(operations.clone())
            .service(at("summary").get(summary))
            .service(at("partitions").get(partitions::list))
            .service(at("partitions/{partition}/pause").post(partitions::pause))
            .service(at("partitions/{partition}/resume").post(partitions::resume))
            .service(at("agents").get(agents))
            .service(at("agents/{service}/pause").post(pause))
            .service(at("agents/{service}/resume").post(resume))
            .service(at("alerts").get(alerts))
            .service(at("deadletters").get(dead_letters::list))
            .service(at("deadletters/{id}/redrive").post(dead_letters::redrive))
            .service(at("workflows/{action}").post(workflows::many))
            .service(at("workflows/{id}/{action}").post(workflows::one));
    }

    async fn restarts(&self) -> Vec<(String, u64)> {
        self.supervisor.send(Restarts).await.unwrap_or_default()
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        Self::new(super::problem::Kind::Unavailable, error.to_string())
    }
}

async fn summary(operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    let counts: Map<String, Value> = operations
        .workflows
        .counts()
        .await?
        .into_iter()
        .map(|(status, count)| (status.as_str().to_owned(), count.into()))
        .collect();
    let mut queues = Map::new();
    for (name, queue) in
        [("failedOperations", Queue::FailedOperations), ("notifications", Queue::Notifications), ("work", Queue::Work)]
    {
        queues.insert(name.to_owned(), operations.engine.queues.depth(queue).await?.into());
    }
    let lag = partitions::read(&operations).await?;
    let restarts: u64 = operations.restarts().await.iter().map(|(_, count)| count).sum();
    Ok(HttpResponse::Ok().json(json!({
        "instance": operations.engine.instance,
        "engine": operations.settings.engine,
        "mode": operations.settings.scheduler.mode,
        "workflows": counts,
        "queues": queues,
        "lagEntries": lag.iter().map(|p| p.lag_entries).sum::<u64>(),
        "lagSeconds": lag.iter().filter_map(|p| p.lag_seconds).fold(0.0, f64::max),
        "alerts": operations.alerts.list().len(),
        "restarts": restarts,
    })))
}

/// One agent of this process and how often it was started again.
#[derive(Serialize)]
struct AgentView {
    #[serde(flatten)]
    seen: agent::Observed,
    restarts: u64,
}

async fn agents(operations: web::Data<Operations>) -> HttpResponse {
    let restarts = operations.restarts().await;
    let mut items = Vec::new();
    for step in StepName::ALL {
        let Some(agent) = operations.agents.slot(step).get() else { continue };
        if let Ok(seen) = agent.send(agent::Observe).await {
            let name = format!("agent/{}", step.as_str());
            let restarts = restarts.iter().find(|(child, _)| *child == name).map_or(0, |(_, count)| *count);
            items.push(AgentView { seen, restarts });
        }
    }
    let actors: Map<String, Value> = restarts.into_iter().map(|(name, count)| (name, count.into())).collect();
    HttpResponse::Ok().json(json!({"items": items, "restarts": actors}))
}

async fn alerts(operations: web::Data<Operations>) -> HttpResponse {
    HttpResponse::Ok().json(json!({"items": operations.alerts.list()}))
}

async fn pause(path: web::Path<String>, operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    switch(&path, &operations, true).await
}

async fn resume(path: web::Path<String>, operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    switch(&path, &operations, false).await
}

async fn switch(service: &str, operations: &Operations, paused: bool) -> Result<HttpResponse, Problem> {
    let Some(step) = StepName::ALL.into_iter().find(|step| step.as_str() == service) else {
        let known = StepName::ALL.map(StepName::as_str).join(", ");
        let detail = format!("there is no service {service}; there are {known}");
        return Err(Problem::new(super::problem::Kind::NotFound, detail));
    };
    Switch::Service(step).set(&*operations.engine.state, paused).await?;
    Ok(HttpResponse::Ok().json(json!({"service": step, "paused": paused})))
}
