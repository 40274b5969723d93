//! Layers over the built-in file. Each value is checked where it comes in, so a fault can say which file, variable or
//! flag it came from; all faults are told at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use config::{Config, Environment, File, FileFormat, Map, Source, Value, ValueKind};

use super::rules::Rule;
use super::{Assignment, Engine, Role, Settings, mask};

const BUILTIN: &str = include_str!("../../config/default.toml");
const PREFIX: &str = "DRONE";
const SEPARATOR: &str = "__";
/// The table of a group whose keys its neighbours may set for themselves.
const COMMON: &str = "default";

/// What is laid over the built-in file, in this order.
#[derive(Debug, Default)]
pub struct Layers {
    pub file: Option<PathBuf>,
    /// The environment to read; none: the process's own.
    pub environment: Option<Map<String, String>>,
    /// Key, value and the name of the flag.
    pub flags: Vec<(&'static str, String, &'static str)>,
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key, or empty when a whole layer cannot be read.
    pub key: String,
    /// The value, with secrets masked.
    pub value: String,
    /// The file, variable or flag.
    pub origin: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return write!(f, "{}: {}", self.origin, self.problem);
        }
        write!(f, "{} = {:?} ({}): {}", self.key, self.value, self.origin, self.problem)
    }
}

/// Every fault of every layer.
#[derive(Debug, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used:")?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

/// One value as a layer gives it. Variables and flags give text, which is read as the key's type.
struct Given {
    key: String,
    value: ValueKind,
    origin: String,
    is_text: bool,
}

pub fn load(layers: &Layers) -> Result<Settings, Faults> {
    let schema = Schema::builtin().map_err(|error| whole("the built-in defaults", &error))?;
    let mut faults = Vec::new();
    let mut in_force = BTreeMap::new();
    for given in gather(layers, &mut faults) {
        match schema.check(&given) {
            Ok(value) => {
                in_force.insert(given.key, value);
            }
            Err(problem) => faults.push(fault(&given, problem)),
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let demo_asked_for = in_force.contains_key("demo.enabled");
    let mut settings = merge(in_force).map_err(|error| whole("the settings as a whole", &error))?;
    settings.demo.enabled &= demo_asked_for || settings.engine == Engine::Embedded;
    let mut faults = forgotten_too_early(&settings);
    faults.extend(without_a_share(&settings));
    if faults.is_empty() { Ok(settings) } else { Err(Faults(faults)) }
}

/// A request that a stream can still replay must find what became of it: its record or its tombstones. So neither may
/// be forgotten earlier than the stream forgets the request.
fn forgotten_too_early(settings: &Settings) -> Vec<Fault> {
    let (retention, least) = (&settings.retention, settings.replayable());
    let kept = [
        ("retention.finished_s", retention.finished),
        ("retention.scheduled_s", retention.scheduled),
        ("retention.tombstones_s", retention.tombstones),
    ];
    let fault = |(key, time): (&str, Duration)| Fault {
        key: key.to_owned(),
        value: time.as_secs().to_string(),
        origin: "the settings as a whole".to_owned(),
        problem: format!("the streams keep requests for {} s (retention_hours): allowed is no less", least.as_secs()),
    };
    kept.into_iter().filter(|(_, time)| *time < least).map(fault).collect()
}

/// With static assignment a scheduler whose name leads to no share would read nothing, and nobody would read for it.
fn without_a_share(settings: &Settings) -> Option<Fault> {
    let partitions = &settings.partitions;
    let shares = partitions.count * partitions.readers;
    let fits = settings.ordinal().is_some_and(|ordinal| ordinal < shares);
    let reads = partitions.assignment == Assignment::Static && settings.has(Role::Scheduler);
    (reads && !fits).then(|| Fault {
        key: "partitions.pod_name".to_owned(),
        value: partitions.pod_name.clone(),
        origin: "the settings as a whole".to_owned(),
        problem: format!(
            "with static assignment this, or $HOSTNAME when it is empty, must end in a number from 0 to {}, such as \
             scheduler-0",
            shares - 1
        ),
    })
}

fn merge(in_force: BTreeMap<String, ValueKind>) -> Result<Settings, config::ConfigError> {
    let mut builder = Config::builder().add_source(File::from_str(BUILTIN, FileFormat::Toml));
    for (key, value) in in_force {
        builder = builder.set_override(key, value)?;
    }
    builder.build()?.try_deserialize()
}

/// Everything the layers give, lowest layer first.
fn gather(layers: &Layers, faults: &mut Vec<Fault>) -> Vec<Given> {
    let mut all = Vec::new();
    if let Some(path) = &layers.file {
        let origin = path.display().to_string();
        match File::new(&origin, FileFormat::Toml).collect() {
            Ok(table) => flatten("", table, &mut |key, value| {
                all.push(Given { key, value, origin: origin.clone(), is_text: false });
            }),
            Err(error) => faults.extend(whole(&origin, &error).0),
        }
    }
    let environment = Environment::with_prefix(PREFIX).prefix_separator(SEPARATOR).separator(SEPARATOR);
    match environment.source(layers.environment.clone()).collect() {
        Ok(table) => {
            let sorted: BTreeMap<_, _> = table.into_iter().collect();
            all.extend(sorted.into_iter().map(|(key, value)| {
                let origin = format!("{PREFIX}{SEPARATOR}{}", key.to_uppercase().replace('.', SEPARATOR));
                Given { key, value: value.kind, origin, is_text: true }
            }));
        }
        Err(error) => faults.extend(whole("the environment", &error).0),
    }
    all.extend(layers.flags.iter().map(|(key, value, flag)| Given {
        key: (*key).to_owned(),
        value: ValueKind::String(value.clone()),
        origin: (*flag).to_owned(),
        is_text: true,
    }));
    all
}

fn whole(origin: &str, error: &config::ConfigError) -> Faults {
    let problem = error.to_string();
    Faults(vec![Fault { key: String::new(), value: String::new(), origin: origin.to_owned(), problem }])
}

fn fault(given: &Given, problem: String) -> Fault {
    let value = mask::text(&given.key, &Value::new(None, given.value.clone()).to_string());
    Fault { key: given.key.clone(), value, origin: given.origin.clone(), problem }
}

/// Calls `leaf` with every dotted key and its value. A table without keys counts as one, so that it is known.
fn flatten(prefix: &str, table: Map<String, Value>, leaf: &mut impl FnMut(String, ValueKind)) {
    let sorted: BTreeMap<_, _> = table.into_iter().collect();
    for (name, value) in sorted {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value.kind {
            ValueKind::Table(inner) if !inner.is_empty() => flatten(&key, inner, leaf),
            kind => leaf(key, kind),
        }
    }
}

/// The keys there are, each with its default.
struct Schema(BTreeMap<String, ValueKind>);

impl Schema {
    fn builtin() -> Result<Self, config::ConfigError> {
        let mut keys = BTreeMap::new();
        flatten("", File::from_str(BUILTIN, FileFormat::Toml).collect()?, &mut |key, value| {
            keys.insert(key, value);
        });
        Ok(Self(keys))
    }

    /// The value as the key's type, or what is wrong with it.
    fn check(&self, given: &Given) -> Result<ValueKind, String> {
        let default = self.default_of(&given.key).ok_or_else(|| self.unknown(&given.key))?;
        let rule = Rule::of(&given.key, default);
        match typed(default, &given.value, given.is_text) {
            Some(value) if rule.allows(&value) => Ok(value),
            _ if rule == Rule::Free => Err(format!("allowed is {}", type_name(default))),
            _ => Err(format!("allowed is {}: {rule}", type_name(default))),
        }
    }

    fn default_of(&self, key: &str) -> Option<&ValueKind> {
        self.0.get(key).filter(|kind| !matches!(kind, ValueKind::Table(_))).or_else(|| {
            let (table, name) = key.rsplit_once('.')?;
            let (group, _) = table.rsplit_once('.')?;
            let known = self.0.keys().any(|k| k == table || k.strip_prefix(table).is_some_and(|r| r.starts_with('.')));
            known.then(|| self.0.get(&format!("{group}.{COMMON}.{name}")))?
        })
    }

    fn unknown(&self, key: &str) -> String {
        if self.0.keys().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))) {
            return "this is a section, not a key".to_owned();
        }
        let nearest = self.0.keys().max_by(|a, b| likeness(a, key).total_cmp(&likeness(b, key)));
        match nearest.filter(|name| likeness(name, key) > 0.8) {
            Some(name) => format!("there is no such key; did you mean {name}?"),
            None => "there is no such key".to_owned(),
        }
    }
}

fn likeness(known: &str, key: &str) -> f64 {
    strsim::jaro_winkler(known, key)
}

/// `value` as the type that `default` has; text is read as that type when it comes from where all is text.
fn typed(default: &ValueKind, value: &ValueKind, is_text: bool) -> Option<ValueKind> {
    match (default, value) {
        (ValueKind::String(_), ValueKind::String(_))
        | (ValueKind::Boolean(_), ValueKind::Boolean(_))
        | (ValueKind::I64(_), ValueKind::I64(_))
        | (ValueKind::Float(_), ValueKind::Float(_)) => Some(value.clone()),
        #[expect(clippy::cast_precision_loss, reason = "a whole number written for a fraction is small")]
        (ValueKind::Float(_), ValueKind::I64(number)) => Some(ValueKind::Float(*number as f64)),
        (ValueKind::Array(defaults), ValueKind::Array(members)) => {
            let Some(first) = defaults.first() else { return Some(value.clone()) };
            let same = |m: &Value| std::mem::discriminant(&m.kind) == std::mem::discriminant(&first.kind);
            members.iter().all(same).then(|| value.clone())
        }
        (_, ValueKind::String(text)) if is_text => read(default, text),
        _ => None,
    }
}

fn read(default: &ValueKind, text: &str) -> Option<ValueKind> {
    match default {
        ValueKind::Boolean(_) => text.parse().ok().map(ValueKind::Boolean),
        ValueKind::I64(_) => text.replace('_', "").parse().ok().map(ValueKind::I64),
        ValueKind::Float(_) => text.replace('_', "").parse().ok().map(ValueKind::Float),
        ValueKind::Array(_) => {
            let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
            Some(ValueKind::Array(members.map(|m| Value::new(None, ValueKind::String(m.to_owned()))).collect()))
        }
        _ => None,
    }
}

fn type_name(default: &ValueKind) -> &'static str {
    match default {
        ValueKind::Boolean(_) => "true or false",
        ValueKind::I64(_) => "a whole number",
        ValueKind::Float(_) => "a number",
        ValueKind::Array(_) => "a list",
        _ => "a text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LatencyKind;
    use crate::domain::StepName;

    fn environment(pairs: &[(&str, &str)]) -> Option<Map<String, String>> {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn from_file(path: PathBuf) -> Result<Settings, Faults> {
        load(&Layers { file: Some(path), environment: environment(&[]), ..Layers::default() })
    }

    #[test]
    fn the_built_in_file_keeps_its_own_rules() {
        let schema = Schema::builtin().unwrap();
        for (key, value) in &schema.0 {
            if !matches!(value, ValueKind::Table(_)) {
                assert!(Rule::of(key, value).allows(value), "{key} = {value:?}");
            }
        }
        assert!(Settings::builtin().unwrap().demo.enabled);
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let (_dir, path) = file("prefix = 'a'\n[http]\nlisten = '1.1.1.1:1'\n[partitions]\ncount = 3\n");
        let settings = load(&Layers {
            file: Some(path),
            environment: environment(&[("DRONE__HTTP__LISTEN", "2.2.2.2:2"), ("DRONE__PARTITIONS__COUNT", "4")]),
            flags: vec![("http.listen", "3.3.3.3:3".into(), "--listen"), ("roles", "services".into(), "--roles")],
        })
        .unwrap();
        assert_eq!((settings.prefix.as_str(), settings.partitions.count), ("a", 4));
        assert_eq!(settings.http.listen, "3.3.3.3:3");
        assert_eq!(settings.roles, [Role::Services]);
    }

    #[test]
    fn every_fault_is_told_with_its_key_value_and_origin() {
        let (_dir, path) = file("engine = 'mars'\nhttp = 1\n[http]\n");
        assert_eq!(from_file(path).unwrap_err().0.len(), 1);
        let (_dir, path) =
            file("engine = 'mars'\n[http]\nlisten = 5\n[partitions]\ncount = 0\nconut = 1\n[services]\nurl = 1\n");
        let faults = load(&Layers {
            file: Some(path.clone()),
            environment: environment(&[
                ("DRONE__REDIS__URL", "http://me:secret@x"),
                ("DRONE__AGENTS__DRONE__ATTEMPTS", "many"),
                ("DRONE__HTTP", "x"),
            ]),
            flags: vec![("roles", "pilot".into(), "--roles")],
        })
        .unwrap_err();
        let told = faults.to_string();
        for needle in [
            "engine = \"mars\"",
            "embedded, cluster",
            "http.listen = \"5\"",
            "partitions.count = \"0\"",
            "1 to 1024",
            "did you mean partitions.count?",
            "redis.url = \"http://me:***@x\" (DRONE__REDIS__URL)",
            "agents.drone.attempts = \"many\"",
            "(--roles)",
            "this is a section",
            path.to_str().unwrap(),
        ] {
            assert!(told.contains(needle), "{needle} is not in\n{told}");
        }
        assert!(!told.contains("secret"), "{told}");
        assert_eq!(faults.0.len(), 9, "{told}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_fault() {
        let faults = from_file("/nowhere/it.toml".into()).unwrap_err();
        assert!(faults.to_string().contains("/nowhere/it.toml"));
    }

    #[test]
    fn a_service_sets_only_what_differs() {
        let (_dir, path) = file(
            "[agents.default]\nattempts = 3\n[agents.drone]\nbatch = 7\nurl = 'http://d'\n[faults.drone]\nlatency = 'heavy'\n",
        );
        let settings = from_file(path).unwrap();
        let (drone, account) = (settings.agents.get(StepName::Drone), settings.agents.get(StepName::Account));
        assert_eq!((drone.attempts, drone.batch, account.attempts, account.batch), (3, 7, 3, 256));
        assert_eq!(settings.faults.get(StepName::Drone).latency_kind, LatencyKind::Heavy);
        assert_eq!(settings.faults.get(StepName::Account).latency_kind, LatencyKind::Fixed);
    }

    #[test]
    fn the_demo_has_to_be_asked_for_on_a_cluster() {
        let with = |pairs: &[(&str, &str)]| {
            load(&Layers { environment: environment(pairs), ..Layers::default() }).unwrap().demo.enabled
        };
        assert!(!with(&[("DRONE__ENGINE", "cluster")]));
        assert!(with(&[("DRONE__ENGINE", "cluster"), ("DRONE__DEMO__ENABLED", "true")]));
    }

    #[test]
    fn what_a_stream_can_replay_is_not_forgotten_before() {
        let with = |pairs: &[(&str, &str)]| load(&Layers { environment: environment(pairs), ..Layers::default() });
        let hour = [("DRONE__RETENTION__FINISHED_S", "3600"), ("DRONE__RETENTION__TOMBSTONES_S", "3600")];
        let told = with(&hour).unwrap_err().to_string();
        assert!(told.contains("retention.finished_s") && told.contains("retention.tombstones_s"), "{told}");
        assert!(with(&[&hour[..], &[("DRONE__EMBEDDED__RETENTION_HOURS", "1")]].concat()).is_ok());
        let cluster = [&hour[..], &[("DRONE__EMBEDDED__RETENTION_HOURS", "1"), ("DRONE__ENGINE", "cluster")]].concat();
        assert!(with(&cluster).is_err(), "there the broker's hours count");
    }

    #[test]
    fn a_name_without_a_share_is_refused() {
        let with = |name: &'static str, more: &[(&'static str, &'static str)]| {
            let usual = [("DRONE__PARTITIONS__ASSIGNMENT", "static"), ("DRONE__PARTITIONS__POD_NAME", name)];
            load(&Layers { environment: environment(&[&usual[..], more].concat()), ..Layers::default() })
        };
        assert!(with("scheduler-7", &[]).is_ok());
        for name in ["scheduler", "scheduler-8", "scheduler-x"] {
            let told = with(name, &[]).unwrap_err().to_string();
            assert!(told.contains("partitions.pod_name") && told.contains("0 to 7"), "{told}");
        }
        assert!(with("scheduler-8", &[("DRONE__PARTITIONS__READERS", "2")]).is_ok());
        assert!(with("web", &[("DRONE__ROLES", "ingestion")]).is_ok(), "it reads nothing anyway");
    }

    #[test]
    fn a_crash_is_asked_for_at_a_point_that_there_is() {
        let with = |point| {
            load(&Layers { environment: environment(&[("DRONE__CRASHES__POINT", point)]), ..Layers::default() })
        };
        assert_eq!(with("").unwrap().crashes.point, crate::crashes::Point::Nowhere);
        assert_eq!(with("drone-undone").unwrap().crashes.point, crate::crashes::Point::DroneUndone);
        let told = with("drone-lost").unwrap_err().to_string();
        assert!(
            told.contains("crashes.point = \"drone-lost\"") && told.contains("nothing, or account-done,"),
            "{told}"
        );
    }

    #[test]
    fn a_process_has_at_least_one_role() {
        let (_dir, path) = file("roles = []");
        assert!(from_file(path).is_err());
    }

    #[test]
    fn what_is_printed_can_be_read_again_and_shows_no_password() {
        let layers = |file| Layers {
            file,
            environment: environment(&[("DRONE__REDIS__URL", "redis://:pw@h/0")]),
            ..Layers::default()
        };
        let settings = load(&layers(None)).unwrap();
        let printed = settings.to_toml();
        assert!(!printed.contains("pw@") && printed.contains("redis://:***@h/0"), "{printed}");
        let (_dir, path) = file(&printed);
        let mut again = load(&layers(Some(path))).unwrap();
        again.rabbitmq.url.clone_from(&settings.rabbitmq.url);
        assert_eq!(again, settings);
    }
}
