//! The drones, and where they are at home. The whole fleet is kept in memory, by H3 cell of the homes; a version key
//! that every change of the fleet renews tells when to read it again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h3o::{CellIndex, LatLng, Resolution};
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::domain::{Location, Map, compact};
use crate::services::entities::{encode, readable};
use crate::services::geography::OnSphere;
use crate::services::{SharedState, telemetry};
use crate::store::{Scan, State, StoreError, Txn};

pub const SET: &str = "drones";
const VERSION: &str = "fleet/version";
/// How long a change of the fleet by another process may go unnoticed.
const REFRESH: Duration = Duration::from_secs(1);
const PAGE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum DroneStatus {
    #[n(0)]
    Active,
    /// Keeps what it has and gets nothing new.
    #[n(1)]
    Grounded,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drone {
    #[cbor(n(0), with = "compact::text")]
    pub id: Arc<str>,
    #[n(1)]
    pub home: Location,
    #[n(2)]
    pub speed_kmh: f64,
    #[n(3)]
    pub range_km: f64,
    #[n(4)]
    pub payload_kg: f64,
    #[n(5)]
    pub status: DroneStatus,
}

#[must_use]
pub fn key(id: &str) -> String {
    format!("drone/{id}")
}

/// Adds a drone to the fleet or changes it.
#[must_use]
pub fn put(txn: Txn, drone: &Drone) -> Txn {
    txn.put(key(&drone.id), encode(drone)).add(SET, drone.id.to_string())
}

/// Takes a drone out of the fleet.
#[must_use]
pub fn remove(txn: Txn, id: &str) -> Txn {
    txn.delete(key(id)).delete(telemetry::key(id)).remove(SET, id.to_owned())
}

/// Has everybody read the fleet again; to be written with or after a change of it.
#[must_use]
pub fn renew(txn: Txn) -> Txn {
    txn.put(VERSION, uuid::Uuid::now_v7().to_string())
}

/// The fleet as one reading of the store.
#[derive(Debug, Default)]
pub struct Fleet {
    version: Option<Bytes>,
    /// The drones that take orders, each with where it is at home.
    drones: Vec<(OnSphere, Drone)>,
    /// Who is at home in a cell, by place among the drones.
    zones: Map<CellIndex, Vec<usize>>,
    /// Who is at home in a cell or in one next to it. Nearly every order finds its drone here, with a single look.
    close: Map<CellIndex, Vec<usize>>,
    pub fastest_kmh: f64,
    /// The ring beyond which no drone can be that reaches the middle and gets home again.
    pub last_ring: u32,
}

impl Fleet {
    #[must_use]
    pub fn new(drones: Vec<Drone>, resolution: Resolution) -> Self {
        let mut fleet = Self::default();
        let mut farthest: f64 = 0.0;
        for drone in drones.into_iter().filter(|drone| drone.status == DroneStatus::Active) {
            fleet.fastest_kmh = fleet.fastest_kmh.max(drone.speed_kmh);
            farthest = farthest.max(drone.range_km);
            if let Some(cell) = cell_of(drone.home, resolution) {
                let place = fleet.drones.len();
                fleet.zones.entry(cell).or_default().push(place);
                for cell in cell.grid_disk::<Vec<_>>(CLOSE) {
                    fleet.close.entry(cell).or_default().push(place);
                }
                fleet.drones.push((OnSphere::of(drone.home), drone));
            }
        }
        // Neighbouring cells' middles are at least 1.2 edges apart, however H3 distorts them.
        let rings = farthest / 2.0 / (1.2 * resolution.edge_length_km());
        fleet.last_ring = (0..MOST_RINGS).find(|ring| f64::from(*ring) >= rings + 1.0).unwrap_or(MOST_RINGS);
        fleet
    }

    /// A drone and where it is at home.
    pub fn drone(&self, place: usize) -> &(OnSphere, Drone) {
        &self.drones[place]
    }

    /// The drones at home in the rings up to [`CLOSE`] around a cell.
    pub fn close_to(&self, cell: CellIndex) -> impl Iterator<Item = usize> {
        self.close.get(&cell).into_iter().flatten().copied()
    }

    /// The drones at home in the rings from `first` to `last` around a cell.
    pub fn around(&self, cell: CellIndex, first: u32, last: u32) -> impl Iterator<Item = usize> {
        (first..=last)
            .flat_map(move |ring| cell.grid_ring::<Vec<_>>(ring))
            .filter_map(|cell| self.zones.get(&cell))
            .flatten()
            .copied()
    }
}

/// A cell and its neighbours are looked at first.
pub const CLOSE: u32 = 1;

/// Whatever the settings say, no more rings than these are looked at.
const MOST_RINGS: u32 = 64;

#[must_use]
pub fn cell_of(place: Location, resolution: Resolution) -> Option<CellIndex> {
    LatLng::new(place.latitude, place.longitude).ok().map(|place| place.to_cell(resolution))
}

/// The fleet in memory.
pub struct FleetCache {
    state: SharedState,
    resolution: Resolution,
    known: Mutex<Option<(Arc<Fleet>, Instant)>>,
}

impl FleetCache {
    #[must_use]
    pub fn new(state: SharedState, resolution: Resolution) -> Self {
        Self { state, resolution, known: Mutex::new(None) }
    }

    /// The fleet as it is, or was a moment ago.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn current(&self) -> Result<Arc<Fleet>, StoreError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fleet = match known {
            Some((fleet, checked)) if checked.elapsed() < REFRESH => return Ok(fleet),
            Some((fleet, _)) if fleet.version == self.version().await? => fleet,
            _ => Arc::new(self.load().await?),
        };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((fleet.clone(), Instant::now()));
        Ok(fleet)
    }

    /// Adds drones or changes them.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn put(&self, drones: &[Drone]) -> Result<(), StoreError> {
        self.write(drones.iter().map(|drone| put(Txn::new(), drone)).collect()).await
    }

    /// # Errors
    /// When the store does not answer.
    pub async fn delete(&self, id: &str) -> Result<(), StoreError> {
        self.write(vec![remove(Txn::new(), id)]).await
    }

    async fn write(&self, mut txns: Vec<Txn>) -> Result<(), StoreError> {
        txns.push(renew(Txn::new()));
        let written = self.state.commit(txns).await;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        written.map(drop)
    }

    async fn version(&self) -> Result<Option<Bytes>, StoreError> {
        Ok(self.state.get(&[VERSION.to_owned()]).await?.into_iter().flatten().next())
    }

    /// The version is read first: what changes while the drones are read is then read again.
    async fn load(&self) -> Result<Fleet, StoreError> {
        let version = self.version().await?;
        let fleet = Fleet::new(load_drones(&*self.state).await?, self.resolution);
        Ok(Fleet { version, ..fleet })
    }
}

async fn load_drones(state: &dyn State) -> Result<Vec<Drone>, StoreError> {
    let mut drones = Vec::new();
    let mut scan = Scan { set: SET.into(), limit: PAGE, ..Scan::default() };
    loop {
        let ids = state.scan(&scan).await?;
        let keys: Vec<String> = ids.iter().map(|id| key(&String::from_utf8_lossy(id))).collect();
        let values = state.get(&keys).await?;
        drones.extend(keys.iter().zip(values).filter_map(|(key, value)| readable::<Drone>(key, &value?)));
        if ids.len() < PAGE {
            return Ok(drones);
        }
        scan.after = ids.into_iter().last();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drone(number: usize, (latitude, longitude): (f64, f64)) -> Drone {
        let home = Location { latitude, longitude };
        let id = format!("d{number}").into();
        Drone { id, home, speed_kmh: 60.0, range_km: 50.0, payload_kg: 5.0, status: DroneStatus::Active }
    }

    proptest! {
        /// A few kilometres around a place, at the poles and at the cells with five sides as well.
        #[test]
        fn close_are_those_in_the_first_rings(
            middle in prop_oneof![(-89.9..89.9, -180.0..180.0), Just((58.16, 11.25)), Just((89.9, 0.0))],
            homes in prop::collection::vec((-0.1..0.1, -0.1..0.1), 0..40),
        ) {
            let place = |(latitude, longitude): (f64, f64)| (middle.0 + latitude, middle.1 + longitude);
            let drones = homes.into_iter().enumerate().map(|(number, home)| drone(number, place(home))).collect();
            let fleet = Fleet::new(drones, Resolution::Seven);
            let cell = cell_of(Location { latitude: middle.0, longitude: middle.1 }, Resolution::Seven).unwrap();
            let sorted = |mut places: Vec<usize>| {
                places.sort_unstable();
                places
            };
            let close = sorted(fleet.close_to(cell).collect());
            prop_assert_eq!(close, sorted(fleet.around(cell, 0, CLOSE).collect()));
        }
    }
}
