//! One entry on the disk: 28 bytes of header, then the body.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | length of the body |
//! | 4..8 | crc32 of everything else in the header and the body |
//! | 8..12 | number of the stream |
//! | 12..20 | offset in the stream |
//! | 20..28 | time of writing, milliseconds since the epoch |
//!
//! All numbers are little-endian. Bytes that were never written (zeros) are not a frame: their crc is wrong.

pub(super) const HEADER_BYTES: usize = 28;
/// Longer bodies are refused. What the reader of a damaged length may be made to load is bounded by this.
pub(super) const BODY_BYTES: usize = 16 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub body_bytes: u32,
    pub crc: u32,
    pub stream: u32,
    pub offset: u64,
    pub at: i64,
}

impl Header {
    /// The header of a frame with this body, which is at most [`BODY_BYTES`] long.
    pub fn of(stream: u32, offset: u64, at: i64, body: &[u8]) -> Self {
        let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut header = Self { body_bytes, crc: 0, stream, offset, at };
        header.crc = header.checksum(body);
        header
    }

    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.offset.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.at.to_le_bytes());
        bytes
    }

    /// The header at the beginning of `bytes`, if they hold one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body_bytes, bytes) = bytes.split_first_chunk()?;
        let (crc, bytes) = bytes.split_first_chunk()?;
        let (stream, bytes) = bytes.split_first_chunk()?;
        let (offset, bytes) = bytes.split_first_chunk()?;
        let (at, _) = bytes.split_first_chunk()?;
        Some(Self {
            body_bytes: u32::from_le_bytes(*body_bytes),
            crc: u32::from_le_bytes(*crc),
            stream: u32::from_le_bytes(*stream),
            offset: u64::from_le_bytes(*offset),
            at: i64::from_le_bytes(*at),
        })
    }

    pub fn frame_bytes(self) -> usize {
        HEADER_BYTES + self.body_bytes as usize
    }

    pub fn matches(self, body: &[u8]) -> bool {
        body.len() == self.body_bytes as usize && self.checksum(body) == self.crc
    }

    fn checksum(self, body: &[u8]) -> u32 {
        let bytes = self.encode();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[0..4]);
        hasher.update(&bytes[8..]);
        hasher.update(body);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_every_flipped_bit_is_found() {
        let body = b"a body";
        let header = Header::of(7, 42, 1_700_000_000_000, body);
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert!(header.matches(body));
        let frame = [&header.encode()[..], body].concat();
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = Header::decode(&damaged).expect("it is long enough");
            assert!(!read.matches(&damaged[HEADER_BYTES..]), "bit {bit}");
        }
    }

    #[test]
    fn zeros_are_no_frame() {
        assert!(!Header::decode(&[0; HEADER_BYTES]).expect("it is long enough").matches(&[]));
        assert_eq!(Header::decode(&[0; HEADER_BYTES - 1]), None);
    }
}
