//! The engine in force: streams, queues and state, on this disk or in RabbitMQ and Redis, behind one set of contracts.

use std::sync::Arc;

use anyhow::Context as _;

use crate::config::{self, Settings};
use crate::health::Health;
use crate::store::State;
use crate::store::embedded::EmbeddedState;
use crate::stream::{Queues, Streams, embedded};
use crate::{cluster, domain};

#[derive(Clone)]
pub struct Engine {
    pub state: Arc<dyn State>,
    pub streams: Arc<dyn Streams>,
    pub queues: Arc<dyn Queues>,
    /// Who this process is towards the others of the installation.
    pub instance: String,
    on_disk: Option<Arc<EmbeddedState>>,
}

impl Engine {
    /// Opens the configured engine. Servers that are away are waited for.
    ///
    /// # Errors
    /// When the settings and what is there do not fit together, or the disk cannot be used.
    pub async fn open(settings: &Settings, health: &Health) -> anyhow::Result<Self> {
        match settings.engine {
            config::Engine::Embedded => Self::open_embedded(settings, health),
            config::Engine::Cluster => Self::connect(settings, health).await,
        }
    }

    fn open_embedded(settings: &Settings, health: &Health) -> anyhow::Result<Self> {
        let opened = embedded::open(&embedded::Settings {
            data_dir: settings.data_dir.clone(),
            partitions: settings.partitions.count,
            segment_bytes: settings.embedded.segment_bytes,
            retention_bytes: settings.embedded.retention_bytes,
            max_age: Some(settings.replayable()).filter(|age| !age.is_zero()),
            dead_letters: settings.retention.dead_letters,
        })
        .context("the embedded engine cannot be opened")?;
        let state = opened.state.clone();
        health.check("store", move || {
            let state = state.clone();
            async move { state.ping().await.map_err(|e| e.reason) }
        });
        Ok(Self {
            state: opened.state.clone(),
            streams: opened.streams,
            queues: opened.queues,
            // The folder is locked, so whoever opens it is the only one: it takes its own leases back at once.
            instance: "embedded".to_owned(),
            on_disk: Some(opened.state),
        })
    }

    async fn connect(settings: &Settings, health: &Health) -> anyhow::Result<Self> {
        let cluster = cluster::connect(settings).await.context("the cluster engine cannot be used")?;
        let broker = cluster.broker.clone();
        health.check("rabbitmq", move || {
            let broker = broker.clone();
            async move { broker.health().await }
        });
        let state = cluster.state.clone();
        health.check("redis", move || {
            let state = state.clone();
            async move { state.ping().await.map_err(|e| e.reason) }
        });
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "host".to_owned());
        Ok(Self {
            state: cluster.state,
            streams: cluster.broker.clone(),
            queues: cluster.broker,
            instance: format!("{host}-{}", domain::DeliveryId::generate()),
            on_disk: None,
        })
    }

    /// Puts what was written on the disk for good, before the process ends.
    pub fn sync(&self) {
        if let Some(Err(error)) = self.on_disk.as_ref().map(|state| state.sync()) {
            tracing::warn!(%error, "the state was not synced; it is rebuilt from the stream");
        }
    }
}
