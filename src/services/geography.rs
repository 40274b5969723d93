//! Places on the earth: distances on the sphere and areas out of GeoJSON.

use std::str::FromStr;

use geo::{
    BoundingRect, Closest, Contains, Distance, Haversine, HaversineClosestPoint, InterpolatePoint, MultiPolygon, Point,
    Polygon, Rect,
};
use geojson::{Feature, FeatureCollection, GeoJson};

use crate::domain::Location;

/// The built-in service areas: Seattle and the cities across the lake.
const AREAS: &str = include_str!("../../config/areas.geojson");
/// The built-in carriers around them.
const CARRIERS: &str = include_str!("../../config/carriers.geojson");

fn point(location: Location) -> Point {
    Point::new(location.longitude, location.latitude)
}

fn location(point: Point) -> Location {
    Location { latitude: point.y(), longitude: point.x() }
}

/// The way between two places over the ground, in kilometres.
#[must_use]
pub fn distance_km(from: Location, to: Location) -> f64 {
    Haversine.distance(point(from), point(to)) / 1000.0
}

/// A place as a point of the unit sphere: which of two others is nearer is then a few multiplications.
#[derive(Clone, Copy, Debug)]
pub struct OnSphere([f64; 3]);

impl OnSphere {
    #[must_use]
    pub fn of(place: Location) -> Self {
        let (latitude, longitude) = (place.latitude.to_radians(), place.longitude.to_radians());
        Self([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()])
    }

    /// Grows with the distance, and says no more than that.
    #[must_use]
    pub fn apart(self, other: Self) -> f64 {
        self.0.iter().zip(other.0).map(|(a, b)| (a - b) * (a - b)).sum()
    }
}

/// The place that many kilometres from `from` on the straight way to `to`.
#[must_use]
pub fn along(from: Location, to: Location, km: f64) -> Location {
    location(Haversine.point_at_distance_between(point(from), point(to), km * 1000.0))
}

/// Why a text is no set of areas.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    #[error("not GeoJSON: {0}")]
    Syntax(#[from] Box<geojson::Error>),
    #[error("no polygon in it")]
    Empty,
    #[error("a feature has no property \"name\"")]
    Unnamed,
    #[error("cannot read {path}: {error}")]
    File { path: String, error: std::io::Error },
}

/// Where the drones may pick up and drop off; the edge belongs to it.
#[derive(Clone, Debug)]
pub struct Areas(MultiPolygon);

impl Areas {
    /// Takes every polygon of a GeoJSON document, whatever it is wrapped in.
    ///
    /// # Errors
    /// When it is not GeoJSON or has no polygon.
    pub fn parse(text: &str) -> Result<Self, AreaError> {
        let document: GeoJson = text.parse().map_err(Box::new)?;
        let parts: geo::GeometryCollection = (&document).try_into().map_err(Box::new)?;
        let mut polygons = Vec::new();
        parts.into_iter().for_each(|part| collect(part, &mut polygons));
        if polygons.is_empty() { Err(AreaError::Empty) } else { Ok(Self(MultiPolygon(polygons))) }
    }

    /// The areas of a file, or the built-in ones if `path` is empty.
    ///
    /// # Errors
    /// When the file cannot be read or has no areas in it.
    pub fn load(path: &str) -> Result<Self, AreaError> {
        Self::parse(&text(path, AREAS)?)
    }

    #[must_use]
    pub fn contains(&self, place: Location) -> bool {
        self.0.contains(&point(place))
    }

    /// The south-western and the north-eastern corner of what they lie in.
    #[must_use]
    pub fn bounds(&self) -> (Location, Location) {
        let bounds = self.0.bounding_rect().unwrap_or_else(|| Rect::new((0.0, 0.0), (0.0, 0.0)));
        (location(bounds.min().into()), location(bounds.max().into()))
    }

    /// The place nearest to `place` that a drone may go to.
    #[must_use]
    pub fn nearest(&self, place: Location) -> Location {
        match self.0.haversine_closest_point(&point(place)) {
            Closest::SinglePoint(found) | Closest::Intersection(found) => location(found),
            Closest::Indeterminate => place,
        }
    }
}

/// Who carries packages where drones do not fly.
#[derive(Clone, Debug)]
pub struct Carrier {
    pub name: String,
    pub areas: Areas,
}

impl Carrier {
    /// The carriers of a file, or the built-in ones if `path` is empty: a feature each, in the order of preference.
    ///
    /// # Errors
    /// When the file cannot be read, or a feature has no name or no area.
    pub fn load(path: &str) -> Result<Vec<Self>, AreaError> {
        let features = FeatureCollection::from_str(&text(path, CARRIERS)?).map_err(Box::new)?;
        let carrier = |feature: Feature| {
            let name = feature.property("name").and_then(|name| name.as_str()).ok_or(AreaError::Unnamed)?.to_owned();
            Ok(Self { name, areas: Areas::parse(&feature.to_string())? })
        };
        features.into_iter().map(carrier).collect()
    }
}

fn text(path: &str, built_in: &str) -> Result<String, AreaError> {
    if path.is_empty() {
        return Ok(built_in.to_owned());
    }
    std::fs::read_to_string(path).map_err(|error| AreaError::File { path: path.to_owned(), error })
}

fn collect(part: geo::Geometry, polygons: &mut Vec<Polygon>) {
    match part {
        geo::Geometry::Polygon(polygon) => polygons.push(polygon),
        geo::Geometry::MultiPolygon(many) => polygons.extend(many.0),
        geo::Geometry::GeometryCollection(parts) => parts.into_iter().for_each(|part| collect(part, polygons)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::request::samples;

    proptest! {
        /// What is farther over the ground is farther apart on the sphere, down to a metre.
        #[test]
        fn nearer_on_the_sphere_is_nearer_over_the_ground(places in prop::array::uniform3((-89.0..89.0, -180.0..180.0))) {
            let [from, one, other] = places.map(|(latitude, longitude)| Location { latitude, longitude });
            let ground = distance_km(from, one) - distance_km(from, other);
            let [from, one, other] = [from, one, other].map(OnSphere::of);
            let sphere = from.apart(one) - from.apart(other);
            prop_assert!(ground.abs() < 0.001 || (ground > 0.0) == (sphere > 0.0), "{ground} {sphere}");
        }
    }

    #[test]
    fn the_built_in_areas_hold_the_example() {
        let areas = Areas::load("").unwrap();
        let request = samples::request();
        assert!(areas.contains(request.pickup_location));
        assert!(areas.contains(request.drop_off_location));
        assert!(!areas.contains(Location { latitude: 47.25, longitude: -122.44 }), "Tacoma");
    }

    #[test]
    fn the_nearest_place_is_on_the_edge_that_faces() {
        let square = r#"{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,1],[0,0]]]}"#;
        let nearest = Areas::parse(square).unwrap().nearest(Location { latitude: 0.5, longitude: 3.0 });
        assert!((nearest.longitude - 1.0).abs() < 1e-3 && (nearest.latitude - 0.5).abs() < 1e-2, "{nearest:?}");
    }

    #[test]
    fn the_built_in_carriers_have_names() {
        let carriers = Carrier::load("").unwrap();
        assert!(carriers[0].areas.contains(Location { latitude: 47.25, longitude: -122.44 }), "Tacoma");
    }

    #[test]
    fn what_is_no_area_is_refused() {
        assert!(matches!(Areas::load("no/such/file"), Err(AreaError::File { .. })));
        assert!(Areas::parse("{}").is_err());
        assert!(matches!(Areas::parse(r#"{"type":"Point","coordinates":[0,0]}"#), Err(AreaError::Empty)));
    }
}
