//! How transactions are carried out: one prepared script walks them all in one call. Redis runs it alone, so each is
//! all or nothing, and writes its effects to the append-only file as one unit, so that holds over a crash as well.
//!
//! The first argument has one letter for each check and write and a full stop behind each transaction; the other
//! arguments are theirs, in order. The answer is the numbers of the transactions that met a check that did not hold:
//! mostly none, so there is nothing to pack.

use redis::Cmd;

use super::keys::Keys;
use crate::store::{Expect, Txn, Write};

/// Letters: `a`bsent, `p`resent and `i`s check; `S`et, set for a `T`ime, `D`elete, `A`dd and `R`emove write.
pub const COMMIT: &str = r"
local args, ops, next, number, conflicts = ARGV, ARGV[1], 2, 0, {}
local call, byte = redis.call, string.byte
local holds = true
for at = 1, #ops do
  local op = byte(ops, at)
  if op == 46 then
    number = number + 1
    if not holds then conflicts[#conflicts + 1] = number end
    holds = true
  elseif op == 83 then
    if holds then call('SET', args[next], args[next + 1]) end
    next = next + 2
  elseif op == 65 then
    if holds then call('ZADD', args[next], 0, args[next + 1]) end
    next = next + 2
  elseif op == 105 then
    if holds and call('GET', args[next]) ~= args[next + 1] then holds = false end
    next = next + 2
  elseif op == 97 then
    if holds and call('EXISTS', args[next]) == 1 then holds = false end
    next = next + 1
  elseif op == 112 then
    if holds and call('EXISTS', args[next]) == 0 then holds = false end
    next = next + 1
  elseif op == 84 then
    if holds then call('SET', args[next], args[next + 1], 'PX', args[next + 2]) end
    next = next + 3
  elseif op == 68 then
    if holds then call('DEL', args[next]) end
    next = next + 1
  elseif op == 82 then
    if holds then call('ZREM', args[next], args[next + 1]) end
    next = next + 2
  end
end
return conflicts
";

/// The call of the script, known to Redis by `sha`, for these transactions.
pub fn call(sha: &str, keys: &Keys, txns: &[Txn]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha).arg(0).arg(letters(txns));
    for txn in txns {
        for check in &txn.checks {
            command.arg(keys.value(&check.key));
            if let Expect::Is(value) = &check.expect {
                command.arg(&value[..]);
            }
        }
        for write in &txn.writes {
            arguments(&mut command, keys, write);
        }
    }
    command
}

fn letters(txns: &[Txn]) -> Vec<u8> {
    let mut letters = Vec::new();
    for txn in txns {
        letters.extend(txn.checks.iter().map(|check| match check.expect {
            Expect::Absent => b'a',
            Expect::Present => b'p',
            Expect::Is(_) => b'i',
        }));
        letters.extend(txn.writes.iter().map(|write| match write {
            Write::Put { ttl: None, .. } => b'S',
            Write::Put { ttl: Some(_), .. } => b'T',
            Write::Delete { .. } => b'D',
            Write::Add { .. } => b'A',
            Write::Remove { .. } => b'R',
        }));
        letters.push(b'.');
    }
    letters
}

fn arguments(command: &mut Cmd, keys: &Keys, write: &Write) {
    match write {
        Write::Put { key, value, ttl } => {
            command.arg(keys.value(key)).arg(&value[..]);
            if let Some(ttl) = ttl {
                // Redis takes no time below a millisecond.
                command.arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, LONGEST_TTL_MS));
            }
        }
        Write::Delete { key } => {
            command.arg(keys.value(key));
        }
        Write::Add { set, member } | Write::Remove { set, member } => {
            command.arg(keys.set(set)).arg(&member[..]);
        }
    }
}

/// A hundred years: more than that overflows the date that Redis counts to.
const LONGEST_TTL_MS: u64 = 100 * 365 * 24 * 3_600_000;

/// Redis does one thing at a time: larger calls are cut so that no one waits long for another.
const TXNS_AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 1 << 20;

/// How many of the transactions go into one call: at least one.
pub fn chunk_length(txns: &[Txn]) -> usize {
    let mut bytes = 0;
    let fit = txns.iter().take(TXNS_AT_ONCE).take_while(|txn| {
        bytes += size(txn);
        bytes <= BYTES_AT_ONCE
    });
    fit.count().max(1)
}

/// About how long a transaction is on the wire.
fn size(txn: &Txn) -> usize {
    let checks = txn.checks.iter().map(|check| match &check.expect {
        Expect::Is(value) => check.key.len() + value.len(),
        Expect::Absent | Expect::Present => check.key.len(),
    });
    let writes = txn.writes.iter().map(|write| match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::Delete { key } => key.len(),
        Write::Add { set, member } | Write::Remove { set, member } => set.len() + member.len(),
    });
    checks.chain(writes).map(|length| length + 32).sum()
}
