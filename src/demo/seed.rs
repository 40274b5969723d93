//! Accounts and drones for the demo. The same settings always make the same ones, each by its own number, so that a
//! larger demo is the smaller one and more.
//!
//! What is there is never overwritten, and what was seeded is not seeded again: a mark says how much was, and every write
//! checks it. So an operator's changes stay over a restart, and of several processes that start at once the first to
//! write something wins. What was seeded is listed, so that [`remove`] takes back that and nothing else.

use minicbor::{Decode, Encode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::plan::FLIGHTS;
use crate::config;
use crate::domain::Location;
use crate::services::account::{self, Account, AccountStatus};
use crate::services::drone::calendar::{self, Place};
use crate::services::drone::{Drone, DroneStatus, fleet};
use crate::services::entities::{Damaged, decode, encode};
use crate::services::geography::Areas;
use crate::store::{Expect, Outcome, Scan, State, StoreError, Txn};

/// How much was seeded.
const MARK: &str = "demo/seeded";
/// The ordered set of what was seeded: `account/contoso`, `drone/demo-0001`.
const SEEDED: &str = "demo/items";
/// What one commit carries.
const BATCH: usize = 500;

/// Accounts that a newcomer can remember.
const NAMED: [(&str, &str, AccountStatus); 6] = [
    ("contoso", "Contoso", AccountStatus::Active),
    ("fabrikam", "Fabrikam", AccountStatus::Active),
    ("adventure-works", "Adventure Works", AccountStatus::Active),
    ("tailspin", "Tailspin Toys", AccountStatus::Active),
    ("northwind", "Northwind Traders", AccountStatus::Active),
    ("litware", "Litware", AccountStatus::Suspended),
];
/// Of the other accounts so many, out of 1, are suspended.
const SUSPENDED: f64 = 0.1;

/// Speed, range and payload of the drones there are: quick ones, all-rounders that cross the lake and come home, and
/// heavy ones that carry what the services take at most as far as they let it be carried.
const MODELS: [(f64, f64, f64); 3] = [(90.0, 35.0, 2.5), (75.0, 45.0, 5.0), (60.0, 70.0, 10.0)];

#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
struct Mark {
    #[n(0)]
    accounts: usize,
    #[n(1)]
    drones: usize,
}

/// The accounts of the demo, the named ones first.
pub fn accounts(settings: &config::Demo) -> impl Iterator<Item = (String, Account)> {
    let named = NAMED.into_iter().map(|(id, name, status)| (id.to_owned(), name.to_owned(), status));
    let seed = settings.seed;
    let others = (1..=settings.accounts).map(move |n| {
        let suspended = random(seed, n).random_range(0.0..1.0) < SUSPENDED;
        let status = if suspended { AccountStatus::Suspended } else { AccountStatus::Active };
        (format!("demo-{n:04}"), format!("Demo customer {n}"), status)
    });
    let account = |(id, name, status)| (id, Account { status, name: Some(name), email: None, webhook: None });
    named.chain(others).map(account)
}

/// The drones of the demo, at home all over the areas.
pub fn drones(settings: &config::Demo, areas: &Areas) -> impl Iterator<Item = Drone> {
    let seed = settings.seed;
    (1..=settings.drones).map(move |n| {
        let mut random = random(seed, n);
        let home = somewhere(areas, &mut random);
        let (speed_kmh, range_km, payload_kg) = MODELS[random.random_range(0..MODELS.len())];
        Drone { id: format!("demo-{n:04}").into(), home, speed_kmh, range_km, payload_kg, status: DroneStatus::Active }
    })
}

/// Every number has its own row of random numbers.
fn random(seed: u64, n: u32) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(n.into()))
}

/// A place in the areas, any as likely as any other.
fn somewhere(areas: &Areas, random: &mut StdRng) -> Location {
    let (low, high) = areas.bounds();
    let mut within = |low: f64, high: f64| if high > low { random.random_range(low..high) } else { low };
    let mut place =
        || Location { latitude: within(low.latitude, high.latitude), longitude: within(low.longitude, high.longitude) };
    // Areas that fill next to nothing of their bounds: the edge will do.
    (0..1_000).map(|_| place()).find(|place| areas.contains(*place)).unwrap_or_else(|| areas.nearest(low))
}

/// Seeds what was not seeded yet; says how many accounts and drones that was.
///
/// # Errors
/// When the store does not answer; to be called again then.
pub async fn seed(state: &dyn State, settings: &config::Demo, areas: &Areas) -> Result<usize, StoreError> {
    let seen = state.get(&[MARK.to_owned()]).await?.into_iter().flatten().next();
    let before: Mark = seen.as_deref().map(decode).transpose()?.unwrap_or_default();
    let as_seen = seen.map_or(Expect::Absent, Expect::Is);
    let accounts = accounts(settings).skip(before.accounts).map(|(id, account)| {
        (
            format!("account/{id}"),
            Txn::new().check(account::key(&id), Expect::Absent).put(account::key(&id), encode(&account)),
        )
    });
    let drones = drones(settings, areas).skip(before.drones).map(|drone| {
        let txn = Txn::new().check(fleet::key(&drone.id), Expect::Absent);
        (format!("drone/{}", drone.id), fleet::put(txn, &drone))
    });
    let mut txns = accounts.chain(drones).map(|(item, txn)| txn.check(MARK, as_seen.clone()).add(SEEDED, item));
    let mut seeded = 0;
    loop {
        let batch: Vec<Txn> = txns.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            break;
        }
        seeded += state.commit(batch).await?.into_iter().filter(|outcome| *outcome == Outcome::Done).count();
    }
    let after = Mark {
        accounts: before.accounts.max(NAMED.len() + settings.accounts as usize),
        drones: before.drones.max(settings.drones as usize),
    };
    if after != before {
        state.commit(vec![fleet::renew(Txn::new().check(MARK, as_seen.clone()).put(MARK, encode(&after)))]).await?;
    }
    Ok(seeded)
}

/// Takes back all that was seeded, with the drones' calendars, positions and flights; says how much was seeded. What
/// was delivered or scheduled stays.
///
/// # Errors
/// When the store does not answer; to be called again then.
pub async fn remove(state: &dyn State) -> Result<usize, StoreError> {
    let mut removed = 0;
    while let Some(items) = first(state, SEEDED).await? {
        let mut txns = Vec::with_capacity(items.len());
        for item in &items {
            let txn = match item.split_once('/') {
                Some(("account", id)) => Txn::new().delete(account::key(id)),
                Some(("drone", id)) => fleet::remove(remove_calendar(state, id).await?, id),
                _ => Txn::new(),
            };
            txns.push(txn.remove(SEEDED, item.clone()));
        }
        removed += items.len();
        state.commit(txns).await?;
    }
    while let Some(flights) = first(state, FLIGHTS).await? {
        let remove = |flight: String| Txn::new().remove(FLIGHTS, flight);
        state.commit(flights.into_iter().map(remove).collect()).await?;
    }
    state.commit(vec![fleet::renew(Txn::new().delete(MARK))]).await?;
    Ok(removed)
}

/// Begins a transaction that removes a drone's calendar.
async fn remove_calendar(state: &dyn State, drone: &str) -> Result<Txn, StoreError> {
    let mut txn = Txn::new();
    let set = calendar::index(drone);
    for member in first(state, &set).await?.unwrap_or_default() {
        let bucket = member.parse().map_err(|_| Damaged("a calendar's index".to_owned()))?;
        txn = txn.delete(Place { drone: drone.into(), bucket }.key()).remove(set.clone(), member);
    }
    Ok(txn)
}

/// The first members of a set, if it has any.
async fn first(state: &dyn State, set: &str) -> Result<Option<Vec<String>>, StoreError> {
    let members = state.scan(&Scan { set: set.into(), limit: BATCH, ..Scan::default() }).await?;
    let members: Vec<String> = members.iter().map(|member| String::from_utf8_lossy(member).into_owned()).collect();
    Ok(Some(members).filter(|members| !members.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn settings() -> config::Demo {
        Settings::builtin().unwrap().demo
    }

    #[test]
    fn the_same_seed_makes_the_same_and_more_are_the_same_and_more() {
        let (settings, areas) = (settings(), Areas::load("").unwrap());
        let larger = config::Demo { accounts: settings.accounts + 7, drones: settings.drones + 7, ..settings.clone() };
        let other = config::Demo { seed: settings.seed + 1, ..settings.clone() };
        let made = |settings: &config::Demo| -> (Vec<_>, Vec<_>) {
            (accounts(settings).collect(), drones(settings, &areas).collect())
        };
        let ((some, fleet), (more, large)) = (made(&settings), made(&larger));
        assert_eq!((&some, &fleet), (&made(&settings).0, &made(&settings).1));
        assert!(more.starts_with(&some) && large.starts_with(&fleet));
        assert_ne!(made(&other).1, fleet);
    }

    #[test]
    fn all_homes_are_in_the_areas_and_some_accounts_are_suspended() {
        let (settings, areas) = (settings(), Areas::load("").unwrap());
        assert!(settings.drones >= 300);
        assert!(drones(&settings, &areas).all(|drone| areas.contains(drone.home)));
        let of = |status| accounts(&settings).filter(move |(_, account)| account.status == status).count();
        assert!(of(AccountStatus::Suspended) > 1 && of(AccountStatus::Active) > of(AccountStatus::Suspended));
    }
}
