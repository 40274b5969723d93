//! Errors as RFC 9457 problem details. This is the one place that decides an error's status.

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::actors::writer::WriteError;
use crate::domain::{DraftError, Fault};
use crate::store::StoreError;

pub const CONTENT_TYPE: &str = "application/problem+json";

/// What kind of error it is. The name is the end of the problem's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Malformed,
    NotFound,
    MethodNotAllowed,
    BodyTimeout,
    Conflict,
    UnderWay,
    TooLarge,
    UnsupportedMediaType,
    Invalid,
    KeyReused,
    Overloaded,
    Internal,
    Unavailable,
    /// A status that has no kind of its own here.
    Other(StatusCode),
}

impl Kind {
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTimeout,
        Self::Conflict,
        Self::UnderWay,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::KeyReused,
        Self::Overloaded,
        Self::Internal,
        Self::Unavailable,
    ];

    /// Status, name and title.
    #[must_use]
    pub fn told(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The request cannot be read"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is no such thing"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not allowed")
            }
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body-timeout", "The body did not arrive in time"),
            Self::Conflict => (StatusCode::CONFLICT, "conflict", "This contradicts what is there"),
            Self::UnderWay => (StatusCode::CONFLICT, "under-way", "The first request with this key is under way"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The content type is not supported")
            }
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The request breaks the rules"),
            Self::KeyReused => {
                (StatusCode::UNPROCESSABLE_ENTITY, "key-reused", "The idempotency key belongs to another request")
            }
            Self::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "overloaded", "There is too much to do"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong here"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "A needed part is not available"),
            Self::Other(status) => (status, "", status.canonical_reason().unwrap_or("Error")),
        }
    }

    /// Seconds after which another try makes sense.
    fn retry_after(self) -> Option<u32> {
        match self {
            Self::Overloaded | Self::UnderWay => Some(1),
            Self::Unavailable => Some(2),
            _ => None,
        }
    }
}

impl From<StatusCode> for Kind {
    fn from(status: StatusCode) -> Self {
        Self::ALL.into_iter().find(|kind| kind.told().0 == status).unwrap_or(Self::Other(status))
    }
}

/// One error as the client sees it.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: Kind,
    pub detail: String,
    pub errors: Vec<Fault>,
    /// Members beyond those of the RFC.
    pub extra: Map<String, Value>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), errors: Vec::new(), extra: Map::new() }
    }

    /// Bad input, with everything that is wrong with it.
    #[must_use]
    pub fn invalid(errors: Vec<Fault>) -> Self {
        let detail = match errors.as_slice() {
            [one] if one.pointer.is_empty() => one.detail.clone(),
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} things are wrong with the request", many.len()),
        };
        Self { errors, ..Self::new(Kind::Invalid, detail) }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.extra.insert(name.to_owned(), value);
        self
    }

    /// The body; `instance` is the path of the call that went wrong.
    #[must_use]
    pub fn to_value(&self, instance: Option<&str>) -> Value {
        serde_json::to_value(self.body(instance)).unwrap_or_default()
    }

    /// The whole answer.
    #[must_use]
    pub fn respond(&self, instance: Option<&str>) -> HttpResponse {
        let body = serde_json::to_vec(&self.body(instance)).unwrap_or_default();
        let mut response = HttpResponse::build(self.kind.told().0);
        response.insert_header((header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE)));
        if let Some(seconds) = self.kind.retry_after() {
            response.insert_header((header::RETRY_AFTER, seconds));
        }
        response.body(body)
    }

    fn body<'a>(&'a self, instance: Option<&'a str>) -> Body<'a> {
        let (status, name, title) = self.kind.told();
        let r#type = if name.is_empty() { "about:blank".to_owned() } else { format!("/docs#{name}") };
        Body {
            r#type,
            title,
            status: status.as_u16(),
            detail: &self.detail,
            instance,
            errors: &self.errors,
            extra: &self.extra,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.kind.told().0
    }

    fn error_response(&self) -> HttpResponse {
        self.respond(None)
    }
}

impl From<DraftError> for Problem {
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::NotJson(_) => Self::new(Kind::Malformed, error.to_string()),
            DraftError::Invalid(faults) => Self::invalid(faults),
        }
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Full => Self::new(Kind::Overloaded, error.to_string()),
            WriteError::Unavailable(reason) => {
                Self::new(Kind::Unavailable, format!("whether the request was written is not known: {reason}"))
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::new(Kind::Unavailable, error.to_string())
    }
}
