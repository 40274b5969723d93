//! How keys are written. Every workflow writes and looks for a dozen, each many times on its way down the levels, so they
//! are as short as they can be: what fjall keeps in place (20 bytes) costs no memory of its own and no way to it.

use std::ops::Bound;

use fjall::Slice;

use crate::domain::compact::uuid_of;
use crate::store::Scan;

const UUID_TEXT: usize = 36;
/// The last byte of a key says what stands before it.
const TEXT: u8 = 0;
const UUID: u8 = 1;

/// The name of a value within its keyspace. A UUID at its end, as most have, is written as its 16 bytes, so that names
/// still sort by time.
pub(super) fn value_key(name: &str) -> Slice {
    let (before, uuid) = name.split_at_checked(name.len().saturating_sub(UUID_TEXT)).unwrap_or((name, ""));
    match uuid_of(uuid) {
        Some(uuid) if before.is_empty() => {
            let mut key = [UUID; 17];
            key[..16].copy_from_slice(uuid.as_bytes());
            key.into()
        }
        Some(uuid) => [before.as_bytes(), uuid.as_bytes(), &[UUID]].concat().into(),
        None => [name.as_bytes(), &[TEXT]].concat().into(),
    }
}

pub(super) fn member_key(set: &str, member: &[u8]) -> Vec<u8> {
    [set.as_bytes(), &[0], member].concat()
}

pub(super) fn expiry_key(expires: u64, key: &[u8]) -> Vec<u8> {
    [&expires.to_be_bytes(), key].concat()
}

/// The two parts of a key of `expiry`.
pub(super) fn split_expiry(entry: &[u8]) -> Option<(u64, &str)> {
    let (expires, key) = entry.split_first_chunk()?;
    Some((u64::from_be_bytes(*expires), std::str::from_utf8(key).ok()?))
}

type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The keys of `members` that a scan asks for; none when there can be none.
pub(super) fn range_of(scan: &Scan) -> Option<KeyRange> {
    let from = member_key(&scan.set, &scan.prefix);
    let to = behind_prefix(&from);
    let after = scan.after.as_ref().map(|after| member_key(&scan.set, after));
    let (lower, upper) = match after {
        Some(after) if scan.backwards => (Bound::Included(from), Bound::Excluded(after.min(to))),
        Some(after) if after >= from => (Bound::Excluded(after), Bound::Excluded(to)),
        _ => (Bound::Included(from), Bound::Excluded(to)),
    };
    let (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high)) = (&lower, &upper) else { return None };
    (low < high).then_some((lower, upper))
}

/// The first key behind all that begin with `prefix`, which holds a byte below 255 (the zero behind the set's name).
fn behind_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut behind = prefix.to_vec();
    while behind.last() == Some(&u8::MAX) {
        behind.pop();
    }
    if let Some(last) = behind.last_mut() {
        *last += 1;
    }
    behind
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn names() -> impl Strategy<Value = String> {
        let uuid = || any::<u128>().prop_map(|bits| Uuid::from_u128(bits).to_string());
        let behind = ("[a-z/é]{0,9}", uuid()).prop_map(|(before, uuid)| before + &uuid);
        // What the bytes of a UUID would look like if they were taken for text.
        let bytes = "[\u{0}-\u{7f}]{16}\u{1}?";
        prop_oneof![uuid(), behind, uuid().prop_map(|uuid| uuid.to_uppercase()), bytes, "[a-zé/0-9-]{1,40}"]
    }

    /// The name that a key was made of.
    fn name_of(key: &[u8]) -> String {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match key.split_last().unwrap() {
            (&TEXT, name) => text(name),
            (_, name) => {
                let (before, uuid) = name.split_last_chunk::<16>().unwrap();
                text(before) + &Uuid::from_bytes(*uuid).to_string()
            }
        }
    }

    proptest! {
        /// So no two names have the same key.
        #[test]
        fn a_key_leads_back_to_its_name(name in names()) {
            prop_assert_eq!(name_of(&value_key(&name)), name);
        }
    }

    #[test]
    fn ids_made_here_are_short_and_sort_by_time() {
        let (early, late) = (Uuid::from_u128(0x0190 << 112), Uuid::from_u128(0x0191 << 112));
        assert_eq!(value_key(&early.to_string()).len(), 17);
        assert!(value_key(&early.to_string()) < value_key(&late.to_string()));
    }
}
