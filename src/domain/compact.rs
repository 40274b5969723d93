//! How the store keeps records and entities: CBOR arrays, a third of the size of the same thing in JSON and quicker to
//! make and to read. What is not written is not flushed, merged or shipped either, so size is what a workflow costs.
//!
//! A field's number is its place in the array and never changes its meaning; a field that is added later gets the next
//! number and is an `Option` or has a default, so that what an older program wrote can be read.

use std::cell::RefCell;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use uuid::Uuid;

/// The bytes of a value.
#[must_use]
pub fn encode<T: Encode<()>>(value: &T) -> Bytes {
    thread_local! {
        /// Grows to what a value takes once, not for every value.
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        // Writing to memory cannot fail; nothing would be refused as damaged when it is read, never taken for a value.
        match minicbor::encode(value, &mut *scratch) {
            Ok(()) => Bytes::copy_from_slice(scratch),
            Err(_) => Bytes::new(),
        }
    })
}

/// The value of some bytes.
///
/// # Errors
/// When they are no such value.
pub fn decode<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<T, minicbor::decode::Error> {
    minicbor::decode(bytes)
}

/// The UUID that a text is, when it is written the way we write them: then 16 bytes stand for the whole text.
#[must_use]
pub fn uuid_of(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok()?;
    (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(uuid)
}

/// Times as milliseconds since the epoch.
pub mod millis {
    use minicbor::decode::{Decoder, Error};
    use minicbor::encode::{self, Encoder, Write};

    use crate::domain::time::{Timestamp, from_millis};

    pub fn encode<C, W: Write>(
        time: &Timestamp,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        encoder.i64(time.as_millisecond()).map(drop)
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<Timestamp, Error> {
        decoder.i64().map(from_millis)
    }
}

/// Times that may be missing, likewise.
pub mod maybe_millis {
    use minicbor::decode::{Decode, Decoder, Error};
    use minicbor::encode::{self, Encode, Encoder, Write};

    use crate::domain::time::{Timestamp, from_millis};

    pub fn encode<C, W: Write>(
        time: &Option<Timestamp>,
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        time.map(Timestamp::as_millisecond).encode(encoder, context)
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, context: &mut C) -> Result<Option<Timestamp>, Error> {
        Ok(Option::<i64>::decode(decoder, context)?.map(from_millis))
    }

    #[must_use]
    pub fn is_nil(time: &Option<Timestamp>) -> bool {
        time.is_none()
    }

    #[must_use]
    #[allow(clippy::option_option, reason = "the outer one says that a missing field has a value, the inner one which")]
    pub fn nil() -> Option<Option<Timestamp>> {
        Some(None)
    }
}

/// What is shared in memory.
pub mod shared {
    use std::sync::Arc;

    use minicbor::decode::{Decode, Decoder, Error};
    use minicbor::encode::{self, Encode, Encoder, Write};

    pub fn encode<C, T: Encode<C>, W: Write>(
        value: &Arc<T>,
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        T::encode(value, encoder, context)
    }

    pub fn decode<'b, C, T: Decode<'b, C>>(decoder: &mut Decoder<'b>, context: &mut C) -> Result<Arc<T>, Error> {
        T::decode(decoder, context).map(Arc::new)
    }
}

/// Texts that are shared in memory.
pub mod text {
    use std::sync::Arc;

    use minicbor::decode::{Decoder, Error};
    use minicbor::encode::{self, Encoder, Write};

    pub fn encode<C, W: Write>(
        text: &Arc<str>,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        encoder.str(text).map(drop)
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<Arc<str>, Error> {
        decoder.str().map(Into::into)
    }
}
