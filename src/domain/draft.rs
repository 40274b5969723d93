//! A request as a client sends it, before its defaults are filled in.
//!
//! Most requests are good, so reading one is a single typed pass over the bytes. Only when that fails is the body
//! looked at again, as a tree, to name every fault at once. The rules are written down once, in [`Seen::faults`],
//! and both ways go through them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::{Fault, Walk};
use super::request::{Confirmation, DeliveryId, DeliveryRequest, Location, PackageInfo, PackageSize};
use super::time::{self, Timestamp};
use super::wire;

const MAX_NAME: usize = 64;
const MAX_TAG: usize = 128;

/// What the client sent, normalised: locations are points, times are whole milliseconds. Two bodies that mean the
/// same have the same [`fingerprint`](Draft::fingerprint).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Draft {
    owner_id: String,
    #[serde(deserialize_with = "wire::location")]
    pickup_location: Location,
    #[serde(deserialize_with = "wire::location")]
    drop_off_location: Location,
    #[serde(default, deserialize_with = "wire::time")]
    pickup_time: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    deadline: Option<Timestamp>,
    #[serde(default)]
    expedited: Option<bool>,
    #[serde(default)]
    confirmation_required: Option<Confirmation>,
    package_info: PackageDraft,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PackageDraft {
    #[serde(default)]
    package_id: Option<String>,
    size: PackageSize,
    weight: f64,
    #[serde(default)]
    tag: Option<String>,
}

/// Why a body is not a request.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    #[error("the body is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("the request breaks {} rules", .0.len())]
    Invalid(Vec<Fault>),
}

impl Draft {
    /// Reads and checks one request; `now` stands in for a pickup time that was left out.
    ///
    /// # Errors
    /// When the bytes are not JSON, or with every rule that is broken.
    pub fn read(body: &[u8], now: Timestamp) -> Result<Self, DraftError> {
        match serde_json::from_slice::<Self>(body) {
            Ok(draft) => {
                let faults = draft.seen().faults(now);
                if faults.is_empty() { Ok(draft) } else { Err(DraftError::Invalid(faults)) }
            }
            Err(typed) => {
                let tree: Value = serde_json::from_slice(body).map_err(DraftError::NotJson)?;
                let mut faults = explain(&tree, now);
                if faults.is_empty() {
                    // What a tree does not show, such as a field that is there twice.
                    faults.push(Fault::new("", typed.to_string()));
                }
                Err(DraftError::Invalid(faults))
            }
        }
    }

    /// The request with its defaults filled in.
    #[must_use]
    pub fn complete(self, id: &DeliveryId, now: Timestamp, deadline_after: Duration) -> DeliveryRequest {
        let pickup_time = self.pickup_time.unwrap_or(now);
        DeliveryRequest {
            owner_id: self.owner_id,
            pickup_location: self.pickup_location,
            drop_off_location: self.drop_off_location,
            pickup_time,
            deadline: self.deadline.unwrap_or_else(|| time::later(pickup_time, deadline_after)),
            expedited: self.expedited.unwrap_or_default(),
            confirmation_required: self.confirmation_required.unwrap_or_default(),
            package_info: PackageInfo {
                package_id: self.package_info.package_id.unwrap_or_else(|| id.as_str().to_owned()),
                size: self.package_info.size,
                weight: self.package_info.weight,
                tag: self.package_info.tag,
            },
        }
    }

    /// Tells one body from another. Times that were left out do not count, so the same body later is the same.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes))
    }

    /// Whether `request` is what this draft became, whenever that was.
    #[must_use]
    pub fn became(&self, id: &DeliveryId, request: &DeliveryRequest) -> bool {
        let given = |draft: Option<Timestamp>, full| draft.is_none_or(|time| time == full);
        let mut same = self.clone().complete(id, request.pickup_time, Duration::ZERO);
        same.deadline = self.deadline.unwrap_or(request.deadline);
        given(self.pickup_time, request.pickup_time) && same == *request
    }

    fn seen(&self) -> Seen<'_> {
        Seen {
            owner_id: Some(&self.owner_id),
            pickup_location: Some(self.pickup_location),
            drop_off_location: Some(self.drop_off_location),
            pickup_time: self.pickup_time,
            deadline: self.deadline,
            package_id: self.package_info.package_id.as_deref(),
            weight: Some(self.package_info.weight),
            tag: self.package_info.tag.as_deref(),
        }
    }
}

/// What could be read of a request: all of it, or what is left beside the faults of its form.
#[derive(Default)]
struct Seen<'a> {
    owner_id: Option<&'a str>,
    pickup_location: Option<Location>,
    drop_off_location: Option<Location>,
    pickup_time: Option<Timestamp>,
    deadline: Option<Timestamp>,
    package_id: Option<&'a str>,
    weight: Option<f64>,
    tag: Option<&'a str>,
}

impl Seen<'_> {
    /// Every rule that is broken.
    fn faults(&self, now: Timestamp) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut rule = |kept: bool, pointer: &str, detail: &str| {
            if !kept {
                faults.push(Fault::new(pointer, detail));
            }
        };
        rule(self.owner_id.is_none_or(is_name), "/ownerId", NAME_RULE);
        rule(self.package_id.is_none_or(is_name), "/packageInfo/packageId", NAME_RULE);
        rule(self.weight.is_none_or(|w| w.is_finite() && w > 0.0), "/packageInfo/weight", "must be more than 0");
        rule(
            self.tag.is_none_or(is_tag),
            "/packageInfo/tag",
            "must be at most 128 characters, none of them a control one",
        );
        let later = self.deadline.is_none_or(|deadline| deadline > self.pickup_time.unwrap_or(now));
        rule(later, "/deadline", "must be after the pickup");
        for (name, location) in [("pickupLocation", self.pickup_location), ("dropOffLocation", self.drop_off_location)]
        {
            if let Some(location) = location {
                faults.extend(location_faults(&format_args!("/{name}"), location));
            }
        }
        faults
    }
}

pub const NAME_RULE: &str =
    "must be 1 to 64 characters out of A-Z, a-z, 0-9, '.', '_', '@' and '-', the first a letter, digit or '_'";

/// Whether a text can name an owner or a package: it fits into a path and into a key.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'@' | b'-');
    let first = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    text.len() <= MAX_NAME && text.as_bytes().first().is_some_and(first) && text.bytes().all(inner)
}

fn is_tag(text: &str) -> bool {
    text.chars().count() <= MAX_TAG && !text.chars().any(char::is_control)
}

/// What is wrong with a point, if anything.
pub fn location_faults(pointer: &dyn std::fmt::Display, location: Location) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, value, most) in [("latitude", location.latitude, 90.0), ("longitude", location.longitude, 180.0)] {
        // A comparison with NaN is false, so it is refused too.
        if !(-most..=most).contains(&value) {
            faults.push(Fault::new(format!("{pointer}/{name}"), format!("must be between -{most} and {most}")));
        }
    }
    faults
}

/// Names every fault of a tree that is not a request.
fn explain(tree: &Value, now: Timestamp) -> Vec<Fault> {
    let mut walk = Walk::default();
    let mut seen = Seen::default();
    walk.object(tree, "", |fields| {
        seen.owner_id = fields.required("ownerId", "a text", Value::as_str);
        seen.pickup_location = fields.location("pickupLocation", true);
        seen.drop_off_location = fields.location("dropOffLocation", true);
        seen.pickup_time = fields.optional("pickupTime", wire::TIME, wire::time_of);
        seen.deadline = fields.optional("deadline", wire::TIME, wire::time_of);
        fields.optional("expedited", "true or false", Value::as_bool);
        fields.optional("confirmationRequired", "None, FingerPrint, Picture or Voice", |v| {
            Confirmation::deserialize(v).ok()
        });
        fields.nested("packageInfo", |fields| {
            seen.package_id = fields.optional("packageId", "a text", Value::as_str);
            fields.required("size", "Small, Medium or Large", |v| PackageSize::deserialize(v).ok());
            seen.weight = fields.required("weight", "a number of kilograms", Value::as_f64);
            seen.tag = fields.optional("tag", "a text", Value::as_str);
        });
    });
    let mut faults = walk.into_faults();
    faults.extend(seen.faults(now));
    faults
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::domain::request::samples;
    use crate::domain::time::from_millis;

    fn example() -> Value {
        serde_json::to_value(samples::request()).unwrap()
    }

    fn read(body: &Value) -> Result<Draft, DraftError> {
        Draft::read(body.to_string().as_bytes(), from_millis(1_000))
    }

    fn pointers(body: &Value) -> Vec<String> {
        match read(body) {
            Err(DraftError::Invalid(faults)) => faults.into_iter().map(|fault| fault.pointer).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn id() -> DeliveryId {
        DeliveryId::parse("d-1").unwrap()
    }

    #[test]
    fn a_full_request_is_taken_as_it_is() {
        let draft = read(&example()).unwrap();
        let full = draft.clone().complete(&id(), from_millis(5), Duration::from_secs(1));
        assert_eq!(full, samples::request());
        assert!(draft.became(&id(), &full));
    }

    #[test]
    fn defaults_are_filled_in() {
        let body = json!({
            "ownerId": "contoso", "pickupLocation": "47.5, -122.25", "dropOffLocation": "47.625,-122.5",
            "packageInfo": {"size": "Small", "weight": 1}
        });
        let draft = read(&body).unwrap();
        let full = draft.clone().complete(&id(), from_millis(5_000), Duration::from_secs(7));
        assert_eq!(full.pickup_location, Location { latitude: 47.5, longitude: -122.25 });
        assert_eq!((full.pickup_time, full.deadline), (from_millis(5_000), from_millis(12_000)));
        assert_eq!((full.package_info.package_id.as_str(), full.expedited), ("d-1", false));
        assert!(draft.became(&id(), &full));
    }

    #[test]
    fn the_fingerprint_is_that_of_the_meaning() {
        let (mut text, mut point, mut other) = (example(), example(), example());
        text["pickupLocation"] = json!("47.5,-122.5");
        point["pickupLocation"] = json!({"longitude": -122.5, "latitude": 47.5});
        other["pickupLocation"] = json!("47.5,-122.25");
        let print = |body: &Value| read(body).unwrap().fingerprint();
        assert_eq!(print(&text), print(&point));
        assert_ne!(print(&text), print(&other));
        let full = read(&text).unwrap().complete(&id(), from_millis(1), Duration::ZERO);
        assert!(!read(&other).unwrap().became(&id(), &full));
    }

    #[test]
    fn every_broken_rule_is_named() {
        let mut body = example();
        body["ownerId"] = json!("a/b");
        body["pickupLocation"]["latitude"] = json!(91);
        body["dropOffLocation"] = json!("1,NaN");
        body["deadline"] = body["pickupTime"].clone();
        body["packageInfo"]["weight"] = json!(0);
        body["packageInfo"]["packageId"] = json!("");
        body["packageInfo"]["tag"] = json!("a\u{7}");
        let mut found = pointers(&body);
        found.sort();
        assert_eq!(
            found,
            [
                "/deadline",
                "/dropOffLocation/longitude",
                "/ownerId",
                "/packageInfo/packageId",
                "/packageInfo/tag",
                "/packageInfo/weight",
                "/pickupLocation/latitude"
            ]
        );
    }

    #[test]
    fn faults_of_form_and_of_rule_are_named_together() {
        let body = json!({
            "ownerId": 5, "pickupLocation": {"latitude": "x", "height": 1}, "dropOffLocation": "nowhere",
            "pickupTime": "tomorrow", "deadline": "1969-12-31T00:00:00Z", "expedited": "yes",
            "confirmationRequired": "Smile", "wings": 2,
            "packageInfo": {"size": "Huge", "weight": -1, "colour": "red"}
        });
        let mut found = pointers(&body);
        found.sort();
        assert_eq!(
            found,
            [
                "/confirmationRequired",
                "/deadline",
                "/dropOffLocation",
                "/expedited",
                "/ownerId",
                "/packageInfo/colour",
                "/packageInfo/size",
                "/packageInfo/weight",
                "/pickupLocation/height",
                "/pickupLocation/latitude",
                "/pickupLocation/longitude",
                "/pickupTime",
                "/wings"
            ]
        );
        assert_eq!(pointers(&json!([])), [""]);
        assert_eq!(pointers(&json!({})), ["/ownerId", "/pickupLocation", "/dropOffLocation", "/packageInfo"]);
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        let twice = example().to_string().replacen('{', "{\"ownerId\":\"a\",", 1);
        assert!(matches!(Draft::read(twice.as_bytes(), from_millis(0)), Err(DraftError::Invalid(f)) if f.len() == 1));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let name = prop_oneof![
            "ownerId",
            "pickupLocation",
            "latitude",
            "longitude",
            "packageInfo",
            "weight",
            "size",
            "deadline",
            "[a-z/~]{0,4}"
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[ -~]{0,12}|-?[0-9]{1,3},-?[0-9]{1,3}|Small|2026-12-01T10:00:00Z|\\PC{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(name.clone(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_answered(body in any_json()) {
            if let Err(DraftError::Invalid(faults)) = read(&body) {
                prop_assert!(!faults.is_empty());
                prop_assert!(faults.iter().all(|fault| fault.pointer.is_empty() || fault.pointer.starts_with('/')));
            }
        }

        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Draft::read(&body, from_millis(0)).is_err());
        }

        #[test]
        fn a_valid_request_comes_back_the_same(
            owner in "[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}",
            (lat, lon) in (-90.0..=90.0, -180.0..=180.0),
            weight in 1e-6..1e6,
            pickup in 0..4_000_000_000_000_i64,
            after in 1..1_000_000_000_i64,
            tag in prop::option::of("[ -~]{0,128}"),
        ) {
            let mut request = samples::request();
            request.owner_id = owner;
            request.pickup_location = Location { latitude: lat, longitude: lon };
            request.package_info.weight = weight;
            request.package_info.tag = tag;
            (request.pickup_time, request.deadline) = (from_millis(pickup), from_millis(pickup + after));
            let draft = read(&serde_json::to_value(&request).unwrap()).unwrap();
            prop_assert_eq!(draft.complete(&id(), from_millis(0), Duration::ZERO), request);
        }
    }
}
