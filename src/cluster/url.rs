//! An address that may hold a password, so it is never shown.

use std::fmt;

use serde::Deserialize;

/// A URL as it stands in the settings.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for SecretUrl {
    fn from(url: &str) -> Self {
        Self(url.into())
    }
}

impl fmt::Debug for SecretUrl {
    /// The scheme only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://…", self.0.split("://").next().filter(|scheme| self.0.len() > scheme.len()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(format!("{:?}", SecretUrl::from("redis://:secret@host")), "redis://…");
        assert_eq!(format!("{:?}", SecretUrl::from("secret")), "://…");
    }
}
