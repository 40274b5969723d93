//! A small HTTP/1.1 client over one kept connection. It says what a real client would know: the answer, or that there
//! was none, in which case nobody knows what became of the call.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long a call may take. Longer than anything the program promises to answer within.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

pub struct Client {
    port: u16,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    pub fn new(port: u16) -> Self {
        Self { port, connection: None }
    }

    pub async fn get(&mut self, path: &str) -> Result<Response> {
        self.call("GET", path, &[], None).await
    }

    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).await?),
        };
        let call = async {
            connection.write_all(text_of(method, path, headers, body).as_bytes()).await?;
            read_response(&mut connection).await
        };
        let response = match tokio::time::timeout(PATIENCE, call).await {
            Ok(response) => response?,
            Err(_) => return Err(ErrorKind::TimedOut.into()),
        };
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }
}

fn text_of(method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    match body {
        Some(body) => {
            let length = body.len();
            text + &format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        }
        None => text + "\r\n",
    }
}

/// Reads one answer; the program sends them all with their length.
pub async fn read_response(connection: &mut BufReader<TcpStream>) -> Result<Response> {
    let first = read_line(connection).await?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("not an answer: {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(connection).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut response = Response { status, headers, body: Vec::new() };
    let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    response.body.resize(length, 0);
    connection.read_exact(&mut response.body).await?;
    Ok(response)
}

async fn read_line(connection: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
