//! Owners hear of the end of their deliveries: by a signed webhook and by mail, from servers that fail at first.

use std::sync::Arc;

use actix::Actor;
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::notice::{Notice, publish};
use drone_delivery::actors::notifier::{Notifier, Parts};
use drone_delivery::alerts::Alerts;
use drone_delivery::config::Settings;
use drone_delivery::domain::time::now;
use drone_delivery::domain::{DeliveryId, Status};
use drone_delivery::services::Local;
use drone_delivery::store::Txn;
use drone_delivery::stream::Queue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::{DEMO, PATIENCE, request, schedule, until_status};
use crate::conformance::embedded::Embedded;
use crate::conformance::state::StateFixture;
use crate::conformance::{StreamFixture, until};
use crate::faults::program::Program;
use crate::services::Told;
use crate::support::webhooks::{Letters, webhook_server};

/// A server that speaks just enough SMTP to take mail: envelope and text of each.
async fn mail_server() -> (u16, Letters) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, got) = (listener.local_addr().unwrap().port(), Letters::default());
    let letters = got.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let letters = letters.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut to, mut line) = (String::new(), String::new());
                stream.get_mut().write_all(b"220 test\r\n").await.unwrap();
                while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                    let command = line.trim_end().to_owned();
                    line.clear();
                    let answer =
                        match command.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase().as_str() {
                            "DATA" => {
                                stream.get_mut().write_all(b"354 go on\r\n").await.unwrap();
                                let mut text = String::new();
                                while !text.ends_with("\r\n.\r\n") && stream.read_line(&mut text).await.unwrap() > 0 {}
                                letters.lock().unwrap().push((to.clone(), text));
                                "250 taken\r\n"
                            }
                            "RCPT" => {
                                to = command;
                                "250 ok\r\n"
                            }
                            "QUIT" => "221 bye\r\n",
                            _ => "250 ok\r\n",
                        };
                    if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, got)
}

async fn wait_for(letters: &Letters, fits: impl Fn(&(String, String)) -> bool) -> (String, String) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = letters.lock().unwrap().iter().find(|l| fits(l)) {
            return found.clone();
        }
        assert!(std::time::Instant::now() < deadline, "not among {:?}", letters.lock().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_webhook_and_by_mail() {
    let ((hook, hooked), (smtp, mailed)) = (webhook_server().await, mail_server().await);
    let settings = format!(
        "{DEMO}[notifications]\nwebhook_secret = \"s3cret\"\nsmtp_url = \"smtp://127.0.0.1:{smtp}\"\nbackoff_ms = 20\n"
    );
    let mut program = Program::embedded(&settings);
    program.start().await;
    let mut client = program.client();
    let account = json!({
        "status": "Suspended", "email": "owner@example.com", "webhook": format!("http://127.0.0.1:{hook}/told")
    });
    let put = client.call("PUT", "/api/accounts/teller", &[], Some(&account.to_string())).await.unwrap();
    assert!(put.status < 300, "{}", put.json());
    schedule(&mut client, "n-1", &request("teller")).await;
    until_status(&mut client, "n-1", "Failed").await;

    let (head, body) = wait_for(&hooked, |(_, body)| body.contains("n-1")).await;
    let notice: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&notice["status"], &notice["ownerId"]), (&json!("Failed"), &json!("teller")));
    assert!(notice["reason"].as_str().unwrap().starts_with("AccountSuspended"));
    assert!(head.contains("x-notification-id: n-1-failed"), "{head}");
    assert!(head.contains("x-signature: sha256="), "{head}");

    let (to, mail) = wait_for(&mailed, |(_, mail)| mail.contains("n-1")).await;
    assert!(to.contains("owner@example.com"), "{to}");
    assert!(mail.contains("Subject: Delivery n-1 is Failed"), "{mail}");
}

/// Whom to tell of the first cannot be read: nobody is told of it, and the notice does not stay in the way of others.
#[actix_web::test]
async fn a_damaged_account_holds_up_no_notices() {
    let engine = Embedded::start();
    let (state, queues) = (engine.state(), engine.queues());
    state.commit(vec![Txn::new().put("account/contoso", "no account")]).await.unwrap();
    let settings = Settings::builtin().unwrap();
    let notice = Notice {
        delivery_id: DeliveryId::generate(),
        owner_id: "contoso".into(),
        status: Status::Failed,
        at: now(),
        reason: None,
    };
    publish(&*queues, vec![notice]).await;
    assert_eq!(queues.depth(Queue::Notifications).await.unwrap(), 1);
    let local = Local::new(&state, Arc::new(Told::default()), &settings).unwrap();
    let parts =
        Parts { queues: queues.clone(), local, settings: settings.notifications.clone(), alerts: Alerts::default() };
    Notifier::new(parts, Lifeline::unwatched()).start();
    until("it is settled", || async { matches!(queues.depth(Queue::Notifications).await, Ok(0)) }).await;
}
