//! RabbitMQ and Redis servers for the tests, on free loopback ports, each in its own temporary directory. Most tests
//! share one of each and keep apart by a prefix; those that kill, stop or restart a server start their own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::process::{Process, free_port, wait_until};

/// The server binary itself: what is on the path changes the user first, so a signal would miss the server.
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// The broker that tests share.
pub fn shared_rabbitmq() -> &'static RabbitMq {
    static SHARED: LazyLock<RabbitMq> = LazyLock::new(RabbitMq::start);
    &SHARED
}

/// The Redis that tests share.
pub fn shared_redis() -> &'static Redis {
    static SHARED: LazyLock<Redis> = LazyLock::new(Redis::start);
    &SHARED
}

/// A prefix that no other test has.
pub fn fresh_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One RabbitMQ node.
pub struct RabbitMq {
    pub port: u16,
    /// Kept before the directory, so that it is gone before its files are.
    node: Option<Process>,
    _port_mapper: Process,
    port_mapper_port: u16,
    dist_port: u16,
    dir: TempDir,
}

impl RabbitMq {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// With more lines in its configuration file.
    pub fn start_with(settings: &str) -> Self {
        assert!(Path::new(RABBITMQ).exists(), "RabbitMQ is not installed: `make test` installs it");
        let dir = TempDir::new().unwrap();
        let (port, dist_port, port_mapper_port) = (free_port(), free_port(), free_port());
        fs::write(
            dir.path().join("rabbitmq.conf"),
            format!(
                "listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\nlog.console = true\nlog.file = false\n{settings}\n"
            ),
        )
        .unwrap();
        fs::write(dir.path().join("plugins"), "[].").unwrap();
        let mut epmd = Command::new("epmd");
        epmd.args(["-port", &port_mapper_port.to_string(), "-address", "127.0.0.1"]);
        let port_mapper = Process::start(epmd, dir.path(), "epmd");
        wait_until("epmd", || TcpStream::connect(("127.0.0.1", port_mapper_port)).is_ok());
        let mut server = Self { port, node: None, _port_mapper: port_mapper, port_mapper_port, dist_port, dir };
        server.restart();
        server
    }

    fn name(&self) -> String {
        format!("t{}@localhost", self.port)
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Waits until a queue's name is in the broker's files: it takes its time, and forgets what is not there.
    pub fn wait_until_it_remembers(&self, queue: &str) {
        let mnesia = self.dir.path().join("mnesia").join(self.name());
        let knows = |file: &str| {
            let bytes = fs::read(mnesia.join(file)).unwrap_or_default();
            bytes.windows(queue.len()).any(|window| window == queue.as_bytes())
        };
        wait_until("the broker's memory", || {
            ["LATEST.LOG", "PREVIOUS.LOG", "rabbit_durable_queue.DCL", "rabbit_durable_queue.DCD"]
                .into_iter()
                .any(knows)
        });
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.node = None;
    }

    /// Starts it again on its port with its data.
    pub fn restart(&mut self) {
        self.kill();
        let dir = self.dir.path();
        let mut command = Command::new(RABBITMQ);
        command
            .current_dir(dir)
            .env("HOME", dir)
            .env("RABBITMQ_NODENAME", self.name())
            .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", dir.join("log"))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .env("ERL_EPMD_PORT", self.port_mapper_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // Makes the start script become the server instead of watching over it.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_SERVER_START_ARGS", "-noinput");
        let mut node = Process::start(command, dir, "rabbitmq");
        wait_until("RabbitMQ", || {
            assert!(!node.has_ended(), "RabbitMQ ended: {}", log_of(dir, "rabbitmq"));
            answers(self.port, b"AMQP\0\0\x09\x01")
        });
        self.node = Some(node);
    }

    /// What its channels have sent and nobody has acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        let dir = self.dir.path();
        let output = Command::new(RABBITMQ.replace("-server", "ctl"))
            .args(["--quiet", "list_channels", "messages_unacknowledged", "--no-table-headers"])
            .env("HOME", dir)
            .env("RABBITMQ_NODENAME", self.name())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("ERL_EPMD_PORT", self.port_mapper_port.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(|count| count.parse::<u32>().unwrap()).sum()
    }

    /// Sends a signal by its name, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        self.node.as_ref().expect("it runs").signal(name);
    }
}

/// One Redis server that writes an append-only file.
pub struct Redis {
    pub port: u16,
    /// Kept before the directory, so that it is gone before its files are.
    process: Option<Process>,
    arguments: Vec<String>,
    dir: TempDir,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&["--appendonly", "yes"])
    }

    /// With these arguments behind its own.
    pub fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut server = Self { port: free_port(), process: None, arguments, dir: TempDir::new().unwrap() };
        server.restart();
        server
    }

    /// A sentinel that knows this server as the master of that name.
    pub fn sentinel_of(name: &str, master: &Self) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("redis.conf"), format!("sentinel monitor {name} 127.0.0.1 {} 1\n", master.port))
            .unwrap();
        let mut server = Self { port: free_port(), process: None, arguments: vec!["--sentinel".into()], dir };
        server.restart();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on its port with its data.
    pub fn restart(&mut self) {
        self.kill();
        let dir = self.dir.path();
        // A sentinel keeps what it knows in its file.
        let file = dir.join("redis.conf");
        fs::File::options().create(true).append(true).open(&file).unwrap();
        let mut command = Command::new("redis-server");
        command
            .arg(&file)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(dir)
            .args(&self.arguments);
        let mut process = Process::start(command, dir, "redis");
        wait_until("Redis", || {
            assert!(!process.has_ended(), "Redis ended: {}", log_of(dir, "redis"));
            answers(self.port, b"PING\r\n")
        });
        self.process = Some(process);
    }

    /// Sends a signal by its name, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }
}

/// Whether a server says anything to this greeting.
fn answers(port: u16, greeting: &[u8]) -> bool {
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut first = [0];
    socket.set_read_timeout(Some(Duration::from_secs(10))).is_ok()
        && socket.write_all(greeting).is_ok()
        && socket.read_exact(&mut first).is_ok()
}

fn log_of(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default()
}
