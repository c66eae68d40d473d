//! Reads `/metrics` as Prometheus would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// One line of the text format.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Metric name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

impl Sample {
    /// The value of a label, or the empty text.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// `GET http://<host>/metrics`, parsed.
pub async fn metrics(host: &str) -> Result<Vec<Sample>> {
    let body = get(host, "/metrics").await?;
    Ok(body.lines().filter_map(parse).collect())
}

/// `GET http://<host><path>`: the body of a 200.
pub async fn get(host: &str, path: &str) -> Result<String> {
    let (host, path) = (host.to_owned(), path.to_owned());
    tokio::task::spawn_blocking(move || get_blocking(&host, &path)).await?
}

fn get_blocking(host: &str, path: &str) -> Result<String> {
    const DEADLINE: Duration = Duration::from_secs(3);
    let address = host.parse().with_context(|| format!("`{host}` is not an address"))?;
    let mut stream = TcpStream::connect_timeout(&address, DEADLINE).with_context(|| format!("connecting to {host}"))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP header")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{host}{path}: {}", head.lines().next().unwrap_or_default());
    Ok(body.to_owned())
}

fn parse(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        None => (series, BTreeMap::new()),
        Some((name, rest)) => (
            name,
            rest.trim_end_matches('}')
                .split("\",")
                .filter_map(|pair| pair.split_once("=\""))
                .map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()))
                .collect(),
        ),
    };
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}
