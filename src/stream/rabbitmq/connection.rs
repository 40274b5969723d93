//! Connects to RabbitMQ. Recovery is the [`Link`](crate::cluster::link::Link)'s, not the client's: the client's would
//! open readers again where they first began, and gives up after a while.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, Event};
use tokio::time::sleep;

use crate::cluster::link::{Connected, Connector};
use crate::config::RabbitMq as Settings;

/// A broker that says nothing for about twice this time is gone, unless the address says otherwise.
const HEARTBEAT_S: u16 = 10;

/// The client does not tell of every way to end; this often it is asked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct RabbitMqConnector {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    /// What the broker's pages call the connection.
    name: String,
}

impl RabbitMqConnector {
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let mut uri: AMQPUri = settings.url.parse()?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
        let cert_chain = match settings.ca_file.as_str() {
            "" => None,
            file => Some(fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?),
        };
        Ok(Self { uri, tls: OwnedTLSConfig { identity: None, cert_chain }, name: String::new() })
    }

    pub fn named(&self, name: String) -> Self {
        Self { name, ..self.clone() }
    }
}

impl Connector for RabbitMqConnector {
    type Connection = Arc<Connection>;

    async fn connect(&mut self) -> Result<Connected<Arc<Connection>>, String> {
        let properties = ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let runtime = lapin::runtime::default_runtime().map_err(|error| error.to_string())?;
        let connection = Connection::connect_uri_with_config(self.uri.clone(), properties, self.tls.clone(), runtime)
            .await
            .map_err(|error| error.to_string())?;
        let connection = Arc::new(connection);
        let lost = until_lost(connection.clone());
        Ok((connection, Box::pin(lost)))
    }
}

async fn until_lost(connection: Arc<Connection>) -> String {
    let mut events = Box::pin(connection.events_listener());
    while connection.status().connected() {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::Error(error)) if !connection.status().connected() => return error.to_string(),
                Some(_) => {}
                None => sleep(LOOK_EVERY).await,
            },
            () = sleep(LOOK_EVERY) => {}
        }
    }
    "connection closed".into()
}
