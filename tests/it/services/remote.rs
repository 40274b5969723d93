//! A service at an address behaves like one in the process: the same answers, the same codes, the same repeats.

use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use drone_delivery::config::{Agent, Settings};
use drone_delivery::domain::workflow::Output;
use drone_delivery::domain::{ReasonCode, StepName};
use drone_delivery::services::account::AccountStatus;
use drone_delivery::services::remote::Remote;
use drone_delivery::services::{Order, Service, StepError};

use super::rest::Server;
use super::{PICKUP, account, cancel, code, drone, execute, minutes, order, order_with};

fn remote(step: StepName, url: &str) -> Remote {
    let settings = Settings::builtin().unwrap();
    let agent: Agent = settings.agents.get(step).clone();
    Remote::new(step, &Agent { url: url.into(), timeout: Duration::from_secs(60), ..agent })
}

async fn furnished() -> Server {
    let server = Server::start();
    server.services.account.put(&[("contoso".into(), account(AccountStatus::Active))]).await.unwrap();
    server.services.drone.put_drones(&[drone("d-1", PICKUP)]).await.unwrap();
    server
}

#[actix_web::test]
async fn every_step_answers_like_the_one_in_the_process() {
    let server = furnished().await;
    for step in StepName::ALL {
        let remote = remote(step, &server.url());
        let mut asked = order_with(&format!("o-{}", step.as_str()), |request| {
            request.pickup_location.latitude = if step == StepName::Transport { 47.48 } else { PICKUP.latitude };
        });
        asked.trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        let there = execute(&remote, &asked).await;
        assert!(there.is_ok(), "{step:?}: {there:?}");
        assert_eq!(execute(&remote, &asked).await, there, "{step:?} again");
        assert_eq!(execute(&*server.services.of(step), &asked).await, there, "{step:?} in the process");
        let later = order_with(asked.id.as_str(), |request| {
            request.pickup_time = minutes(600);
            request.deadline = minutes(700);
        });
        let changed = remote.change(std::slice::from_ref(&later)).await.remove(0).unwrap();
        if let Output::Reservation(moved) = changed {
            assert!(moved.pickup_at >= later.request.pickup_time);
            assert_eq!(server.services.drone.reservation(&later.id).await.unwrap(), Some(moved));
        }
        for _ in 0..2 {
            cancel(&remote, &asked).await.unwrap();
        }
        if step != StepName::Account {
            assert_eq!(code(execute(&remote, &asked).await), ReasonCode::AlreadyCancelled, "{step:?}");
            let never = order(&format!("never-{}", step.as_str()));
            cancel(&remote, &never).await.unwrap();
            assert_eq!(code(execute(&remote, &never).await), ReasonCode::AlreadyCancelled, "{step:?}");
        }
    }
}

#[actix_web::test]
async fn refusals_keep_their_codes() {
    let server = furnished().await;
    server.services.account.put(&[("slow-payer".into(), account(AccountStatus::Suspended))]).await.unwrap();
    let cases: [(StepName, Order, ReasonCode); 5] = [
        (StepName::Account, order_with("a", |r| r.owner_id = "nobody".into()), ReasonCode::AccountUnknown),
        (StepName::Account, order_with("b", |r| r.owner_id = "slow-payer".into()), ReasonCode::AccountSuspended),
        (StepName::Package, order_with("c", |r| r.package_info.weight = 99.0), ReasonCode::PackageTooHeavy),
        (StepName::Transport, order_with("d", |r| r.pickup_location.latitude = 10.0), ReasonCode::OutOfArea),
        (StepName::Drone, order_with("e", |r| r.package_info.weight = 9.0), ReasonCode::NoDroneBeforeDeadline),
    ];
    for (step, order, expected) in cases {
        assert_eq!(code(execute(&remote(step, &server.url()), &order).await), expected);
    }
    // Many at once are answered in their order.
    let orders: Vec<Order> = (0..100)
        .map(|n| order_with(&format!("m-{n}"), |r| r.package_info.weight = if n % 3 == 0 { 99.0 } else { 1.0 }))
        .collect();
    let answers = remote(StepName::Package, &server.url()).execute(&orders).await;
    assert!(answers.iter().enumerate().all(|(n, answer)| answer.is_ok() == (n % 3 != 0)));
}

/// A service that answers everything with one status.
fn always(status: u16) -> String {
    let answer = move || async move {
        HttpResponse::build(actix_web::http::StatusCode::from_u16(status).unwrap()).body("not a problem document")
    };
    let server = HttpServer::new(move || App::new().default_service(web::to(answer))).workers(1).disable_signals();
    let server = server.bind("127.0.0.1:0").unwrap();
    let address = server.addrs()[0];
    actix_web::rt::spawn(server.run());
    format!("http://{address}")
}

#[actix_web::test]
async fn what_may_pass_is_transient_and_what_may_not_is_not() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut addresses = vec![format!("http://{nobody}")];
    addresses.extend([500, 502, 503, 429, 408].map(always));
    for address in addresses {
        for step in StepName::ALL {
            let answer = execute(&remote(step, &address), &order("a")).await;
            assert!(matches!(answer, Err(StepError::Transient(_))), "{step:?} {answer:?}");
        }
        assert!(matches!(cancel(&remote(StepName::Drone, &address), &order("a")).await, Err(StepError::Transient(_))));
    }
    for (status, expected) in [(400, ReasonCode::ServiceRefused), (409, ReasonCode::AlreadyCancelled)] {
        assert_eq!(code(execute(&remote(StepName::Delivery, &always(status)), &order("a")).await), expected);
    }
    assert_eq!(cancel(&remote(StepName::Delivery, &always(404)), &order("a")).await, Ok(()));
}

#[actix_web::test]
async fn an_answer_that_does_not_come_is_transient() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings::builtin().unwrap().agents.get(StepName::Drone).clone();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let remote = Remote::new(StepName::Drone, &Agent { url, timeout: Duration::from_millis(100), ..settings });
    let answer = execute(&remote, &order("a")).await;
    assert!(matches!(answer, Err(StepError::Transient(_))), "{answer:?}");
}
