//! Pauses between tries: they double up to a limit, and each is drawn at random between nothing and that (full
//! jitter), so that those who failed together do not come back together.

use std::time::Duration;

use rand::RngExt;

#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// For parts of the engine that are away: soon at first, never long.
    pub const ENGINE: Self = Self { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

    /// The pause after so many failures.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let full = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        full.mul_f64(rand::rng().random_range(0.0..=1.0)).max(Duration::from_millis(1))
    }

    /// Tries until it works; what is logged once is that it does not.
    pub async fn until_ok<T, E: std::fmt::Display, F: AsyncFnMut() -> Result<T, E>>(&self, what: &str, mut f: F) -> T {
        let mut failures = 0;
        loop {
            match f().await {
                Ok(done) => return done,
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(%error, "{what} failed; trying until it works");
                    }
                    tokio::time::sleep(self.pause(failures)).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_differ() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
        let pauses: Vec<_> = (0..1_000).map(|i| backoff.pause(i)).collect();
        assert!(pauses.iter().all(|p| *p <= Duration::from_secs(1)));
        assert!(pauses[1] <= Duration::from_millis(100));
        assert!(pauses.iter().max() > Some(&Duration::from_millis(500)));
        assert_ne!(pauses[500], pauses[501]);
    }
}
