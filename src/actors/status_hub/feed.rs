//! What a connection holds: a [`Subscription`] that knows its own place on the stream. While it is behind it reads
//! the stream by itself, a page at a time and at its peer's pace; once it is near the end it takes a seat in the hub's
//! audience, reads what lies between, and is live. It falls back to reading when the hub dies. Its place says what was
//! told already, so going over from one to the other neither leaves anything out nor tells it twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::audience::wanted;
use super::{ENGINE_PATIENCE, Filter, Join, Live, StatusHub, Told, bounds, in_time};
use crate::actors::backoff::Backoff;
use crate::actors::slot::Slot;
use crate::config;
use crate::domain::status::EventId;
use crate::stream::{Entry, From, ReadError, Stream, Streams};

/// Pages that are read at once. A page is held by nobody's peer, so none of these waits for a slow one.
const READING_AT_ONCE: usize = 16;
/// A page ends with the entry that reaches this.
const PAGE_BYTES: usize = 256 * 1024;
/// So few entries from the end it is time to join the hub: what it tells meanwhile fits into the buffer.
const NEAR: u64 = 4;

/// Why there is no subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("there are as many subscribers as this instance takes")]
    Full,
    #[error("this instance is shutting down")]
    Closing,
}

/// The way into the feed, for every connection of the process.
#[derive(Clone)]
pub struct StatusFeed {
    inner: Arc<Inner>,
}

struct Inner {
    streams: Arc<dyn Streams>,
    hub: Slot<StatusHub>,
    ping: Duration,
    places: Arc<Semaphore>,
    reading: Semaphore,
    closing: CancellationToken,
}

impl StatusFeed {
    #[must_use]
    pub fn new(streams: Arc<dyn Streams>, settings: &config::StatusFeed, hub: Slot<StatusHub>) -> Self {
        let places = Arc::new(Semaphore::new(settings.max_subscribers.min(Semaphore::MAX_PERMITS)));
        let reading = Semaphore::new(READING_AT_ONCE);
        let closing = CancellationToken::new();
        Self { inner: Arc::new(Inner { streams, hub, ping: settings.ping, places, reading, closing }) }
    }

    /// Subscribes to what comes from now on, or to what came after an event.
    ///
    /// # Errors
    /// When there are too many subscribers already, or the feed is being closed.
    pub fn subscribe(&self, filter: Filter, since: Option<EventId>) -> Result<Subscription, Refused> {
        if self.inner.closing.is_cancelled() {
            return Err(Refused::Closing);
        }
        let place = self.inner.places.clone().try_acquire_owned().map_err(|_| Refused::Full)?;
        Ok(Subscription {
            feed: self.inner.clone(),
            filter,
            next: since.map(EventId::after),
            last: since,
            read: VecDeque::new(),
            live: None,
            failures: 0,
            _place: place,
        })
    }

    /// Ends every subscription and takes no more.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// Comes back when the feed is being closed.
    pub async fn closed(&self) {
        self.inner.closing.cancelled().await;
    }

    /// How often a peer is to show that it is there.
    #[must_use]
    pub fn ping(&self) -> Duration {
        self.inner.ping
    }
}

pub struct Subscription {
    feed: Arc<Inner>,
    filter: Filter,
    /// The next place wanted; none until it is known where "now" is.
    next: Option<EventId>,
    /// The last event handed out.
    last: Option<EventId>,
    read: VecDeque<Told>,
    live: Option<Live>,
    failures: u32,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// Finds out where "now" is, so that everything from the moment the peer is answered will be told. When the engine
    /// is away that is found out later.
    pub async fn take_place(&mut self) {
        if self.next.is_none() {
            let joined = tokio::time::timeout(ENGINE_PATIENCE, self.join()).await;
            if let Ok(Err(error)) = joined {
                self.pause(&error).await;
            }
        }
    }

    /// The next message; waits for it, over every failure of hub and engine. After [`Told::Lagged`] there is none.
    /// To be awaited to its end.
    pub async fn next(&mut self) -> Told {
        loop {
            let told = match (self.read.pop_front(), &self.live) {
                (Some(told), _) => told,
                (None, Some(live)) if self.next.is_none_or(|next| next.offset >= live.from) => {
                    match self.hear().await {
                        Some(told) => told,
                        None => continue,
                    }
                }
                (None, _) => {
                    match self.catch_up().await {
                        Ok(()) => self.failures = 0,
                        Err(error) => self.pause(&error).await,
                    }
                    continue;
                }
            };
            if let Told::Event { id, .. } = &told {
                self.last = Some(*id);
            }
            return told;
        }
    }

    /// What the hub tells, unless it was told already.
    async fn hear(&mut self) -> Option<Told> {
        let seat = &mut self.live.as_mut()?.seat;
        match seat.next().await {
            Some(Told::Event { id, .. }) if self.next.is_some_and(|next| id < next) => None,
            Some(told) => {
                match &told {
                    Told::Event { id, .. } => self.next = Some(id.after()),
                    // The stream may be another one, which begins before the place that was wanted.
                    Told::Gap { to, .. } => self.next = Some(*to),
                    Told::Lagged { .. } => {}
                }
                Some(told)
            }
            None if seat.lagged() => Some(Told::Lagged { resume_from: self.last }),
            None => {
                // The hub is gone. What it passed over for this filter need not be read again.
                self.next = self.next.max(Some(EventId::start_of(seat.told_up_to())));
                self.live = None;
                None
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), ReadError> {
        match &self.live {
            Some(live) => self.read_page(live.from).await,
            None => self.approach().await,
        }
    }

    /// One step towards being live.
    async fn approach(&mut self) -> Result<(), ReadError> {
        let Some(next) = self.next else { return self.join().await };
        let turn = self.feed.reading.acquire().await;
        let bounds = bounds(&*self.feed.streams, next.offset).await?;
        drop(turn);
        if next > EventId::start_of(bounds.next) || next.offset < bounds.first {
            let to = EventId::start_of(bounds.first);
            self.read.push_back(Told::Gap { from: next, to });
            self.next = Some(to);
            Ok(())
        } else if bounds.next - next.offset <= NEAR {
            self.join().await
        } else {
            self.read_page(bounds.next).await
        }
    }

    async fn join(&mut self) -> Result<(), ReadError> {
        let away = || ReadError::Unavailable { part: "status hub", reason: "it is being started again".to_owned() };
        let hub = self.feed.hub.get().ok_or_else(away)?;
        let (reply, seated) = oneshot::channel();
        // One for each subscriber at most, so it need not be bounded.
        hub.do_send(Join { filter: self.filter.clone(), reply });
        let live = seated.await.map_err(|_| away())?;
        self.next.get_or_insert(EventId::start_of(live.from));
        self.live = Some(live);
        Ok(())
    }

    /// Reads on from the next place, not beyond the page that holds the entry before `until`.
    async fn read_page(&mut self, until: u64) -> Result<(), ReadError> {
        let Some(mut next) = self.next else { return Ok(()) };
        let turn = self.feed.reading.acquire().await;
        let entries = page(&*self.feed.streams, next.offset, until).await?;
        drop(turn);
        let asked = next.offset;
        for entry in entries.iter().skip_while(|entry| entry.offset < asked) {
            if entry.offset > next.offset {
                let to = EventId::start_of(entry.offset);
                self.read.push_back(Told::Gap { from: next, to });
                next = to;
            }
            let from = next;
            let news = wanted(entry, &self.filter);
            self.read.extend(news.filter(|told| matches!(told, Told::Event { id, .. } if *id >= from)));
            next = EventId::start_of(entry.offset + 1);
        }
        self.next = Some(next);
        Ok(())
    }

    async fn pause(&mut self, error: &ReadError) {
        self.failures += 1;
        if self.failures == 1 {
            tracing::debug!(%error, "a subscriber waits for the status stream");
        }
        tokio::time::sleep(Backoff::ENGINE.pause(self.failures)).await;
    }
}

async fn page(streams: &dyn Streams, from: u64, until: u64) -> Result<Vec<Entry>, ReadError> {
    let mut reader = in_time(streams.read(Stream::Status, From::Offset(from))).await?;
    let mut entries: Vec<Entry> = in_time(reader.next()).await?;
    let ends = |entries: &[Entry]| {
        entries.last().is_some_and(|last| last.offset + 1 >= until)
            || entries.iter().map(|entry| entry.body.len()).sum::<usize>() >= PAGE_BYTES
    };
    while !ends(&entries) {
        match tokio::time::timeout(ENGINE_PATIENCE, reader.next()).await {
            Ok(more) => entries.extend(more?),
            // What is there is good; the rest is the next page's business.
            Err(_) => break,
        }
    }
    Ok(entries)
}
