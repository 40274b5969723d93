//! A bucket's value: its reservations by their beginning, each as the seconds of its beginning and end, counted from
//! that of the bucket, and the delivery. A bucket is written anew for every reservation in it and kept in memory as it
//! is, so an entry takes as few bytes as it can: ids made here are UUIDs and take 16.

use bytes::Bytes;
use uuid::Uuid;

use super::calendar::{BUCKET, Span};
use crate::domain::DeliveryId;
use crate::domain::compact::uuid_of;
use crate::services::entities::Damaged;

/// Stands where the length of a text would, before the bytes of a UUID.
const IS_UUID: u8 = 0;
const UUID_BYTES: usize = 16;

/// One entry, and where it stands.
struct Entry<'a> {
    span: Span,
    /// The delivery as it is written.
    name: &'a [u8],
    bytes: &'a [u8],
}

/// The entries of a value, as far as they are sound.
struct Entries<'a> {
    start: i64,
    rest: &'a [u8],
}

fn entries(bucket: i64, value: &[u8]) -> Entries<'_> {
    Entries { start: bucket * BUCKET, rest: value }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (from, rest) = self.rest.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let length = match *rest.first()? {
            IS_UUID => UUID_BYTES,
            length => length.into(),
        };
        let name = rest.get(..=length)?;
        let second = |bytes: &[u8; 4]| self.start + i64::from(i32::from_le_bytes(*bytes));
        let span = Span { from: second(from), until: second(until) };
        let (bytes, rest) = self.rest.split_at(8 + name.len());
        self.rest = rest;
        Some(Entry { span, name, bytes })
    }
}

fn name_of(id: &DeliveryId) -> Vec<u8> {
    match uuid_of(id.as_str()) {
        Some(uuid) => [&[IS_UUID], uuid.as_bytes().as_slice()].concat(),
        // An id has 64 characters at most.
        None => [&[u8::try_from(id.as_str().len()).unwrap_or(u8::MAX)], id.as_str().as_bytes()].concat(),
    }
}

fn id_of(name: &[u8]) -> Option<DeliveryId> {
    match name.split_first()? {
        (&IS_UUID, uuid) => Uuid::from_slice(uuid).ok().map(DeliveryId::from),
        (_, text) => DeliveryId::parse(std::str::from_utf8(text).ok()?).ok(),
    }
}

/// The reservations in a bucket's value.
///
/// # Errors
/// When the value is no such thing.
pub fn parse(bucket: i64, value: &[u8]) -> Result<Vec<(Span, DeliveryId)>, Damaged> {
    let mut left = entries(bucket, value);
    let read = |entry: Entry| Some((entry.span, id_of(entry.name)?));
    let reservations = left.by_ref().map(|entry| read(entry).ok_or_else(|| damaged("a calendar's delivery"))).collect();
    if left.rest.is_empty() { reservations } else { Err(damaged("a calendar's entry")) }
}

/// Whether a value can be read to its end.
///
/// # Errors
/// When it cannot.
pub fn check(value: &[u8]) -> Result<(), Damaged> {
    let mut left = entries(0, value);
    left.by_ref().for_each(drop);
    if left.rest.is_empty() { Ok(()) } else { Err(damaged("a calendar's entry")) }
}

fn damaged(what: &str) -> Damaged {
    Damaged(what.to_owned())
}

/// The taken times, by their beginning.
pub fn spans(bucket: i64, value: &[u8]) -> impl Iterator<Item = Span> {
    entries(bucket, value).map(|entry| entry.span)
}

/// The value with one more reservation.
#[must_use]
pub fn with(bucket: i64, value: &[u8], span: Span, id: &DeliveryId) -> Bytes {
    let before: usize = entries(bucket, value).take_while(|entry| entry.span < span).map(|e| e.bytes.len()).sum();
    let second = |second: i64| i32::try_from(second - bucket * BUCKET).unwrap_or(i32::MAX).to_le_bytes();
    let (earlier, later) = value.split_at(before);
    [earlier, &second(span.from), &second(span.until), &name_of(id), later].concat().into()
}

/// The value without a delivery's reservation.
#[must_use]
pub fn without(bucket: i64, value: &[u8], id: &DeliveryId) -> Bytes {
    let name = name_of(id);
    let others = entries(bucket, value).filter(|entry| entry.name != name);
    others.map(|entry| entry.bytes).collect::<Vec<_>>().concat().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl Strategy<Value = DeliveryId> {
        let uuid = any::<u128>().prop_map(|bits| Uuid::from_u128(bits).to_string());
        let upper = any::<u128>().prop_map(|bits| Uuid::from_u128(bits).to_string().to_uppercase());
        prop_oneof![uuid, upper, "[A-Za-z0-9_-]{1,64}"].prop_map(|text| DeliveryId::parse(&text).unwrap())
    }

    proptest! {
        /// What is put in comes out, in order, and can be taken out again.
        #[test]
        fn a_value_reads_back(bucket in 0..100_000_i64, items in prop::collection::btree_map(ids(), (-9_000..30_000_i64, 1..9_000_i64), 0..20)) {
            let start = bucket * BUCKET;
            let reserved = items.iter().map(|(id, (from, length))| {
                (Span { from: start + from, until: start + from + length }, id.clone())
            });
            let mut reserved: Vec<_> = reserved.collect();
            let value = reserved.iter().fold(Bytes::new(), |value, (span, id)| with(bucket, &value, *span, id));
            reserved.sort();
            let mut read = parse(bucket, &value).unwrap();
            prop_assert!(spans(bucket, &value).is_sorted());
            read.sort();
            prop_assert_eq!(&read, &reserved);
            let empty = reserved.iter().fold(value, |value, (_, id)| without(bucket, &value, id));
            prop_assert!(empty.is_empty());
        }

        #[test]
        fn what_is_cut_off_is_damage(id in ids(), cut in 1..8_usize) {
            let value = with(0, b"", Span { from: 1, until: 2 }, &id);
            let damaged = &value[..value.len() - cut];
            prop_assert!(parse(0, damaged).is_err() && check(damaged).is_err() && check(&value).is_ok());
        }
    }
}
