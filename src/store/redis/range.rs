//! Where a scan begins and ends, as Redis takes it.

use crate::store::Scan;

/// The two ends of a scan as `ZRANGE … BYLEX` takes them, the one it begins at first.
pub fn ends(scan: &Scan) -> (Vec<u8>, Vec<u8>) {
    let lowest = match &scan.after {
        Some(after) if !scan.backwards && after[..] >= scan.prefix[..] => bound(b'(', after),
        _ if scan.prefix.is_empty() => b"-".to_vec(),
        _ => bound(b'[', &scan.prefix),
    };
    let behind = successor(&scan.prefix);
    let highest = match (&scan.after, behind) {
        (Some(after), Some(behind)) if scan.backwards => bound(b'(', &behind.min(after.to_vec())),
        (Some(after), None) if scan.backwards => bound(b'(', after),
        (_, Some(behind)) => bound(b'(', &behind),
        (_, None) => b"+".to_vec(),
    };
    if scan.backwards { (highest, lowest) } else { (lowest, highest) }
}

fn bound(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], bytes].concat()
}

/// The first bytes behind all that begin with `prefix`, when there are any.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn ends_of(prefix: &'static [u8], after: Option<&'static [u8]>, backwards: bool) -> (Vec<u8>, Vec<u8>) {
        let prefix = Bytes::from_static(prefix);
        ends(&Scan { set: String::new(), prefix, after: after.map(Bytes::from_static), limit: 1, backwards })
    }

    #[test]
    fn a_prefix_and_a_place_narrow_the_range() {
        for (prefix, after, backwards, from, to) in [
            (&b""[..], None, false, &b"-"[..], &b"+"[..]),
            (b"", None, true, b"+", b"-"),
            (b"a", None, false, b"[a", b"(b"),
            (b"a\xff", None, false, b"[a\xff", b"(b"),
            (b"\xff", None, false, b"[\xff", b"+"),
            (b"b", Some(&b"a"[..]), false, b"[b", b"(c"),
            (b"b", Some(b"b5"), false, b"(b5", b"(c"),
            (b"b", Some(b"d"), true, b"(c", b"[b"),
            (b"b", Some(b"b5"), true, b"(b5", b"[b"),
            (b"", Some(b"b5"), true, b"(b5", b"-"),
        ] {
            assert_eq!(ends_of(prefix, after, backwards), (from.to_vec(), to.to_vec()));
        }
    }
}
