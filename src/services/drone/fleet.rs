//! The drones, and where they are at home. The whole fleet is kept in memory, by H3 cell of the homes; a version key
//! that every change of the fleet renews tells when to read it again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h3o::{CellIndex, LatLng, Resolution};
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::domain::{Location, Map, compact};
use crate::services::entities::{decode, encode};
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
    zones: Map<CellIndex, Vec<(OnSphere, Drone)>>,
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
                fleet.zones.entry(cell).or_default().push((OnSphere::of(drone.home), drone));
            }
        }
        // Neighbouring cells' middles are at least 1.2 edges apart, however H3 distorts them.
        let rings = farthest / 2.0 / (1.2 * resolution.edge_length_km());
        fleet.last_ring = (0..MOST_RINGS).find(|ring| f64::from(*ring) >= rings + 1.0).unwrap_or(MOST_RINGS);
        fleet
    }

    /// The drones at home in the rings from `first` to `last` around a cell, and where that is.
    pub fn around(&self, cell: CellIndex, first: u32, last: u32) -> impl Iterator<Item = &(OnSphere, Drone)> {
        (first..=last)
            .flat_map(move |ring| cell.grid_ring::<Vec<_>>(ring))
            .filter_map(|cell| self.zones.get(&cell))
            .flatten()
    }
}

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
        for value in state.get(&keys).await?.into_iter().flatten() {
            drones.push(decode(&value)?);
        }
        if ids.len() < PAGE {
            return Ok(drones);
        }
        scan.after = ids.into_iter().last();
    }
}
