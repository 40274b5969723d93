//! One process of the program, which can be killed and started again on the same data. Its log is shown when its test
//! fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::support::http::Client;
use crate::support::process::{PATIENCE, Process, free_port};
use crate::support::servers::{RabbitMq, Redis};

/// As in the settings below.
pub const PARTITIONS: u32 = 4;

/// Quicker than the defaults in everything that makes a run wait.
const SETTINGS: &str = "
[http]
workers = 2
body_timeout_ms = 3000
head_timeout_ms = 3000
[partitions]
count = 4
lease_ms = 1500
[checkpoint]
every_requests = 50
every_ms = 200
[ingestion]
claim_ttl_ms = 1000
write_timeout_ms = 4000
[agents.default]
concurrency = 16
timeout_ms = 1000
attempts = 100
backoff_ms = 10
max_backoff_ms = 300
breaker_open_ms = 200
[compensation]
backoff_ms = 50
max_backoff_ms = 500
";

/// Errors, lost replies and heavy-tailed latency in every service.
pub const FAULTY_SERVICES: &str = "
[faults.default]
latency_ms = 1
latency = \"heavy\"
error_rate = 0.05
lost_reply_rate = 0.05
";

pub struct Program {
    pub port: u16,
    process: Option<Process>,
    engine: &'static str,
    /// The part of the configuration that names the servers.
    servers: String,
    pub data: PathBuf,
    dir: TempDir,
    /// Settings that differ from those of all runs.
    overrides: Vec<(&'static str, &'static str)>,
}

impl Program {
    /// Not started yet. `more` are further sections of the configuration.
    pub fn embedded(more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("data");
        Self::new("embedded", dir, data, String::new(), more)
    }

    /// With its data in a folder of the test's.
    pub fn embedded_in(data: &Path, more: &str) -> Self {
        Self::new("embedded", TempDir::new().unwrap(), data.to_owned(), String::new(), more)
    }

    pub fn cluster(rabbitmq: &RabbitMq, redis: &Redis, prefix: &str, more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("data");
        let (broker, state) = (rabbitmq.url(), redis.url());
        let servers = format!(
            "prefix = \"{prefix}\"\n[rabbitmq]\nurl = \"{broker}\"\n[redis]\nurl = \"{state}\"\ntimeout_ms = 1000\n"
        );
        Self::new("cluster", dir, data, servers, more)
    }

    fn new(engine: &'static str, dir: TempDir, data: PathBuf, servers: String, more: &str) -> Self {
        let program = Self { port: free_port(), process: None, engine, servers, data, dir, overrides: Vec::new() };
        program.configure(more);
        program
    }

    /// Other sections in the configuration, for the next start.
    pub fn configure(&self, more: &str) {
        let settings = format!("{}{more}{SETTINGS}", self.servers);
        fs::write(self.dir.path().join("settings.toml"), settings).unwrap();
    }

    /// With a setting, by the name of its variable, that differs from those of all runs.
    pub fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.overrides.push((variable, value));
        self
    }

    /// Starts the process and does not wait for it.
    pub fn spawn(&mut self) {
        self.kill();
        let mut command = Command::new("sh");
        command
            // Idle connections are cheap for the program; the shell's limit must not be what ends them.
            .args(["-c", r#"ulimit -n "$(ulimit -Hn)"; exec "$@""#, "sh", env!("CARGO_BIN_EXE_drone-delivery")])
            .args(["serve", "--engine", self.engine, "--listen", &format!("127.0.0.1:{}", self.port), "--config"])
            .arg(self.dir.path().join("settings.toml"))
            .arg("--data-dir")
            .arg(&self.data)
            .env("NO_COLOR", "1")
            .envs(self.overrides.iter().copied());
        let settings = fs::read_to_string(self.dir.path().join("settings.toml")).unwrap();
        if !settings.contains("[demo]") {
            command.env("DRONE__DEMO__ENABLED", "false");
        }
        self.process = Some(Process::start(command, self.dir.path(), "program"));
    }

    /// Starts the process and waits until it says that it is ready.
    pub async fn start(&mut self) {
        self.spawn();
        self.wait_until_ready().await;
    }

    pub async fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready().await {
            assert!(!self.process.as_mut().expect("it was started").has_ended(), "the program ended by itself");
            assert!(Instant::now() < deadline, "not ready after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn is_ready(&self) -> bool {
        self.client().get("/readyz").await.is_ok_and(|answer| answer.status == 200)
    }

    pub fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends a signal by its name, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }

    /// Waits for its end by itself and says how it ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.process.take().expect("it runs").exit_code()
    }

    /// Waits for its end by itself and says which signal ended it.
    pub async fn ending_signal(&mut self) -> Option<i32> {
        self.process.take().expect("it runs").ending_signal().await
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("program.log")).unwrap_or_default()
    }

    /// Accounts and drones, so that there is something to schedule with.
    pub async fn furnish(&self) {
        let mut client = self.client();
        for (id, status) in [(OWNERS[0], "Active"), (OWNERS[1], "Suspended")] {
            put(&mut client, &format!("/api/accounts/{id}"), &json!({"status": status})).await;
        }
        for n in 0..40 {
            let home = format!("{},-122.20{}", 47.60 + f64::from(n) / 1000.0, n % 10);
            let drone = json!({"home": home, "speedKmh": 60, "rangeKm": 60, "payloadKg": PAYLOAD_KG});
            put(&mut client, &format!("/api/drones/d-{n}"), &drone).await;
        }
    }
}

/// One that may order, and one that may not any more.
pub const OWNERS: [&str; 2] = ["contoso", "fabrikam"];
/// What a drone carries; heavier packages are taken in and fail where a drone is to be found.
pub const PAYLOAD_KG: f64 = 5.0;

async fn put(client: &mut Client, path: &str, body: &serde_json::Value) {
    let answer = client.call("PUT", path, &[], Some(&body.to_string())).await.unwrap();
    assert!(matches!(answer.status, 201 | 204), "{path}: {} {}", answer.status, answer.json());
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(200)..].join("\n");
            eprintln!("the end of the log of the program on port {}:\n{end}", self.port);
        }
    }
}
