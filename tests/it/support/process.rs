//! A server's process, and the certainty that it ends with the tests: a tiny shell waits on a pipe that only this
//! process holds, and kills the server when the pipe closes, however this process ended.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start, on a machine that is busy with everything else.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Process {
    child: Child,
    watchdog: Child,
}

impl Process {
    /// Starts `command` with its output in `dir/name.log`. `dir` goes when the tests end without a word.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Self {
        let log = File::options().create(true).append(true).open(dir.join(format!("{name}.log"))).unwrap();
        let program = command.get_program().to_string_lossy().into_owned();
        let child =
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap_or_else(|error| {
                panic!("{program} does not start ({error}): `make test` installs what it needs")
            });
        let watchdog = Command::new("sh")
            .args(["-c", r#"trap "" INT TERM HUP; read -r _; kill -9 "$1"; sleep 1; rm -rf "$2""#, "sh"])
            .arg(child.id().to_string())
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, watchdog }
    }

    /// Sends a signal by its name, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status().unwrap();
        assert!(status.success(), "no process to signal");
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end by itself; none when a signal ended it.
    pub fn exit_code(&mut self) -> Option<i32> {
        wait_until("the end of the process", || self.has_ended());
        self.child.wait().unwrap().code()
    }

    /// Waits for its end by itself, while others go on; none when no signal ended it.
    pub async fn ending_signal(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < deadline, "the process does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.child.wait().unwrap().signal()
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

/// A port that nothing listens on, below the range that outgoing connections take theirs from: a server that is
/// started again finds its port free, and a client that knocks at a closed port never meets itself.
pub fn free_port() -> u16 {
    const RANGE: std::ops::Range<u16> = 12_000..32_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % u32::from(RANGE.end - RANGE.start)).unwrap();
    for _ in RANGE {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + (start.wrapping_mul(641).wrapping_add(step)) % (RANGE.end - RANGE.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}

/// Tries until it holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}
