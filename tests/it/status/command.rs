//! `drone-delivery watch`, from its loop to its process.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use drone_delivery::cli::watch::{Watch, WatchError, follow};
use drone_delivery::config::StatusFeed;

use super::client::number;
use super::rig::{PATIENCE, Rig, settings};

fn watch(rig: &Rig) -> Watch {
    Watch { url: rig.url("http", "/"), delivery: None, owner: None, since: None }
}

#[actix::test]
async fn it_comes_back_after_the_last_event_and_misses_nothing() {
    // So small a buffer that it lags again and again.
    let rig = Rig::start(&StatusFeed { buffer: 1, ..settings() });
    let (total, next) = (400, AtomicU64::new(0));
    let followed = follow(watch(&rig), |line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        if event["type"] != "Lagged" {
            assert_eq!(number(&event), next.fetch_add(1, Ordering::SeqCst));
        }
        if next.load(Ordering::SeqCst) == total { Err(io::Error::other("enough")) } else { Ok(()) }
    });
    let write = async {
        rig.until_live(1).await;
        while rig.made() < total {
            rig.append(2).await;
        }
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! {
            ended = followed => ended,
            () = write => Ok(()),
        }
    };
    let ended = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert!(matches!(ended, Err(WatchError::Output(error)) if error.to_string() == "enough"));
}

#[actix::test]
async fn the_command_prints_a_line_an_event() {
    let rig = Rig::start(&settings());
    rig.append(20).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_drone-delivery"))
        .args(["watch", "--url", &rig.url("http", ""), "--delivery", "d-7", "--owner", "o-1", "--since", "0-0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(command.stdout.take().unwrap());
    let read = tokio::task::spawn_blocking(move || out.lines().take(2).map(Result::unwrap).collect::<Vec<_>>());
    let lines = tokio::time::timeout(PATIENCE, read).await;
    command.kill().unwrap();
    command.wait().unwrap();
    let numbers: Vec<_> = lines.unwrap().unwrap().iter().map(|l| number(&serde_json::from_str(l).unwrap())).collect();
    assert_eq!(numbers, [7, 17]);
}

#[actix::test]
async fn what_can_never_work_is_told_at_once() {
    let wrong = Command::new(env!("CARGO_BIN_EXE_drone-delivery")).args(["watch", "--since", "now"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("17-3"));
    let rig = Rig::start(&settings());
    let nowhere = Watch { url: rig.url("http", "/elsewhere"), ..watch(&rig) };
    let ended = tokio::time::timeout(PATIENCE, follow(nowhere, |_| Ok(()))).await.unwrap();
    assert!(matches!(ended, Err(WatchError::Refused(status)) if status.as_u16() == 404));
}
