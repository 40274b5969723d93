//! Keeps secrets out of what is printed: the password in an address, and every key that is named like a secret.

use toml::Value;

use super::Settings;

const MASK: &str = "***";
const SECRET_NAMES: [&str; 4] = ["password", "secret", "token", "passphrase"];

pub fn to_toml(settings: &Settings) -> String {
    let mut table = match toml::Table::try_from(settings) {
        Ok(table) => table,
        Err(error) => return format!("# cannot be printed: {error}\n"),
    };
    mask_table(&mut table);
    toml::to_string(&table).unwrap_or_else(|error| format!("# cannot be printed: {error}\n"))
}

fn mask_table(table: &mut toml::Table) {
    for (key, value) in table.iter_mut() {
        match value {
            Value::Table(inner) => mask_table(inner),
            Value::String(value) => *value = text(key, value),
            _ => {}
        }
    }
}

/// The value of a key as it may be shown.
pub fn text(key: &str, value: &str) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    if SECRET_NAMES.iter().any(|secret| name.contains(secret)) && !value.is_empty() {
        return MASK.to_owned();
    }
    without_password(value)
}

/// `scheme://user:password@host` with the password masked. The last `@` before the path ends the credentials, so a
/// password with an `@` that was not escaped does not show either.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority = rest.find('/').unwrap_or(rest.len());
    let Some(at) = rest[..authority].rfind('@').or_else(|| rest.rfind('@')) else { return text.to_owned() };
    match rest[..at].split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:{MASK}{}", &rest[at..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_do_not_show() {
        for (given, shown) in [
            ("amqp://u:pw@host:5672/%2f", "amqp://u:***@host:5672/%2f"),
            ("redis://:p@w@host/0", "redis://:***@host/0"),
            ("redis://:p/w@host/0", "redis://:***@host/0"),
            ("redis://host:6379/0", "redis://host:6379/0"),
            ("amqp://user@host", "amqp://user@host"),
            ("plain", "plain"),
        ] {
            assert_eq!(text("redis.url", given), shown);
        }
        assert_eq!(text("smtp.password", "x"), "***");
    }
}
