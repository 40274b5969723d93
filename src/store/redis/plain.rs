//! What transactions come to when every check holds, for those that only put values and add members.

use bytes::Bytes;
use redis::Cmd;

use super::keys::Keys;
use super::script::{self, Entry};
use crate::domain::Map;
use crate::store::{Expect, Txn, Write};

/// The checks that are left to the server and the writes of several transactions.
#[derive(Default)]
pub struct Plain<'a> {
    absent: Vec<&'a str>,
    equal: Vec<(&'a str, &'a Bytes)>,
    puts: Map<&'a str, &'a Bytes>,
    adds: Map<&'a str, Vec<&'a Bytes>>,
}

impl<'a> Plain<'a> {
    /// Nothing when a transaction does more than that, or contradicts one before it.
    pub fn of(txns: &'a [Txn]) -> Option<Self> {
        let mut plain = Self::default();
        for txn in txns {
            for check in &txn.checks {
                match (plain.puts.get(check.key.as_str()), &check.expect) {
                    (None, Expect::Absent) => plain.absent.push(&check.key),
                    (None, Expect::Is(value)) => plain.equal.push((&check.key, value)),
                    (Some(put), Expect::Is(value)) if *put == value => {}
                    _ => return None,
                }
            }
            for write in &txn.writes {
                match write {
                    Write::Put { key, value, ttl: None } => {
                        plain.puts.insert(key, value);
                    }
                    Write::Add { set, member } => plain.adds.entry(set).or_default().push(member),
                    _ => return None,
                }
            }
        }
        Some(plain)
    }

    /// The call of the script, known to Redis by `sha`.
    pub fn call(mut self, sha: &str, keys: &Keys) -> Cmd {
        let new = self.take_new();
        let (singles, sets): (Vec<_>, Vec<_>) = self.adds.iter().partition(|(_, members)| members.len() == 1);
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(0);
        for count in [self.absent.len(), self.equal.len(), new.len(), self.puts.len(), singles.len(), sets.len()] {
            command.arg(count);
        }
        command.arg(keys.log("")).arg(keys.set(""));
        for key in self.absent.iter().chain(self.equal.iter().map(|(key, _)| key)) {
            command.arg(keys.value(key));
        }
        for (_, value) in &self.equal {
            command.arg(&value[..]);
        }
        for (key, value) in new.into_iter().chain(self.puts.iter().map(|(key, value)| (*key, *value))) {
            command.arg(keys.value(key)).arg(&value[..]);
        }
        for (set, members) in singles.into_iter().chain(sets) {
            command.arg(keys.log(set));
            if members.len() > 1 {
                command.arg(members.len());
            }
            for member in members {
                command.arg(Entry(b'+', member));
            }
        }
        command
    }

    /// Takes out what is put where there must be nothing, as far as one command takes it.
    fn take_new(&mut self) -> Vec<(&'a str, &'a Bytes)> {
        let mut new = Vec::new();
        self.absent.retain(|key| {
            let put = if new.len() < script::NEW_AT_ONCE { self.puts.remove(key) } else { None };
            new.extend(put.map(|value| (*key, value)));
            put.is_none()
        });
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_transaction_wrote_is_not_asked_of_the_server_again() {
        let txns = [
            Txn::new().check("a", Expect::Absent).put("a", "1").add("s", "m"),
            Txn::new().check("a", Expect::Is("1".into())).check("b", Expect::Is("x".into())).put("a", "2"),
        ];
        let plain = Plain::of(&txns).unwrap();
        assert_eq!((plain.absent, plain.equal.len(), plain.puts["a"].as_ref()), (vec!["a"], 1, &b"2"[..]));
    }

    #[test]
    fn what_is_put_where_there_must_be_nothing_is_named_once() {
        let txns = [
            Txn::new().check("tomb", Expect::Absent).check("a", Expect::Absent).put("a", "1"),
            Txn::new().put("b", "2"),
        ];
        let mut plain = Plain::of(&txns).unwrap();
        let new = plain.take_new();
        assert_eq!((new[0].0, new.len(), plain.absent, plain.puts.len()), ("a", 1, vec!["tomb"], 1));
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_other_script() {
        let first = || Txn::new().put("a", "1");
        for second in [
            Txn::new().check("a", Expect::Absent),
            Txn::new().check("a", Expect::Is("2".into())),
            Txn::new().check("b", Expect::Present),
            Txn::new().delete("b"),
            Txn::new().remove("s", "m"),
            Txn::new().put_for("b", "1", std::time::Duration::from_secs(1)),
        ] {
            assert!(Plain::of(&[first(), second]).is_none());
        }
    }
}
