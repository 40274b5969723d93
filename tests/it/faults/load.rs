//! A bounded load of delivery requests of every kind, and the book of what became of each: accepted (`202`), refused
//! (`429`, `503`) or unknown (no answer). What has an id or a key of the client's own is asked again until it is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::program::{OWNERS, PAYLOAD_KG};
use super::rounds;
use crate::support::http::{Client, Response};
use crate::support::process::PATIENCE;

/// What the clients know.
#[derive(Default)]
pub struct Book {
    pub attempted: u64,
    pub refused: u64,
    pub unknown: u64,
    /// The tag of every accepted delivery, by its id.
    pub accepted: BTreeMap<String, String>,
    /// Deliveries whose cancellation was accepted, and those where nobody knows.
    pub cancelled: BTreeSet<String>,
    pub maybe_cancelled: BTreeSet<String>,
    /// Requests with an id or a key of the client's own that are to be asked again.
    open: Vec<Attempt>,
    /// Answers that must not be.
    pub wrong: Vec<String>,
}

#[derive(Clone)]
struct Attempt {
    number: u64,
    how: How,
    body: String,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Post,
    Keyed,
    Put,
    Batch,
}

/// How the load is to be.
#[derive(Clone, Copy)]
pub struct Style {
    pub clients: usize,
    /// What a client waits between two calls.
    pub pause: Duration,
    /// No more than this many are accepted.
    pub most: usize,
    /// One in so many is cancelled right after it was accepted; none with 0.
    pub cancel_every: u64,
}

impl Default for Style {
    fn default() -> Self {
        Self { clients: 6, pause: Duration::from_millis(10), most: 8_000 * rounds(1) as usize, cancel_every: 10 }
    }
}

/// What a client waits when it was refused or not answered: an outage is not to be a flood afterwards.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// A load under way.
pub struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

struct Shared {
    ports: Vec<u16>,
    style: Style,
    next: AtomicU64,
    over: AtomicBool,
    held: AtomicBool,
    /// Clients in the middle of a call.
    busy: AtomicUsize,
    book: Mutex<Book>,
}

impl Load {
    /// Begins to send to these programs in turn.
    pub fn start(ports: &[u16], style: Style) -> Self {
        let shared = Arc::new(Shared {
            ports: ports.to_vec(),
            style,
            next: AtomicU64::new(0),
            over: AtomicBool::new(false),
            held: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            book: Mutex::default(),
        });
        let mut clients = JoinSet::new();
        for client in 0..style.clients {
            clients.spawn(run(shared.clone(), Client::new(ports[client % ports.len()])));
        }
        Self { shared, clients }
    }

    pub fn accepted(&self) -> usize {
        self.shared.book.lock().unwrap().accepted.len()
    }

    /// Waits until so many more are accepted: proof that the program takes requests in.
    pub async fn wait_for_more(&self, more: usize) {
        let (wanted, most) = (self.accepted() + more, self.shared.style.most);
        assert!(wanted <= most, "the load was over before the faults were: no more than {most} are sent");
        self.wait_for(wanted).await;
    }

    /// Waits until as many are accepted as there are to be.
    pub async fn wait_for_all(&self) {
        self.wait_for(self.shared.style.most).await;
    }

    /// It may take its time as long as some come through.
    async fn wait_for(&self, wanted: usize) {
        let mut seen = self.accepted();
        let mut deadline = Instant::now() + PATIENCE;
        while seen < wanted {
            assert!(Instant::now() < deadline, "no more than {seen} accepted in {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.accepted() > seen {
                (seen, deadline) = (self.accepted(), Instant::now() + PATIENCE);
            }
        }
    }

    /// Stops sending, until it is let go on; comes back when every call is answered.
    pub async fn hold(&self) {
        self.shared.held.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        while self.shared.busy.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < deadline, "calls without an answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn go_on(&self) {
        self.shared.held.store(false, Ordering::SeqCst);
    }

    /// Ends the load, asks again what is not known, and hands the book over.
    pub async fn finish(mut self) -> Book {
        self.shared.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        let mut client = Client::new(self.shared.ports[0]);
        let open = std::mem::take(&mut self.shared.book.lock().unwrap().open);
        let deadline = Instant::now() + PATIENCE;
        for attempt in open {
            while !self.shared.settled(&attempt, &mut client).await {
                assert!(Instant::now() < deadline, "a request is not taken in when it is repeated");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        std::mem::take(&mut *self.shared.book.lock().unwrap())
    }
}

async fn run(shared: Arc<Shared>, mut client: Client) {
    while !shared.over.load(Ordering::Relaxed) {
        shared.busy.fetch_add(1, Ordering::SeqCst);
        let room = shared.book.lock().unwrap().accepted.len() < shared.style.most;
        let mut taken = true;
        if room && !shared.held.load(Ordering::SeqCst) {
            let attempt = Attempt::new(shared.next.fetch_add(1, Ordering::Relaxed));
            taken = shared.send(attempt, &mut client).await;
        }
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        if !taken {
            tokio::time::sleep(AFTER_REFUSAL).await;
        }
        tokio::time::sleep(shared.style.pause).await;
    }
}

impl Shared {
    /// Sends a request, and what belongs to it; says whether it was accepted.
    async fn send(&self, attempt: Attempt, client: &mut Client) -> bool {
        let answer = attempt.send(client).await;
        let accepted = self.note(&attempt, &answer);
        let taken = !accepted.is_empty();
        if attempt.how == How::Keyed && attempt.number.is_multiple_of(3) && taken {
            // Its repeat must be the same delivery; the book finds a second id for one tag.
            let again = attempt.send(client).await;
            self.take_in(&attempt, &again);
        }
        let every = self.style.cancel_every;
        if every > 0 && attempt.number.is_multiple_of(every) {
            for id in accepted {
                self.cancel(&id, client).await;
            }
        }
        taken
    }

    /// Whether a repeated request is known to be accepted by now.
    async fn settled(&self, attempt: &Attempt, client: &mut Client) -> bool {
        let answer = attempt.send(client).await;
        !self.take_in(attempt, &answer).is_empty()
    }

    fn note(&self, attempt: &Attempt, answer: &Option<Response>) -> Vec<String> {
        let accepted = self.take_in(attempt, answer);
        let mut book = self.book.lock().unwrap();
        let size = attempt.tags().len() as u64;
        book.attempted += size;
        match answer.as_ref().map(|answer| answer.status) {
            None => book.unknown += size,
            Some(202) => book.refused += size - accepted.len() as u64,
            Some(_) => book.refused += size,
        }
        let known = !accepted.is_empty();
        if !known && matches!(attempt.how, How::Put | How::Keyed) {
            book.open.push(attempt.clone());
        }
        accepted
    }

    /// Writes the ids of an answer into the book, and what is wrong with it.
    fn take_in(&self, attempt: &Attempt, answer: &Option<Response>) -> Vec<String> {
        let Some(answer) = answer else { return Vec::new() };
        let mut book = self.book.lock().unwrap();
        match answer.status {
            202 => {}
            429 | 503 if answer.header("retry-after").is_some() => return Vec::new(),
            // The first call with this key, whose answer never came, may still hold it.
            409 if attempt.how == How::Keyed => return Vec::new(),
            other => {
                book.wrong.push(format!("request {}: {other} {}", attempt.number, answer.json()));
                return Vec::new();
            }
        }
        let body = answer.json();
        let results = match attempt.how {
            How::Batch => body["results"].as_array().cloned().unwrap_or_default(),
            _ => vec![json!({"index": 0, "deliveryId": body["deliveryId"]})],
        };
        let mut ids = Vec::new();
        for (tag, result) in attempt.tags().into_iter().zip(results) {
            if let Some(id) = result["deliveryId"].as_str() {
                book.accepted.insert(id.to_owned(), tag);
                ids.push(id.to_owned());
            }
        }
        ids
    }

    async fn cancel(&self, id: &str, client: &mut Client) {
        let answer = client.call("DELETE", &format!("/api/deliveryrequests/{id}"), &[], None).await;
        let mut book = self.book.lock().unwrap();
        match answer {
            Ok(answer) if answer.status == 202 => book.cancelled.insert(id.to_owned()),
            // Refused, or not found by a program that was started again since; or nobody knows.
            _ => book.maybe_cancelled.insert(id.to_owned()),
        };
    }
}

impl Attempt {
    /// The kinds take turns; some are bound to fail, at the first step or at the fourth.
    fn new(number: u64) -> Self {
        let how = match number % 10 {
            0..4 => How::Post,
            4..6 => How::Keyed,
            6..9 => How::Put,
            _ => How::Batch,
        };
        let owner = if number % 23 == 5 { OWNERS[1] } else { OWNERS[0] };
        let weight = if number % 17 == 3 { PAYLOAD_KG + 1.0 } else { 1.0 };
        let mut attempt = Self { number, how, body: String::new() };
        let bodies: Vec<Value> = attempt.tags().iter().map(|tag| body(owner, weight, tag)).collect();
        attempt.body = match how {
            How::Batch => Value::from(bodies).to_string(),
            _ => bodies[0].to_string(),
        };
        attempt
    }

    /// One for each delivery that is asked for; it is in the request, so that a second delivery for it is found.
    fn tags(&self) -> Vec<String> {
        let count = if self.how == How::Batch { 5 } else { 1 };
        (0..count).map(|item| format!("{}.{item}", self.number)).collect()
    }

    async fn send(&self, client: &mut Client) -> Option<Response> {
        let key = format!("key-{}", self.number);
        let put = format!("/api/deliveryrequests/put-{}", self.number);
        let body = Some(self.body.as_str());
        let answer = match self.how {
            How::Post => client.call("POST", "/api/deliveryrequests", &[], body).await,
            How::Keyed => client.call("POST", "/api/deliveryrequests", &[("idempotency-key", &key)], body).await,
            How::Put => client.call("PUT", &put, &[], body).await,
            How::Batch => client.call("POST", "/api/deliveryrequests/batch", &[], body).await,
        };
        answer.ok()
    }
}

/// A request near the fleet, some time in the next weeks, so that the drones' calendars have room.
pub fn body(owner: &str, weight: f64, tag: &str) -> Value {
    let seconds = rand::random_range(3600..60 * 24 * 3600);
    let pickup = drone_delivery::domain::time::later(drone_delivery::domain::time::now(), Duration::from_secs(seconds));
    json!({
        "ownerId": owner,
        "pickupLocation": "47.6101,-122.2015",
        "dropOffLocation": "47.6205,-122.3493",
        "pickupTime": pickup,
        "packageInfo": {"size": "Small", "weight": weight, "tag": tag},
    })
}
