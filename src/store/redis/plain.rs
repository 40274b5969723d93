//! What transactions come to when every check holds, for those that only put values and add members.

use bytes::Bytes;
use redis::Cmd;

use super::keys::Keys;
use super::script::Entry;
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
    pub fn call(&self, sha: &str, keys: &Keys) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(0);
        command.arg(self.absent.len()).arg(self.equal.len()).arg(self.puts.len()).arg(self.adds.len());
        for key in &self.absent {
            command.arg(keys.value(key));
        }
        for (key, value) in self.equal.iter().copied().chain(self.puts.iter().map(|(key, value)| (*key, *value))) {
            command.arg(keys.value(key)).arg(&value[..]);
        }
        for (set, members) in &self.adds {
            command.arg(keys.log(set)).arg(keys.set(set)).arg(members.len());
            for member in members {
                command.arg(Entry(b'+', member));
            }
        }
        command
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
