//! Where Redis is: one server, or the one that the sentinels name as the master now.
//!
//! `redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS, and
//! `redis-sentinel://[user:password@]host:port,host:port/master-name[/db]` (`rediss-sentinel://…`; a `+` does as well
//! as the `-`), where user and password are those of the server.

use std::fs;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisResult, TlsCertificates,
    TlsMode,
};

use crate::config::Redis as Settings;

pub enum Address {
    Server(Box<Client>),
    Sentinels(Box<SentinelClient>),
}

impl Address {
    pub fn parse(settings: &Settings) -> Result<Self, String> {
        let url = &settings.url;
        let authority = Some(&settings.ca_file).filter(|file| !file.is_empty()).map(read_authority).transpose()?;
        let address = match url.split_once("sentinel://") {
            Some((scheme, rest)) => sentinels(scheme.starts_with("rediss"), rest, authority)?,
            None => Self::Server(Box::new(server(url, authority).map_err(|error| error.to_string())?)),
        };
        Ok(address)
    }

    pub async fn connect(&mut self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        match self {
            Self::Server(client) => client.get_multiplexed_async_connection_with_config(config).await,
            Self::Sentinels(client) => client.get_async_connection_with_config(config).await,
        }
    }
}

fn read_authority(file: &String) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{file}: {error}"))
}

fn server(url: &str, authority: Option<Vec<u8>>) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    // The third version of the protocol is the one that tells when a connection is lost.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    match authority {
        Some(pem) => Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem) }),
        None => Client::open(info),
    }
}

fn sentinels(tls: bool, rest: &str, authority: Option<Vec<u8>>) -> Result<Address, String> {
    let form = "redis-sentinel://[user:password@]host:port,host:port/master-name[/db]";
    let wrong = || format!("not of the form {form}");
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    let (hosts, path) = rest.split_once('/').ok_or_else(wrong)?;
    let (master, db) = path.split_once('/').map_or((path, None), |(master, db)| (master, Some(db)));
    let addresses = hosts.split(',').map(|host| address(host, tls)).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let mut builder =
        SentinelClientBuilder::new(addresses, master, SentinelServerType::Master).map_err(|error| error.to_string())?;
    builder = builder.set_client_to_redis_protocol(ProtocolVersion::RESP3);
    if let Some(db) = db.filter(|db| !db.is_empty()) {
        builder = builder.set_client_to_redis_db(db.parse().map_err(|_| wrong())?);
    }
    if let Some((user, password)) = login.map(|login| login.split_once(':').unwrap_or(("", login))) {
        builder = builder.set_client_to_redis_password(password);
        if !user.is_empty() {
            builder = builder.set_client_to_redis_username(user);
        }
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(pem) = authority.filter(|_| tls) {
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem) };
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    let client = builder.build().map_err(|error| error.to_string())?;
    Ok(Address::Sentinels(Box::new(client)))
}

fn address(host_and_port: &str, tls: bool) -> Option<ConnectionAddr> {
    let (host, port) = host_and_port.rsplit_once(':').unwrap_or((host_and_port, "26379"));
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    let plain = !host.is_empty();
    plain.then_some(if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(&Settings { url: url.into(), ca_file: String::new(), timeout: Duration::from_secs(1) })
    }

    #[test]
    fn addresses_of_all_kinds_are_understood() {
        for url in ["redis://localhost", "rediss://user:secret@[::1]:6380/3"] {
            assert!(matches!(parse(url), Ok(Address::Server(_))), "{url}");
        }
        for url in ["redis+sentinel://a:26379,b/main", "rediss-sentinel://:secret@a:1,b:2/main/4"] {
            assert!(matches!(parse(url), Ok(Address::Sentinels(_))), "{url}");
        }
        for url in
            ["http://localhost", "redis+sentinel://a:26379", "redis+sentinel://a:b/main", "redis+sentinel://a/m/x"]
        {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
