//! Who is told: a small HTTP server that takes what Alertmanager sends, to webhooks and to Slack alike.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use serde_json::Value;

/// One message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Path of the POST: which receiver.
    pub path: String,
    /// Its body; `Null` where it is no JSON.
    pub body: Value,
}

/// One alert of a webhook's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// `firing` or `resolved`.
    pub status: String,
    /// Name of the alert.
    pub alert: String,
    /// Label `workload`.
    pub workload: String,
}

/// Takes messages for as long as the test runs.
#[derive(Clone)]
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
    messages: Arc<Mutex<Vec<Message>>>,
}

impl Receiver {
    /// Listens on loopback.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let receiver = Self { address: listener.local_addr()?, messages: Arc::default() };
        let messages = Arc::clone(&receiver.messages);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Ok(message) = take(stream) {
                    messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
                }
            }
        });
        Ok(receiver)
    }

    /// Every message whose text names `word`, oldest first.
    pub fn naming(&self, word: &str) -> Vec<Message> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.iter().filter(|message| message.body.to_string().contains(word)).cloned().collect()
    }
}

impl Message {
    /// The alerts in a webhook's message; none in one for Slack.
    pub fn told(&self) -> Vec<Told> {
        let alerts = self.body["alerts"].as_array().map_or(&[][..], Vec::as_slice);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        alerts
            .iter()
            .map(|alert| Told {
                status: word(&alert["status"]),
                alert: word(&alert["labels"]["alertname"]),
                workload: word(&alert["labels"]["workload"]),
            })
            .collect()
    }
}

fn take(stream: TcpStream) -> Result<Message> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Message { path, body: serde_json::from_slice(&body).unwrap_or_default() })
}
