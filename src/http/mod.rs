//! The HTTP server and its routes. A part of the application brings its routes as a function over
//! [`web::ServiceConfig`]; everything goes through [`edge`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};

use crate::config;

pub mod batch;
pub mod body;
pub mod deliveries;
pub mod edge;
pub mod ingestion;
pub mod intake;
pub mod openapi;
pub mod operations;
pub mod probes;
pub mod problem;
pub mod services;
pub mod status;

use problem::{Kind, Problem};

/// The routes of one part, and the data they need. Called once per worker thread.
pub type Routes = Arc<dyn Fn(&mut web::ServiceConfig) + Send + Sync>;

/// How many connections the system keeps for us until they are accepted.
const BACKLOG: u32 = 4096;

/// Binds the address and serves the routes. The server runs once it is awaited; signals are the caller's business.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve(http: &config::Http, routes: Vec<Routes>, drain_s: u64) -> io::Result<(Server, SocketAddr)> {
    let mut server = HttpServer::new(move || {
        let routes = routes.clone();
        App::new()
            .wrap(from_fn(edge::edge))
            .configure(move |config| routes.iter().for_each(|part| part(config)))
            .default_service(web::to(nowhere))
    })
    .client_request_timeout(http.head_timeout)
    .max_connections(http.max_connections)
    .backlog(BACKLOG)
    .shutdown_timeout(drain_s)
    .disable_signals();
    if http.workers > 0 {
        server = server.workers(http.workers);
    }
    let server = server.bind(http.listen.as_str())?;
    let address = server.addrs().first().copied().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((server.run(), address))
}

async fn nowhere(request: HttpRequest) -> Result<HttpResponse, Problem> {
    Err(Problem::new(Kind::NotFound, format!("there is no route {}", request.path())))
}
