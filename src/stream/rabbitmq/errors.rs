//! What the client's errors mean to those who call.

use lapin::{Error, ErrorKind};

use crate::stream::{AppendError, ReadError};

pub const PART: &str = "rabbitmq";

const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

pub fn is_missing(error: &Error) -> bool {
    code(error) == Some(NOT_FOUND)
}

pub fn is_mismatch(error: &Error) -> bool {
    code(error) == Some(PRECONDITION_FAILED)
}

fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

#[allow(clippy::needless_pass_by_value, reason = "so that it can stand in map_err")]
pub fn append_failed(reason: impl ToString) -> AppendError {
    AppendError::Unavailable { part: PART, reason: reason.to_string() }
}

#[allow(clippy::needless_pass_by_value, reason = "so that it can stand in map_err")]
pub fn read_failed(reason: impl ToString) -> ReadError {
    ReadError::Unavailable { part: PART, reason: reason.to_string() }
}

/// What an error with one queue or stream means.
#[allow(clippy::needless_pass_by_value, reason = "so that it can stand in map_err")]
pub fn read_failed_at(name: &str, error: Error) -> ReadError {
    if is_missing(&error) { ReadError::Missing(name.into()) } else { read_failed(error) }
}
