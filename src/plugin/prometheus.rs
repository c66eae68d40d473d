//! Asks a Prometheus for a recording. Flows in: its address and a span of time. Flows out: the text of its answer.
//!
//! Plain HTTP, as one has it with `kubectl port-forward`; what needs TLS or a password is fetched with the caller's own
//! tools into a file.

use std::time::Duration;

use gpumem_engine::replay::prometheus::QUERY;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A large query of days takes Prometheus a while; its own limit is two minutes.
const DEADLINE: Duration = Duration::from_secs(150);
/// A thousand containers over six hours at 15 s are 100 MiB of JSON.
const MAX_BODY: usize = 512 << 20;
/// Prometheus refuses a range query with more points than this in a series.
const MAX_POINTS: f64 = 11_000.0;

/// A span of time, Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// Seconds between two points.
    pub step: f64,
}

impl Span {
    /// The last `long` until `now`, a point every `step` or as many as one query may have.
    pub fn until(now: f64, long: Duration, step: Duration) -> Self {
        let long = long.as_secs_f64();
        Self { start: now - long, end: now, step: step.as_secs_f64().max((long / MAX_POINTS).ceil()).max(1.0) }
    }
}

/// The path and query that are asked of a Prometheus at `base`, whose path is kept.
pub fn request(base: &Uri, span: Span) -> String {
    let query: String = QUERY.bytes().map(encoded).collect();
    let Span { start, end, step } = span;
    let path = base.path().trim_end_matches('/').trim_end_matches("/api/v1/query_range").trim_end_matches('/');
    format!("{path}/api/v1/query_range?start={start:.0}&end={end:.0}&step={step:.0}&query={query}")
}

fn encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// The answer's text, or a sentence on what went wrong and what to do.
pub async fn fetch(url: &str, span: Span) -> Result<String, String> {
    let base: Uri = url.parse().map_err(|error| format!("not an address: {error}; write http://localhost:9090"))?;
    if base.scheme_str() != Some("http") {
        return Err(format!(
            "only plain http is asked; fetch it yourself and give the file:\n   curl -sG {} --data-urlencode 'query={QUERY}' \
             -d start={:.0} -d end={:.0} -d step={:.0} > recording.json",
            url.trim_end_matches('/').to_owned() + "/api/v1/query_range",
            span.start,
            span.end,
            span.step
        ));
    }
    let host = base.host().ok_or("the address names no host; write http://localhost:9090")?.to_owned();
    let port = base.port_u16().unwrap_or(80);
    let asked = async {
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| {
            format!("{error}; is it forwarded (kubectl port-forward -n monitoring svc/prometheus-operated 9090)?")
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| format!("no HTTP: {error}"))?;
        let request = Request::get(request(&base, span))
            .header(HOST, format!("{host}:{port}"))
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| format!("not an address: {error}"))?;
        let (answer, _) = tokio::join!(
            async {
                let answer = sender.send_request(request).await.map_err(|error| format!("no answer: {error}"))?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
                // Ends the connection, and with it the other half of this join.
                drop(sender);
                let body = body.map_err(|error| format!("the answer broke off: {error}; ask for less with --since"))?;
                Ok::<_, String>((status, body.to_bytes()))
            },
            connection
        );
        answer
    };
    let (status, body): (StatusCode, Bytes) =
        tokio::time::timeout(DEADLINE, asked).await.map_err(|_| format!("no whole answer within {DEADLINE:?}"))??;
    let text = String::from_utf8_lossy(&body).into_owned();
    // Errors of the query come as JSON with status 400 or 422, and say more than the status.
    if status.is_success() || text.trim_start().starts_with('{') {
        Ok(text)
    } else {
        Err(format!("it answered {status}; is it a Prometheus, and is the path right?"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_asks_for_everything_and_for_no_more_points_than_are_allowed() {
        let span = Span::until(1_000_000.0, Duration::from_hours(24 * 7), Duration::from_secs(15));
        assert_eq!(span.step, 55.0);
        let asked = request(&"http://h:9090/prom/".parse().expect("an address"), span);
        assert!(
            asked.starts_with("/prom/api/v1/query_range?start=395200&end=1000000&step=55&query=%7B__name__"),
            "{asked}"
        );
        assert!(!asked.contains(['{', '"', '|', '~', ' ']) || asked.contains("%7C"), "{asked}");
    }
}
