//! One keep-alive connection that speaks as little HTTP/1.1 as a load needs: prepared bytes out, then a status, a
//! length and a body in. No pipelining. What the generator does not spend is left to what it measures.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Larger answers than this are nobody's.
const MOST: usize = 64 * 1024 * 1024;
const FIRST: usize = 16 * 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("no answer in time")]
    TimedOut,
    #[error("the connection failed: {0}")]
    Broken(String),
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Where the body begins and ends.
    body: std::ops::Range<usize>,
}

/// An answer; its body is valid until the next call.
#[derive(Debug)]
pub struct Reply<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

/// Connects when it has to; after a failure the next call begins with a new connection.
pub struct Connection {
    address: SocketAddr,
    timeout: Duration,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Connection {
    #[must_use]
    pub fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { address, timeout, stream: None, buffer: vec![0; FIRST] }
    }

    /// Opens the connection ahead of the first call.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn open(&mut self) -> Result<(), CallError> {
        if self.stream.is_none() {
            let connect = TcpStream::connect(self.address);
            let stream = timeout(self.timeout, connect).await.map_err(|_| CallError::TimedOut)??;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        Ok(())
    }

    /// Sends a whole request and waits for the whole answer.
    ///
    /// # Errors
    /// When there is no answer, or not in time.
    pub async fn call(&mut self, request: &[u8]) -> Result<Reply<'_>, CallError> {
        self.open().await?;
        // Taken out: a call that does not come to its end leaves no half-read connection behind.
        let Some(mut stream) = self.stream.take() else { return Err(CallError::Broken("not open".to_owned())) };
        let exchange = exchange(&mut stream, request, &mut self.buffer);
        let head = timeout(self.timeout, exchange).await.map_err(|_| CallError::TimedOut)??;
        self.stream = Some(stream);
        Ok(Reply { status: head.status, body: &self.buffer[head.body] })
    }
}

async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> Result<Head, CallError> {
    stream.write_all(request).await?;
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            if filled >= MOST {
                return Err(CallError::Broken("an answer without end".to_owned()));
            }
            buffer.resize(filled * 2, 0);
        }
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Err(CallError::Broken("closed before the answer".to_owned()));
        }
        filled += read;
        if let Some(head) = parse(&buffer[..filled])?
            && head.body.end <= filled
        {
            return Ok(head);
        }
    }
}

/// The head, once it is all there.
fn parse(bytes: &[u8]) -> Result<Option<Head>, CallError> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let strange = || CallError::Broken("an answer that is not understood".to_owned());
    let mut lines = bytes[..end].split(|b| *b == b'\n');
    let status = lines.next().and_then(|line| number(line.strip_prefix(b"HTTP/1.1 ")?.get(..3)?));
    let status = status.and_then(|status| u16::try_from(status).ok()).ok_or_else(strange)?;
    let length = lines.find_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let is_length = line[..colon].eq_ignore_ascii_case(b"content-length");
        is_length.then(|| number(line[colon + 1..].trim_ascii()))
    });
    let length = match length {
        Some(length) => length.ok_or_else(strange)?,
        None if status == 204 => 0,
        None => return Err(strange()),
    };
    Ok(Some(Head { status, body: end + 4..end + 4 + length }))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The bytes of a request with a body.
#[must_use]
pub fn request(method: &str, path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// How many requests of a batch the answer says were accepted.
#[must_use]
pub fn accepted_of(body: &[u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\"accepted\":";
    let digits = &body[memchr::memmem::find(body, FIELD)? + FIELD.len()..];
    let end = digits.iter().position(|b| !b.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_far_as_it_is_there() {
        let answer = b"HTTP/1.1 202 Accepted\r\nx-request-id: a: b\r\nContent-Length:  5 \r\n\r\nhello";
        let whole = parse(answer).unwrap().unwrap();
        assert_eq!((whole.status, &answer[whole.body.clone()]), (202, b"hello".as_slice()));
        for end in 0..answer.len() {
            let head = parse(&answer[..end]).unwrap();
            assert!(head.is_none_or(|head| head == whole), "{end}");
        }
        let empty = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(parse(empty).unwrap().unwrap().body.len(), 0);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for strange in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 xx\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200\r\ncontent-length: -\r\n\r\n",
        ] {
            assert!(parse(strange.as_bytes()).is_err(), "{strange:?}");
        }
    }

    #[test]
    fn a_batch_says_how_many_it_took() {
        assert_eq!(accepted_of(br#"{"accepted":98,"rejected":2,"results":[]}"#), Some(98));
        assert_eq!(accepted_of(br#"{"title":"no"}"#), None);
    }
}
