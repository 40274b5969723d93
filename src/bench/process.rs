//! Processes that end with this one, however it ends: they are killed when their handle is dropped, and a tiny shell
//! that waits on a pipe only this process holds kills them when even that was not possible. Also what they use, out
//! of `/proc`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

/// Linux counts the time of processes and processors in hundredths of a second.
pub const TICK: Duration = Duration::from_millis(10);
const LOG_SHOWN: usize = 20;

pub struct Process {
    child: Child,
    watchdog: Child,
    log: std::path::PathBuf,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
    pub peak_bytes: u64,
}

/// What the processors of this machine have done so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    pub busy: Duration,
    /// Wanted here, and given to another machine on the same hardware.
    pub stolen: Duration,
    pub all: Duration,
}

impl Process {
    /// Starts `command` with its output in `dir/name.log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("{program} cannot be started"))?;
        let watchdog = Command::new("sh")
            .args(["-c", r#"trap "" INT TERM HUP; read -r _; kill -9 "$1""#, "sh"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match watchdog {
            Ok(watchdog) => Ok(Self { child, watchdog, log }),
            Err(error) => {
                end(child);
                Err(error).context("sh cannot be started")
            }
        }
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// When it has ended, with the end of what it wrote.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let skipped = log.lines().count().saturating_sub(LOG_SHOWN);
            let shown = log.lines().skip(skipped).collect::<Vec<_>>().join("\n");
            anyhow::bail!("a process ended ({status}):\n{shown}");
        }
        Ok(())
    }

    #[must_use]
    pub fn usage(&self) -> Usage {
        usage(self.id()).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watchdog first: the number of a process that is gone may be another's.
        for child in [&mut self.watchdog, &mut self.child] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// What this process has used.
#[must_use]
pub fn own_usage() -> Usage {
    usage(std::process::id()).unwrap_or_default()
}

fn usage(id: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    Some(Usage {
        cpu: cpu(&stat)?,
        resident_bytes: kilobytes(&status, "VmRSS:")? * 1024,
        peak_bytes: kilobytes(&status, "VmHWM:")? * 1024,
    })
}

/// User and system time: the 14th and 15th field, counted behind the name, which may hold anything.
fn cpu(stat: &str) -> Option<Duration> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u32>().ok();
    Some(TICK * (ticks(11)? + ticks(12)?))
}

/// What this machine's processors have done; none where the system does not tell.
#[must_use]
pub fn machine() -> Option<Machine> {
    processors(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line: user, nice, system, idle, waiting for a disk, two kinds of interrupts, stolen.
fn processors(stat: &str) -> Option<Machine> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let times: Vec<f64> = fields.map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, idle, disk, interrupts, soft_interrupts, stolen] = times.try_into().ok()?;
    let busy = user + nice + system + interrupts + soft_interrupts;
    let time = |ticks: f64| TICK.mul_f64(ticks);
    Some(Machine { busy: time(busy), stolen: time(stolen), all: time(busy + idle + disk + stolen) })
}

fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// A loopback port that nothing listens on.
///
/// # Errors
/// When there is none.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_behind_any_name() {
        let stat = "12 (a ) name) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(kilobytes("Name:\tx\nVmHWM:\t   2048 kB\n", "VmHWM:"), Some(2048));
        assert!(usage(std::process::id()).unwrap().resident_bytes > 0);
    }

    #[test]
    fn the_processors_are_busy_idle_or_stolen() {
        let second = |n: u64| Duration::from_secs(n);
        let told = processors("cpu  100 200 300 400 500 600 700 800 5 5\ncpu0 1 2 3\n").unwrap();
        assert_eq!(told, Machine { busy: second(19), stolen: second(8), all: second(36) });
        assert_eq!(processors("cpu  1 2 3\n"), None);
    }

    #[test]
    fn a_process_ends_with_its_handle() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        let mut process = Process::start(command, dir.path(), "sleep").unwrap();
        process.check().unwrap();
        let id = process.id();
        drop(process);
        assert!(usage(id).is_none());
    }
}
