//! How transactions are carried out: a prepared script takes them all in one call. Redis runs it alone, so each is all
//! or nothing, and writes its effects to the append-only file as one unit, so that holds over a crash as well.
//!
//! What Redis does inside a script costs several times what it costs outside, so there are two. [`PLAIN`] is for
//! transactions that only put values and add members, as all do that schedule something new: what they come to when
//! every check holds is worked out here ([`plain`](super::plain)), and the script does little more than to check and to
//! write it, a command for each kind. When a check does not hold it does nothing and says so; [`COMMIT`] then finds out
//! which, transaction by transaction. It is also for all others.

use std::io::Write as _;

use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg};

use super::keys::Keys;
use crate::store::{Expect, Txn, Write};

/// Sets are kept in two parts. To put a member in its place among many costs more than all the rest of a transaction,
/// and most lists are never looked at; so what is added and removed goes to the end of the set's log, and is put in its
/// place when somebody looks, or when so much of it has come together that looking would take long.
macro_rules! with_settling {
    ($script:literal) => {
        concat!(
            r"
local args, call, most = ARGV, redis.call, 4000 -- arguments that fit on Lua's stack, and then some

-- Takes up to 1000 of a log's entries to their places; says how many are left.
local function settle(log, set)
  local last, added, removed = {}, {}, {}
  for _, entry in ipairs(call('LRANGE', log, 0, 999)) do
    last[string.sub(entry, 2)] = (string.byte(entry) == 43)
  end
  for member, is_in in pairs(last) do
    if is_in then
      added[#added + 1] = 0
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  if #added > 0 then call('ZADD', set, unpack(added)) end
  if #removed > 0 then call('ZREM', set, unpack(removed)) end
  call('LTRIM', log, 1000, -1)
  return call('LLEN', log)
end

-- Adds the arguments of a range to a log.
local function note(log, set, list, from, to)
  for first = from, to, most do
    local length = call('RPUSH', log, unpack(list, first, math.min(first + most - 1, to)))
    while length > 4000 do length = settle(log, set) end
  end
end
",
            $script
        )
    };
}

/// How many entries of a log one call of [`SETTLE`] takes to their places.
pub const SETTLED_AT_ONCE: usize = 1_000;

/// How many keys [`PLAIN`] puts at once where there must be none: one command has to take them, from Lua's stack.
pub const NEW_AT_ONCE: usize = 2_000;

/// Arguments: the names of a set's log and of the set. Says how much is left of the log.
pub const SETTLE: &str = with_settling!("return settle(args[1], args[2])");

/// Every argument costs as much as a command outside of a script, so none says what another one says as well: a key that
/// is put where there must be none is named once, and the name of a set is made from that of its log.
///
/// Arguments: how much of each there is of what follows, and the letters before the name of a log and of a set; keys that
/// must be absent; keys that must have a value, and the values; keys that must be absent, each with what is put there;
/// keys with what is put there; logs with one entry each; logs with how many entries, and these.
pub const PLAIN: &str = with_settling!(
    r"
local absent, equal, new, puts = tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
local singles, sets, log_is, set_is = tonumber(args[5]), tonumber(args[6]), args[7], args[8]
local next = 9
local function of(log) return set_is .. string.sub(log, #log_is + 1) end

for from = next, next + absent - 1, most do
  if call('EXISTS', unpack(args, from, math.min(from + most, next + absent) - 1)) > 0 then return 0 end
end
next = next + absent
for from = next, next + equal - 1, most do
  local to = math.min(from + most, next + equal) - 1
  for at, value in ipairs(call('MGET', unpack(args, from, to))) do
    if value ~= args[from + equal + at - 1] then return 0 end
  end
end
next = next + 2 * equal
if new > 0 and call('MSETNX', unpack(args, next, next + 2 * new - 1)) == 0 then return 0 end
next = next + 2 * new
for from = next, next + 2 * puts - 1, most do
  call('MSET', unpack(args, from, math.min(from + most, next + 2 * puts) - 1))
end
next = next + 2 * puts
for at = next, next + 2 * singles - 1, 2 do
  if call('RPUSH', args[at], args[at + 1]) > 4000 then settle(args[at], of(args[at])) end
end
next = next + 2 * singles
for _ = 1, sets do
  local entries = tonumber(args[next + 1])
  note(args[next], of(args[next]), args, next + 2, next + 1 + entries)
  next = next + 2 + entries
end
return 1
"
);

/// The first argument has one letter for each check and write and a full stop behind each transaction; the second
/// counts the checks; then come the keys that are checked and, in order, what else the letters need. Everything that is
/// checked is read at once, the transactions are judged in the script's own tables, each on top of those before it, and
/// what they come to is written together at the end. The answer is the numbers of the transactions that met a check
/// that did not hold.
///
/// Letters: `a`bsent, `p`resent and `i`s check; `S`et, set for a `T`ime, `D`elete, `A`dd and `R`emove write.
pub const COMMIT: &str = with_settling!(
    r"
local ops, checks, byte = args[1], tonumber(args[2]), string.byte
local read, values, times, sets = {}, {}, {}, {}
for from = 3, checks + 2, most do
  local to = math.min(from + most - 1, checks + 2)
  local found = call('MGET', unpack(args, from, to))
  for at = from, to do read[args[at]] = found[at - from + 1] end
end

local check, next, number, holds, conflicts = 3, checks + 3, 0, true, {}
for at = 1, #ops do
  local op = byte(ops, at)
  if op == 46 then
    number = number + 1
    if not holds then conflicts[#conflicts + 1] = number end
    holds = true
  elseif op >= 97 then
    local key = args[check]
    local value = values[key]
    if value == nil then value = read[key] end
    check = check + 1
    if op == 97 then
      if value then holds = false end
    elseif op == 105 then
      if value ~= args[next] then holds = false end
      next = next + 1
    elseif not value then
      holds = false
    end
  elseif op == 83 then
    if holds then
      values[args[next]] = args[next + 1]
      times[args[next]] = nil
    end
    next = next + 2
  elseif op == 84 then
    if holds then
      values[args[next]] = args[next + 1]
      times[args[next]] = args[next + 2]
    end
    next = next + 3
  elseif op == 68 then
    if holds then values[args[next]] = false end
    next = next + 1
  else
    if holds then
      local set = sets[args[next]]
      if not set then
        set = { name = args[next + 1] }
        sets[args[next]] = set
      end
      set[#set + 1] = args[next + 2]
    end
    next = next + 3
  end
end

local function send(name, list)
  for from = 1, #list, most do call(name, unpack(list, from, math.min(from + most - 1, #list))) end
end

local puts, gone = {}, {}
for key, value in pairs(values) do
  if not value then
    gone[#gone + 1] = key
  elseif times[key] then
    call('SET', key, value, 'PX', times[key])
  else
    puts[#puts + 1] = key
    puts[#puts + 1] = value
  end
end
send('MSET', puts)
send('DEL', gone)
for log, set in pairs(sets) do note(log, set.name, set, 1, #set) end
return conflicts
"
);

/// The call of the script, known to Redis by `sha`, for these transactions.
pub fn call(sha: &str, keys: &Keys, txns: &[Txn]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    let checks = || txns.iter().flat_map(|txn| &txn.checks);
    command.arg(sha).arg(0).arg(letters(txns)).arg(checks().count());
    for check in checks() {
        command.arg(keys.value(&check.key));
    }
    for txn in txns {
        for check in &txn.checks {
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
        Write::Add { set, member } => {
            command.arg(keys.log(set)).arg(keys.set(set)).arg(Entry(b'+', member));
        }
        Write::Remove { set, member } => {
            command.arg(keys.log(set)).arg(keys.set(set)).arg(Entry(b'-', member));
        }
    }
}

/// An entry of a set's log: what became of a member, and the member.
pub struct Entry<'a>(pub u8, pub &'a [u8]);

impl ToRedisArgs for Entry<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut arg = out.writer_for_next_arg();
        // Writing to memory cannot fail.
        let _ = arg.write_all(&[self.0]).and_then(|()| arg.write_all(self.1));
    }
}

impl ToSingleRedisArg for Entry<'_> {}

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
