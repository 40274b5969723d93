//! What is measured: servers that are children of this process, each installation with a folder and a prefix of its
//! own, or a server that runs already.

use std::cell::RefCell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;

use super::counters::Counters;
use super::http::{self, Connection};
use super::private::Servers;
use super::process::{Process, Usage, free_port};
use super::workload::{ACCOUNTS, DRONES, Places, account};
use super::{Bench, Options};

const PATIENCE: Duration = Duration::from_secs(60);
/// A server that was given runs already.
const PATIENCE_WITH_A_GIVEN_ONE: Duration = Duration::from_secs(5);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);
/// Drones are at home elsewhere than the requests are.
const SEED: u64 = 11;

/// One installation: what its servers find again after a restart.
pub struct Home {
    data_dir: PathBuf,
    prefix: String,
}

/// One server.
pub struct Server {
    pub address: SocketAddr,
    process: Option<RefCell<Process>>,
    control: tokio::sync::Mutex<Connection>,
}

impl Bench {
    /// A new installation with nothing in it. Those before it have ended.
    ///
    /// # Errors
    /// When our own Redis does not answer.
    pub async fn home(&self) -> anyhow::Result<Home> {
        if let Some(servers) = &self.servers {
            servers.empty().await?;
        }
        let number = self.homes.replace(self.homes.get() + 1);
        let prefix = format!("bench-{}-{number}", std::process::id());
        Ok(Home { data_dir: self.dir.path().join(&prefix), prefix })
    }

    /// Starts a server in an installation and waits until it is ready; or takes the one that was given.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(&self, home: &Home, settings: &[(&str, String)]) -> anyhow::Result<Server> {
        if let Some(url) = &self.options.url {
            return Server::at(address_of(url, self.options.allow_remote)?, None).ready().await;
        }
        let port = free_port()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve");
        if let Some(file) = &self.options.config {
            command.arg("--config").arg(file);
        }
        let private = self.servers.as_ref().map(Servers::settings).unwrap_or_default();
        let own = [
            ("http.listen", format!("127.0.0.1:{port}")),
            ("data_dir", home.data_dir.display().to_string()),
            ("prefix", home.prefix.clone()),
            ("engine", self.options.engine.clone()),
            ("demo.enabled", "false".to_owned()),
            ("http.limit_route", "true".to_owned()),
        ];
        let own = own.into_iter().chain(settings.iter().cloned()).map(|(key, value)| (key.to_owned(), value));
        for (key, value) in own.chain(private).chain(self.options.set.iter().cloned()) {
            command.env(variable(&key), value);
        }
        let process = Process::start(command, self.dir.path(), &format!("server-{port}"))?;
        Server::at(SocketAddr::from(([127, 0, 0, 1], port)), Some(process)).ready().await
    }

    /// The same with accounts and a fleet for the requests of the load.
    ///
    /// # Errors
    /// When it does not come up or does not take them.
    pub async fn start_seeded(&self, settings: &[(&str, String)]) -> anyhow::Result<Server> {
        let server = self.start(&self.home().await?, settings).await?;
        server.seed().await?;
        Ok(server)
    }
}

impl Server {
    fn at(address: SocketAddr, process: Option<Process>) -> Self {
        let control = Connection::new(address, CONTROL_TIMEOUT).into();
        Self { address, process: process.map(RefCell::new), control }
    }

    async fn ready(self) -> anyhow::Result<Self> {
        let patience = if self.process.is_some() { PATIENCE } else { PATIENCE_WITH_A_GIVEN_ONE };
        let deadline = Instant::now() + patience;
        let request = http::request("GET", "/readyz", "text/plain", b"");
        loop {
            self.check()?;
            let reply = self.call(&request).await;
            if matches!(&reply, Ok((200, _))) {
                return Ok(self);
            }
            anyhow::ensure!(Instant::now() < deadline, "{} was not ready in {patience:?}: {reply:?}", self.address);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// # Errors
    /// When the process has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        self.process.as_ref().map_or(Ok(()), |process| process.borrow_mut().check())
    }

    async fn call(&self, request: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        let mut control = self.control.lock().await;
        if let Ok(reply) = control.call(request).await {
            return Ok((reply.status, reply.body.to_vec()));
        }
        // A connection that was idle for a while may have been closed by the server. All of these calls may be repeated.
        let reply = control.call(request).await?;
        Ok((reply.status, reply.body.to_vec()))
    }

    /// Whether something can be posted here.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn knows(&self, path: &str) -> anyhow::Result<bool> {
        let (status, _) = self.call(&http::request("POST", path, "application/json", b"{}")).await?;
        Ok(!matches!(status, 404 | 405))
    }

    /// What the server has counted.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn counters(&self) -> anyhow::Result<Counters> {
        let (status, body) = self.call(&http::request("GET", "/metrics", "text/plain", b"")).await?;
        anyhow::ensure!(status == 200, "/metrics answered {status}");
        Ok(Counters::parse(&String::from_utf8_lossy(&body)))
    }

    /// What the process has used; none when it is not ours.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.process.as_ref().map(|process| process.borrow().usage())
    }

    /// Ends the process as `kill -9` does.
    pub fn kill(self) {
        drop(self);
    }

    /// Puts in the accounts and drones that the load's requests count on.
    ///
    /// # Errors
    /// When the server does not take them.
    pub async fn seed(&self) -> anyhow::Result<()> {
        let mut places = Places::new(SEED)?;
        let accounts = (0..ACCOUNTS).map(|i| (format!("/api/accounts/{}", account(i)), json!({"status": "Active"})));
        let drones = (0..DRONES).map(|i| {
            let drone = json!({"home": places.anywhere(), "speedKmh": 90.0, "rangeKm": 60.0, "payloadKg": 6.0});
            (format!("/api/drones/bench-{i}"), drone)
        });
        for (path, body) in accounts.chain(drones) {
            let request = http::request("PUT", &path, "application/json", body.to_string().as_bytes());
            let (status, body) = self.call(&request).await.with_context(|| format!("PUT {path}"))?;
            let told = String::from_utf8_lossy(&body);
            anyhow::ensure!(matches!(status, 200 | 201 | 204), "PUT {path} answered {status}: {told}");
        }
        Ok(())
    }
}

/// `http.listen` as `DRONE__HTTP__LISTEN`.
fn variable(key: &str) -> String {
    format!("DRONE__{}", key.to_uppercase().replace('.', "__"))
}

/// The address of a server that may be put under load.
///
/// # Errors
/// When it is not `http://host:port` or not on this machine.
fn address_of(url: &str, allow_remote: bool) -> anyhow::Result<SocketAddr> {
    let rest = url.strip_prefix("http://").context("--url begins with http://")?.trim_end_matches('/');
    let host = if rest.contains(':') { rest.to_owned() } else { format!("{rest}:80") };
    let address = host.to_socket_addrs()?.next().with_context(|| format!("{host} has no address"))?;
    anyhow::ensure!(
        allow_remote || address.ip().is_loopback(),
        "{address} is not on this machine; --allow-remote puts load on it all the same"
    );
    Ok(address)
}

impl Options {
    /// # Errors
    /// When a server was given, and the scenario has to start its own.
    pub fn refuse_url(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.url.is_none(), "this scenario starts, ends and configures its own servers: no --url");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_put_under_load_unless_asked() {
        assert!(address_of("http://127.0.0.1:8080/", false).is_ok());
        assert!(address_of("http://192.0.2.1:8080", false).is_err());
        assert!(address_of("http://192.0.2.1:8080", true).is_ok());
        assert!(address_of("ftp://127.0.0.1", true).is_err());
    }

    #[test]
    fn keys_become_variables() {
        assert_eq!(variable("faults.default.latency_ms"), "DRONE__FAULTS__DEFAULT__LATENCY_MS");
    }
}
