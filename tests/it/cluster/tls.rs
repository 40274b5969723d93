//! Connections over TLS: the server's certificate must be signed by the authority that the settings name.

use std::fs;
use std::path::Path;

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::store::redis::RedisState;
use drone_delivery::stream::{Streams as _, rabbitmq};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::broker::REQUESTS;
use super::{open, settings};
use crate::conformance::until;
use crate::support::process::free_port;
use crate::support::servers::{RabbitMq, Redis};

/// An authority with a server's certificate for `localhost`, in files, and another authority that signed nothing.
fn write_certificates(dir: &Path) {
    let authority = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let trusted = authority();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &trusted).unwrap();
    for (name, pem) in [
        ("ca.pem", trusted.pem()),
        ("other.pem", authority().pem()),
        ("server.pem", server.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        fs::write(dir.join(name), pem).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_servers_are_verified() {
    let dir = TempDir::new().unwrap();
    write_certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (amqps, rediss) = (free_port(), free_port().to_string());
    let rabbitmq = RabbitMq::start_with(&format!(
        "listeners.ssl.1 = 127.0.0.1:{amqps}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_none",
        file("ca.pem"),
        file("server.pem"),
        file("key.pem")
    ));
    let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("key.pem"));
    let files = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let redis = Redis::start_with(&[&["--tls-port", &rediss, "--tls-auth-clients", "no"], &files[..]].concat());

    let mut over_tls = settings(&rabbitmq, &redis);
    over_tls.rabbitmq.url = format!("amqps://guest:guest@localhost:{amqps}/%2f");
    over_tls.rabbitmq.ca_file = file("ca.pem");
    over_tls.redis.url = format!("rediss://localhost:{rediss}/0");
    over_tls.redis.ca_file = file("ca.pem");
    let cluster = open(&over_tls).await;
    cluster.broker.append(REQUESTS, "x".into()).await.unwrap();

    let runtime = EngineRuntime::start().unwrap();
    over_tls.rabbitmq.ca_file = file("other.pem");
    over_tls.redis.ca_file = file("other.pem");
    let broker = rabbitmq::RabbitMq::open(&over_tls.rabbitmq, "wrong", 1, &runtime).unwrap();
    let state = RedisState::open(&over_tls.redis, "wrong", &runtime).unwrap();
    let refused = |trouble: String| trouble.contains("certificate");
    until("the broker is refused", || async { broker.health().await.is_err_and(refused) }).await;
    until("redis is refused", || async { state.health().is_err_and(|error| refused(error.reason)) }).await;
}
