//! Settings that each of the five services has, with a `default` table for what they have in common.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::domain::StepName;

/// One `T` for every step.
#[derive(Clone, Debug, PartialEq)]
pub struct PerStep<T>([T; 5]);

impl<T> PerStep<T> {
    #[must_use]
    pub fn get(&self, step: StepName) -> &T {
        &self.0[step.index()]
    }

    pub fn get_mut(&mut self, step: StepName) -> &mut T {
        &mut self.0[step.index()]
    }
}

impl<T: Serialize> Serialize for PerStep<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(StepName::ALL.iter().map(|step| (step.as_str(), self.get(*step))))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for PerStep<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut tables = BTreeMap::<String, Map<String, Value>>::deserialize(deserializer)?;
        let common = tables.remove("default").unwrap_or_default();
        let mut one = |step: StepName| {
            let mut table = common.clone();
            table.extend(tables.remove(step.as_str()).unwrap_or_default());
            serde_json::from_value(Value::Object(table))
                .map_err(|e| D::Error::custom(format!("{}: {e}", step.as_str())))
        };
        let [a, b, c, d, e] = StepName::ALL;
        Ok(Self([one(a)?, one(b)?, one(c)?, one(d)?, one(e)?]))
    }
}
