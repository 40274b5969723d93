//! Who hears what. A subscriber is found by what it asked for, not asked about every event, and each event is made
//! once however many hear it.
//!
//! What waits for one subscriber is bounded: one that lets more wait is marked as lagging and let go, at no cost to
//! the others. One that has taken everything always gets the next batch whole, however large the engine made it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytestring::ByteString;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::domain::status::{EventId, Line};
use crate::stream::Entry;

/// What one subscriber wants to hear: everything, or only what has this delivery and this owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub delivery_id: Option<String>,
    pub owner_id: Option<String>,
}

impl Filter {
    fn wants(&self, line: &Line) -> bool {
        self.delivery_id.as_deref().is_none_or(|id| id == line.delivery_id)
            && self.owner_id.as_deref().is_none_or(|id| id == line.owner_id)
    }
}

/// One message of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Event {
        id: EventId,
        json: ByteString,
    },
    /// What lay between was removed from the stream before it could be told.
    Gap {
        from: EventId,
        to: EventId,
    },
    /// The subscriber let too much wait; the feed ends here and can be resumed after this event.
    Lagged {
        resume_from: Option<EventId>,
    },
}

impl Told {
    /// The events of a line, whole again.
    fn events(line: &Line, first: EventId) -> Vec<Self> {
        let (delivery, owner) = (json(&line.delivery_id), json(&line.owner_id));
        let events = line.events.iter().zip(first.number..);
        let event = |(event, number): (&&RawValue, u32)| {
            let id = EventId { number, ..first };
            let rest = event.get().strip_prefix('{')?;
            let json = format!(r#"{{"id":"{id}","deliveryId":{delivery},"ownerId":{owner},{rest}"#).into();
            Some(Self::Event { id, json })
        };
        events.filter_map(event).collect()
    }

    /// As the client sees it.
    #[must_use]
    pub fn json(&self) -> ByteString {
        match self {
            Self::Event { json, .. } => json.clone(),
            Self::Gap { from, to } => format!(r#"{{"type":"Gap","from":"{from}","to":"{to}"}}"#).into(),
            Self::Lagged { resume_from: Some(id) } => format!(r#"{{"type":"Lagged","resumeFrom":"{id}"}}"#).into(),
            Self::Lagged { resume_from: None } => r#"{"type":"Lagged","resumeFrom":null}"#.into(),
        }
    }
}

/// A text as JSON.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The lines of an entry, each with the id of its first event. What cannot be read is nobody's.
fn lines(entry: &Entry) -> impl Iterator<Item = (EventId, Line<'_>)> {
    let mut next = EventId::start_of(entry.offset);
    let lines = entry.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok()).map(move |line| {
        let first = next;
        next.number = next.number.saturating_add(u32::try_from(line.events.len()).unwrap_or(u32::MAX));
        (first, line)
    })
}

/// What one subscriber is to be told of an entry.
pub fn wanted<'a>(entry: &'a Entry, filter: &'a Filter) -> impl Iterator<Item = Told> + 'a {
    lines(entry).filter(|(_, line)| filter.wants(line)).flat_map(|(first, line)| Told::events(&line, first))
}

/// What the hub and one subscriber both see.
#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    lagged: AtomicBool,
}

/// A subscriber's end.
#[derive(Debug)]
pub struct Seat {
    pub key: u64,
    batches: mpsc::UnboundedReceiver<Vec<Told>>,
    batch: std::vec::IntoIter<Told>,
    shared: Arc<Shared>,
    told_up_to: Arc<AtomicU64>,
}

impl Seat {
    /// The next message; none when the hub let go of this seat or is gone.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(told) = self.batch.next() {
                self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
                return Some(told);
            }
            self.batch = self.batches.recv().await?.into_iter();
        }
    }

    #[must_use]
    pub fn lagged(&self) -> bool {
        self.shared.lagged.load(Ordering::Acquire)
    }

    /// Everything before this entry that this seat wanted was told to it.
    #[must_use]
    pub fn told_up_to(&self) -> u64 {
        self.told_up_to.load(Ordering::Acquire)
    }
}

struct Member {
    filter: Filter,
    batches: mpsc::UnboundedSender<Vec<Told>>,
    batch: Vec<Told>,
    shared: Arc<Shared>,
}

/// All subscribers of this process.
pub struct Audience {
    buffer: usize,
    next_key: u64,
    members: HashMap<u64, Member>,
    /// Each member is in one of these, under the narrowest of its wishes.
    all: Vec<u64>,
    by_delivery: HashMap<String, Vec<u64>>,
    by_owner: HashMap<String, Vec<u64>>,
    told_up_to: Arc<AtomicU64>,
    pub told: u64,
    pub lagged: u64,
    pub gaps: u64,
}

impl Audience {
    #[must_use]
    pub fn new(buffer: usize) -> Self {
        Self {
            buffer,
            next_key: 0,
            members: HashMap::new(),
            all: Vec::new(),
            by_delivery: HashMap::new(),
            by_owner: HashMap::new(),
            told_up_to: Arc::default(),
            told: 0,
            lagged: 0,
            gaps: 0,
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn join(&mut self, filter: Filter) -> Seat {
        let key = self.next_key;
        self.next_key += 1;
        match &filter {
            Filter { delivery_id: Some(id), .. } => self.by_delivery.entry(id.clone()).or_default().push(key),
            Filter { owner_id: Some(id), .. } => self.by_owner.entry(id.clone()).or_default().push(key),
            _ => self.all.push(key),
        }
        let (sender, batches) = mpsc::unbounded_channel();
        let shared = Arc::<Shared>::default();
        self.members.insert(key, Member { filter, batches: sender, batch: Vec::new(), shared: shared.clone() });
        Seat { key, batches, batch: Vec::new().into_iter(), shared, told_up_to: self.told_up_to.clone() }
    }

    pub fn leave(&mut self, key: u64) {
        let Some(member) = self.members.remove(&key) else { return };
        match member.filter {
            Filter { delivery_id: Some(id), .. } => forget(&mut self.by_delivery, id, key),
            Filter { owner_id: Some(id), .. } => forget(&mut self.by_owner, id, key),
            _ => self.all.retain(|other| *other != key),
        }
    }

    /// Hands entries out that begin at `next`, and comes back with what is next after them. With nobody there it only
    /// looks at the last offset.
    pub fn tell(&mut self, entries: &[Entry], mut next: u64) -> u64 {
        if self.members.is_empty() {
            return entries.last().map_or(next, |last| next.max(last.offset + 1));
        }
        let asked = next;
        for entry in entries.iter().skip_while(|entry| entry.offset < asked) {
            if entry.offset > next {
                self.gap(next, entry.offset);
            }
            self.gather(entry);
            next = entry.offset + 1;
        }
        self.send(next);
        next
    }

    /// Tells everybody that there is nothing to tell between two places.
    pub fn tell_gap(&mut self, from: u64, to: u64) {
        self.gap(from, to);
        self.send(to);
    }

    fn gap(&mut self, from: u64, to: u64) {
        tracing::warn!(from, to, "the status stream has a gap");
        self.gaps += 1;
        let gap = Told::Gap { from: EventId::start_of(from), to: EventId::start_of(to) };
        self.members.values_mut().for_each(|member| member.batch.push(gap.clone()));
    }

    fn gather(&mut self, entry: &Entry) {
        for (first, line) in lines(entry) {
            let lists = [self.by_delivery.get(&*line.delivery_id), self.by_owner.get(&*line.owner_id)];
            let concerned = lists.into_iter().flatten().flatten();
            let mut events = None;
            for key in self.all.iter().chain(concerned) {
                let Some(member) = self.members.get_mut(key) else { continue };
                if member.filter.wants(&line) {
                    let made = events.get_or_insert_with(|| Told::events(&line, first));
                    member.batch.extend_from_slice(made);
                }
            }
        }
    }

    /// Sends what was gathered. Only then it counts as told.
    fn send(&mut self, next: u64) {
        let mut gone = Vec::new();
        for (key, member) in self.members.iter_mut().filter(|(_, member)| !member.batch.is_empty()) {
            let batch = std::mem::take(&mut member.batch);
            let waiting = member.shared.waiting.load(Ordering::Acquire);
            if waiting > 0 && waiting + batch.len() > self.buffer {
                member.shared.lagged.store(true, Ordering::Release);
                self.lagged += 1;
                gone.push(*key);
                continue;
            }
            self.told += batch.len() as u64;
            member.shared.waiting.fetch_add(batch.len(), Ordering::AcqRel);
            if member.batches.send(batch).is_err() {
                gone.push(*key);
            }
        }
        self.told_up_to.store(next, Ordering::Release);
        gone.into_iter().for_each(|key| self.leave(key));
    }
}

fn forget(index: &mut HashMap<String, Vec<u64>>, id: String, key: u64) {
    if let std::collections::hash_map::Entry::Occupied(mut keys) = index.entry(id) {
        keys.get_mut().retain(|other| *other != key);
        if keys.get().is_empty() {
            keys.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::notice::StatusLines;
    use crate::domain::DeliveryId;
    use crate::domain::status::{EventType, StatusEvent};
    use crate::domain::time::now;

    fn entry(offset: u64, lines: usize) -> Entry {
        let line = r#"{"deliveryId":"d","ownerId":"o","events":[{"type":"Step"}]}"#.to_owned() + "\n";
        Entry { offset, at: now(), body: line.repeat(lines).into() }
    }

    fn only(delivery: &str) -> Filter {
        Filter { delivery_id: Some(delivery.to_owned()), owner_id: None }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_the_others_hear_all() {
        let mut audience = Audience::new(10);
        let (mut lazy, mut keen) = (audience.join(Filter::default()), audience.join(only("d")));
        for offset in 0..20 {
            audience.tell(&[entry(offset, 3)], offset);
            for number in 0..3 {
                let Some(Told::Event { id, .. }) = keen.next().await else { panic!("nothing was told") };
                assert_eq!(id, EventId { offset, number });
            }
        }
        assert_eq!((audience.len(), audience.lagged), (1, 1));
        assert!(lazy.lagged() && !keen.lagged());
        let mut heard = 0;
        while lazy.next().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, 9);
    }

    #[tokio::test]
    async fn a_batch_larger_than_the_buffer_reaches_who_has_taken_everything() {
        let mut audience = Audience::new(2);
        let mut seat = audience.join(Filter::default());
        for offset in 0..3 {
            assert_eq!(audience.tell(&[entry(offset, 50)], offset), offset + 1);
            for _ in 0..50 {
                assert!(matches!(seat.next().await, Some(Told::Event { .. })));
            }
        }
        assert_eq!(audience.lagged, 0);
    }

    #[test]
    fn changes_of_one_delivery_share_a_line_and_are_told_one_by_one() {
        let mut lines = StatusLines::default();
        for (delivery, detail) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            let id = DeliveryId::parse(delivery).unwrap();
            let event = StatusEvent::new(EventType::Step, now(), id, format!("of \"{delivery}\""));
            lines.push(&StatusEvent { detail: Some(detail.into()), ..event });
        }
        assert_eq!(lines.len(), 4);
        let entry = Entry { offset: 7, at: now(), body: lines.into_body() };
        assert_eq!(entry.body.iter().filter(|byte| **byte == b'\n').count(), 3);
        let filter = only("a");
        let told: Vec<serde_json::Value> =
            wanted(&entry, &filter).map(|told| serde_json::from_str(&told.json()).unwrap()).collect();
        let seen: Vec<_> = told.iter().map(|event| (event["id"].as_str(), event["detail"].as_str())).collect();
        assert_eq!(seen, [(Some("7-0"), Some("1")), (Some("7-1"), Some("2")), (Some("7-3"), Some("4"))]);
        assert!(told.iter().all(|event| event["ownerId"] == "of \"a\"" && event["type"] == "Step"));
    }

    #[tokio::test]
    async fn entries_that_are_gone_are_told_as_a_gap() {
        let mut audience = Audience::new(10);
        let mut seat = audience.join(only("another"));
        assert_eq!(audience.tell(&[entry(4, 1), entry(7, 1)], 4), 8);
        let (from, to) = (EventId::start_of(5), EventId::start_of(7));
        assert_eq!(seat.next().await, Some(Told::Gap { from, to }));
        assert_eq!(seat.told_up_to(), 8);
    }

    #[test]
    fn who_leaves_leaves_nothing_behind() {
        let mut audience = Audience::new(10);
        let owner = Filter { delivery_id: None, owner_id: Some("o".to_owned()) };
        for filter in [Filter::default(), only("d"), owner] {
            let seat = audience.join(filter);
            audience.leave(seat.key);
        }
        assert!(audience.is_empty() && audience.all.is_empty());
        assert!(audience.by_delivery.is_empty() && audience.by_owner.is_empty());
    }
}
