//! Streams that go away or panic when told to, in front of real ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drone_delivery::stream::{AppendError, Bounds, Entry, From, ReadError, Stream, StreamReader, Streams};

#[derive(Default)]
pub struct Faults {
    /// Nothing can be read, and readers that are open fail.
    pub away: AtomicBool,
    /// The next read of the hub panics, once.
    pub panic: AtomicBool,
}

impl Faults {
    fn check(&self, reader: Reader) -> Result<(), ReadError> {
        assert!(reader == Reader::Subscription || !self.panic.swap(false, Ordering::SeqCst), "a panic on purpose");
        if self.away.load(Ordering::SeqCst) {
            return Err(ReadError::Unavailable { part: "stream", reason: "away on purpose".to_owned() });
        }
        Ok(())
    }
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Hub,
    Subscription,
}

pub struct Flaky {
    pub inner: Arc<dyn Streams>,
    pub reader: Reader,
    pub faults: Arc<Faults>,
}

#[async_trait]
impl Streams for Flaky {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        self.inner.append(stream, body).await
    }

    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        self.faults.check(self.reader)?;
        let inner = self.inner.read(stream, from).await?;
        Ok(Box::new(FlakyReader { inner, reader: self.reader, faults: self.faults.clone() }))
    }

    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        self.faults.check(self.reader)?;
        self.inner.bounds(stream).await
    }

    async fn release(&self, stream: Stream, offset: u64) {
        self.inner.release(stream, offset).await;
    }

    async fn ensure(&self, stream: Stream) -> Result<(), AppendError> {
        self.inner.ensure(stream).await
    }
}

struct FlakyReader {
    inner: Box<dyn StreamReader>,
    reader: Reader,
    faults: Arc<Faults>,
}

#[async_trait]
impl StreamReader for FlakyReader {
    async fn next(&mut self) -> Result<Vec<Entry>, ReadError> {
        loop {
            self.faults.check(self.reader)?;
            // Faults are noticed while nothing comes, too.
            if let Ok(entries) = tokio::time::timeout(Duration::from_millis(20), self.inner.next()).await {
                return entries;
            }
        }
    }
}
