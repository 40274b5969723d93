//! How points and times may be written in a body: a point as an object or as the text `"lat,lon"`, a time as RFC 3339.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::request::Location;
use super::time::{Timestamp, from_millis};

pub const LOCATION: &str = "an object with latitude and longitude, or the text \"lat,lon\"";
pub const TIME: &str = "a time such as 2026-12-01T10:00:00Z";

/// A point, for `deserialize_with`.
pub fn location<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Location, D::Error> {
    deserializer.deserialize_any(Either)
}

/// A time, to the millisecond, for `deserialize_with`; null is no time.
pub fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Timestamp>::deserialize(deserializer)?.map(whole_millis))
}

/// The time a value says.
pub fn time_of(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok().map(whole_millis)
}

/// The point that `"lat,lon"` says.
pub fn location_of(text: &str) -> Option<Location> {
    let (latitude, longitude) = text.split_once(',')?;
    Some(Location { latitude: latitude.trim().parse().ok()?, longitude: longitude.trim().parse().ok()? })
}

fn whole_millis(time: Timestamp) -> Timestamp {
    from_millis(time.as_millisecond())
}

struct Either;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    latitude: f64,
    longitude: f64,
}

impl<'de> Visitor<'de> for Either {
    type Value = Location;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LOCATION)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Location, E> {
        location_of(text).ok_or_else(|| E::custom(LOCATION))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Location, A::Error> {
        let Object { latitude, longitude } = Object::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Location { latitude, longitude })
    }
}
