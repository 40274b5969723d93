//! Callers that are slow, endless, huge, many or do not speak HTTP, beside others that keep being served.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::checker::check;
use super::load::{Load, Style};
use super::program::Program;
use super::{rounds, turn};
use crate::support::http::read_response;

const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

fn head(length: &str) -> String {
    format!("POST /api/deliveryrequests HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n")
}

/// The status of the answer, or none when the connection was closed without one.
async fn answer(connection: TcpStream) -> Option<u16> {
    let mut connection = BufReader::new(connection);
    let answer = tokio::time::timeout(PATIENCE, read_response(&mut connection)).await;
    answer.expect("an answer or an end").ok().map(|answer| answer.status)
}

/// Sends a piece again and again until the other side has enough, and says what it answered.
async fn send_for_ever(port: u16, head: String, piece: Vec<u8>, pause: Duration) -> Option<u16> {
    let (mut reading, mut writing) = connect(port).await.into_split();
    let sending = tokio::spawn(async move {
        writing.write_all(head.as_bytes()).await?;
        loop {
            writing.write_all(&piece).await?;
            tokio::time::sleep(pause).await;
        }
        #[expect(unreachable_code, reason = "it names the type of the errors")]
        std::io::Result::Ok(())
    });
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, reading.read_buf(&mut answer)).await.expect("it is not held for ever");
    sending.abort();
    read.ok()?;
    String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|status| status.parse().ok())
}

async fn slow_and_endless(port: u16) {
    let second = Duration::from_secs(1);
    let slow = send_for_ever(port, head("content-length: 1000"), b" ".to_vec(), second);
    let chunk = format!("3e8\r\n{}\r\n", " ".repeat(1000)).into_bytes();
    let endless = send_for_ever(port, head("transfer-encoding: chunked"), chunk, Duration::ZERO);
    let slow_head = send_for_ever(port, "POST / HTTP/1.1\r\n".into(), b"x: y\r\n".to_vec(), second);
    let (slow, endless, slow_head) = tokio::join!(slow, endless, slow_head);
    assert_eq!((slow, endless), (Some(408), Some(413)));
    assert!(matches!(slow_head, None | Some(408)), "{slow_head:?}");
}

async fn huge(port: u16) {
    let mut connection = connect(port).await;
    let size = 10_000_000;
    connection.write_all(head(&format!("content-length: {size}")).as_bytes()).await.unwrap();
    // It is refused before it is all sent.
    let (reading, mut writing) = connection.into_split();
    let sending = tokio::spawn(async move { writing.write_all(&vec![b' '; size]).await });
    let mut text = Vec::new();
    let mut reading = BufReader::new(reading);
    tokio::time::timeout(PATIENCE, reading.read_buf(&mut text)).await.expect("an answer").unwrap();
    assert!(text.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&text));
    sending.abort();
}

async fn garbage(port: u16) {
    for _ in 0..20 {
        let mut connection = connect(port).await;
        let bytes: Vec<u8> = (0..2000).map(|_| rand::random()).collect();
        // It may be told off before it has said it all.
        let _ = connection.write_all(&bytes).await;
        let _ = connection.shutdown().await;
        assert!(matches!(answer(connection).await, None | Some(400..500)));
    }
}

/// As many as half of the files that this process may open, at most ten thousand.
fn many() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limit: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX);
    (limit / 2).min(10_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_keep_being_served() {
    let _turn = turn().await;
    let mut program = Program::embedded("");
    program.start().await;
    program.furnish().await;
    let port = program.port;
    let load = Load::start(&[port], Style::default());
    for _ in 0..rounds(1) {
        tokio::join!(slow_and_endless(port), huge(port), garbage(port));
        load.wait_for_more(50).await;
        let mut idle = Vec::new();
        for _ in 0..many() {
            idle.push(connect(port).await);
        }
        load.wait_for_more(200).await;
        eprintln!("{} idle connections", idle.len());
    }
    let book = load.finish().await;
    let counts = check("hostile callers", port, book, 250).await;
    assert!(counts.all_answered(), "others noticed: {counts}");
}
