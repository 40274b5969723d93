//! What is wrong with a body, and the walk over its tree that finds all of it.

use serde::Serialize;
use serde_json::{Map, Value};

use super::request::Location;
use super::wire;

/// One thing that is wrong, and where: an RFC 6901 pointer into the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub pointer: String,
    pub detail: String,
}

impl Fault {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Collects faults from all over a tree.
#[derive(Debug, Default)]
pub struct Walk {
    faults: Vec<Fault>,
}

impl Walk {
    /// Looks at an object's fields; those that `look` does not ask for are faults.
    pub fn object<'v>(&mut self, value: &'v Value, pointer: &str, look: impl FnOnce(&mut Fields<'v, '_>)) {
        let Value::Object(map) = value else {
            self.faults.push(Fault::new(pointer, "must be an object"));
            return;
        };
        let mut fields = Fields { map, pointer, known: Vec::new(), walk: self };
        look(&mut fields);
        let known = fields.known;
        let unknown = map.keys().filter(|name| !known.contains(&name.as_str()));
        self.faults.extend(unknown.map(|name| Fault::new(child(pointer, name), "there is no such field")));
    }

    #[must_use]
    pub fn into_faults(self) -> Vec<Fault> {
        self.faults
    }
}

/// The fields of one object on the walk.
pub struct Fields<'v, 'w> {
    map: &'v Map<String, Value>,
    pointer: &'w str,
    known: Vec<&'static str>,
    walk: &'w mut Walk,
}

impl<'v> Fields<'v, '_> {
    /// A field that must be there.
    pub fn required<T>(
        &mut self,
        name: &'static str,
        what: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        if self.get(name).is_none() {
            self.fault(name, format!("is missing; it must be {what}"));
        }
        self.optional(name, what, read)
    }

    /// A field that may be left out or null.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        what: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let read = read(self.get(name)?);
        if read.is_none() {
            self.fault(name, format!("must be {what}"));
        }
        read
    }

    /// An object that must be there.
    pub fn nested(&mut self, name: &'static str, look: impl FnOnce(&mut Fields<'v, '_>)) {
        if let Some(value) = self.required(name, "an object", Some) {
            let pointer = child(self.pointer, name);
            self.walk.object(value, &pointer, look);
        }
    }

    /// A point, as an object or as text.
    pub fn location(&mut self, name: &'static str, required: bool) -> Option<Location> {
        let as_is = |value: &'v Value| if value.is_object() || value.is_string() { Some(value) } else { None };
        let value = if required {
            self.required(name, wire::LOCATION, as_is)?
        } else {
            self.optional(name, wire::LOCATION, as_is)?
        };
        if let Some(text) = value.as_str() {
            let location = wire::location_of(text);
            if location.is_none() {
                self.fault(name, format!("must be {}", wire::LOCATION));
            }
            return location;
        }
        let (mut latitude, mut longitude) = (None, None);
        self.walk.object(value, &child(self.pointer, name), |fields| {
            latitude = fields.required("latitude", "a number of degrees", Value::as_f64);
            longitude = fields.required("longitude", "a number of degrees", Value::as_f64);
        });
        Some(Location { latitude: latitude?, longitude: longitude? })
    }

    /// Adds what else is wrong.
    pub fn note(&mut self, faults: Vec<Fault>) {
        self.walk.faults.extend(faults);
    }

    fn get(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn fault(&mut self, name: &str, detail: String) {
        self.walk.faults.push(Fault::new(child(self.pointer, name), detail));
    }
}

/// A pointer one level down; RFC 6901 escapes what would end a part of it.
fn child(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}
