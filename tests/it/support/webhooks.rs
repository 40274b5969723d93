//! A server that takes webhooks.

use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What came: head and body of each, in lower case the one and as it is the other.
pub type Letters = Arc<Mutex<Vec<(String, String)>>>;

/// Speaks just enough HTTP. The first call gets a 500.
pub async fn webhook_server() -> (u16, Letters) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, got) = (listener.local_addr().unwrap().port(), Letters::default());
    let letters = got.clone();
    tokio::spawn(async move {
        let mut calls = 0;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            // A caller that dies in the middle of its call has not told anything.
            let Ok(letter) = read(&mut stream).await else { continue };
            calls += 1;
            let status = if calls == 1 { "500 Broken" } else { "204 No Content" };
            if calls > 1 {
                letters.lock().unwrap().push(letter);
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.get_mut().write_all(answer.as_bytes()).await;
        }
    });
    (port, got)
}

async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    Ok((head, String::from_utf8(body).unwrap()))
}
