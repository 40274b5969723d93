//! RabbitMQ and Redis servers of our own, on free loopback ports and in a temporary folder.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{Process, Usage, free_port};

/// The server itself: what is on the path changes the user first, so that killing it would miss the server.
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Servers {
    broker: Process,
    redis: Process,
    _port_mapper: Process,
    broker_port: u16,
    redis_port: u16,
}

impl Servers {
    /// Starts both and waits until they take connections.
    ///
    /// # Errors
    /// When one is not installed or does not come up.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        anyhow::ensure!(Path::new(RABBITMQ).exists(), "RabbitMQ is not installed (rabbitmq-server)");
        let (broker_port, redis_port, mapper_port) = (free_port()?, free_port()?, free_port()?);
        let mut epmd = Command::new("epmd");
        epmd.args(["-port", &mapper_port.to_string(), "-address", "127.0.0.1"]);
        let port_mapper = Process::start(epmd, dir, "epmd")?;
        let mut redis = Process::start(redis_server(dir, redis_port), dir, "redis")?;
        opened(&mut redis, redis_port).await?;
        let mut broker = Process::start(rabbitmq_server(dir, broker_port, mapper_port)?, dir, "rabbitmq")?;
        opened(&mut broker, broker_port).await?;
        Ok(Self { broker, redis, _port_mapper: port_mapper, broker_port, redis_port })
    }

    /// The settings that lead a server to these.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, String)> {
        vec![
            ("rabbitmq.url".to_owned(), format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.broker_port)),
            ("redis.url".to_owned(), self.redis_url()),
        ]
    }

    /// # Errors
    /// When Redis does not answer.
    pub async fn empty(&self) -> anyhow::Result<()> {
        empty(&self.redis_url()).await
    }

    fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.redis_port)
    }

    /// What the broker and Redis have used, by column of the tables that show it.
    #[must_use]
    pub fn usage(&self) -> [(&'static str, Usage); 2] {
        [("rabbitmq_cpu_us_each", self.broker.usage()), ("redis_cpu_us_each", self.redis.usage())]
    }
}

/// Empties a Redis, which is slower the more it holds: whatever is compared begins with the same. Millions of keys take
/// it longer than an answer usually may.
///
/// # Errors
/// When it does not answer.
pub async fn empty(url: &str) -> anyhow::Result<()> {
    let patience = Some(PATIENCE);
    let patient = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await?;
    Ok(redis::cmd("FLUSHALL").arg("SYNC").exec_async(&mut connection).await?)
}

fn redis_server(dir: &Path, port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
    // As in docker-compose.yml.
    command.args(["--save", "", "--appendonly", "yes", "--zset-max-listpack-entries", "0", "--rdbcompression", "no"]);
    command
}

fn rabbitmq_server(dir: &Path, port: u16, mapper_port: u16) -> anyhow::Result<Command> {
    let settings =
        format!("listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\nlog.console = true\nlog.file = false\n");
    fs::write(dir.join("rabbitmq.conf"), settings)?;
    fs::write(dir.join("plugins"), "[].")?;
    let mut command = Command::new(RABBITMQ);
    command
        .current_dir(dir)
        .env("HOME", dir)
        .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
        .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", dir.join("log"))
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("ERL_EPMD_PORT", mapper_port.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        // Makes the start script become the server instead of watching over it.
        .env("RABBITMQ_ALLOW_INPUT", "1")
        .env("RABBITMQ_SERVER_START_ARGS", "-noinput");
    Ok(command)
}

async fn opened(process: &mut Process, port: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        process.check()?;
        anyhow::ensure!(Instant::now() < deadline, "a server did not come up in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
