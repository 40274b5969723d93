//! A client's wish to have a package flown, as it is after validation: every default filled in.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use minicbor::data::Type;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::compact;
use super::time::Timestamp;

/// The id of one delivery: the caller's, or a UUIDv7 made here. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct DeliveryId(Arc<str>);

/// Why a text is not a delivery id.
#[derive(Debug, thiserror::Error)]
#[error("an id is 1 to 64 characters out of A-Z, a-z, 0-9, '_' and '-'")]
pub struct InvalidId;

impl DeliveryId {
    /// A fresh id that sorts by the time it was made.
    #[must_use]
    pub fn generate() -> Self {
        Uuid::now_v7().into()
    }

    /// Takes a caller's id over.
    ///
    /// # Errors
    /// When it is empty, too long or has a character that does not fit into a path.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if (1..=64).contains(&text.len()) && text.bytes().all(fits) { Ok(Self(text.into())) } else { Err(InvalidId) }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Uuid> for DeliveryId {
    fn from(uuid: Uuid) -> Self {
        Self((&*uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer())).into())
    }
}

impl TryFrom<String> for DeliveryId {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl<C> Encode<C> for DeliveryId {
    fn encode<W: encode::Write>(&self, encoder: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        match compact::uuid_of(&self.0) {
            Some(uuid) => encoder.bytes(uuid.as_bytes()).map(drop),
            None => encoder.str(&self.0).map(drop),
        }
    }
}

impl<'b, C> Decode<'b, C> for DeliveryId {
    fn decode(decoder: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        if decoder.datatype()? == Type::Bytes {
            let uuid = Uuid::from_slice(decoder.bytes()?).map_err(decode::Error::message)?;
            return Ok(uuid.into());
        }
        Self::parse(decoder.str()?).map_err(decode::Error::message)
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for DeliveryId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A point on the earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
pub struct Location {
    #[n(0)]
    pub latitude: f64,
    #[n(1)]
    pub longitude: f64,
}

/// How the receiver confirms that the package arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum Confirmation {
    #[default]
    #[n(0)]
    None,
    #[n(1)]
    FingerPrint,
    #[n(2)]
    Picture,
    #[n(3)]
    Voice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum PackageSize {
    #[n(0)]
    Small,
    #[n(1)]
    Medium,
    #[n(2)]
    Large,
}

/// What is to be flown. Weight in kilograms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct PackageInfo {
    #[n(0)]
    pub package_id: String,
    #[n(1)]
    pub size: PackageSize,
    #[n(2)]
    pub weight: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(3)]
    pub tag: Option<String>,
}

/// One request after validation. `pickupTime`, `deadline` and `packageId` were filled in where the client left
/// them out, so a replay a day later means the same times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryRequest {
    #[n(0)]
    pub owner_id: String,
    #[n(1)]
    pub pickup_location: Location,
    #[n(2)]
    pub drop_off_location: Location,
    #[cbor(n(3), with = "compact::millis")]
    pub pickup_time: Timestamp,
    #[cbor(n(4), with = "compact::millis")]
    pub deadline: Timestamp,
    #[n(5)]
    pub expedited: bool,
    #[n(6)]
    pub confirmation_required: Confirmation,
    #[n(7)]
    pub package_info: PackageInfo,
}

#[cfg(test)]
pub mod samples {
    use super::*;
    use crate::domain::time::from_millis;

    /// The request of the API's example.
    pub fn request() -> DeliveryRequest {
        DeliveryRequest {
            owner_id: "contoso".into(),
            pickup_location: Location { latitude: 47.6101, longitude: -122.2015 },
            drop_off_location: Location { latitude: 47.6205, longitude: -122.3493 },
            pickup_time: from_millis(1_796_119_200_000),
            deadline: from_millis(1_796_126_400_000),
            expedited: false,
            confirmation_required: Confirmation::None,
            package_info: PackageInfo {
                package_id: "books-17".into(),
                size: PackageSize::Small,
                weight: 1.5,
                tag: Some("books".into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_do_not_fit_into_a_path_are_refused() {
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(DeliveryId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(DeliveryId::parse(&"x".repeat(64)).is_ok());
        assert!(serde_json::from_str::<DeliveryId>("\"a/b\"").is_err());
    }

    #[test]
    fn an_id_is_kept_short_and_what_was_kept_as_text_is_read() {
        let uuid = "01a1ed75-df5b-73b3-b91a-50778ced0fd6";
        for (text, bytes) in [(uuid.to_owned(), 17), (uuid.to_uppercase(), 38), ("order-4711".to_owned(), 11)] {
            let id = DeliveryId::parse(&text).unwrap();
            let kept = compact::encode(&id);
            assert_eq!((kept.len(), compact::decode::<DeliveryId>(&kept).unwrap()), (bytes, id.clone()), "{text}");
            let as_text = minicbor::to_vec(&text).unwrap();
            assert_eq!(compact::decode::<DeliveryId>(&as_text).unwrap(), id, "{text}");
        }
        assert!(
            compact::decode::<DeliveryId>(&minicbor::to_vec(minicbor::bytes::ByteVec::from(vec![1; 15])).unwrap())
                .is_err()
        );
    }
}
