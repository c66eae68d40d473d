//! The way to the API server, for what the agent watches.

use std::time::Duration;

use kube::{Client, Config};
use tracing::warn;

/// A first connection to the API is tried again after this long.
const RETRY: Duration = Duration::from_secs(15);
/// No connection is opened for longer.
const CONNECT: Duration = Duration::from_secs(15);
/// A watch that was silent for so long is begun anew. The server ends each after 290 s, as it is asked to; one that a broken
/// network took away ends for nobody, and new pods would have no name for as long as the agent runs.
const SILENCE: Duration = Duration::from_mins(5);

/// A client of the cluster the agent runs in; waits for ever where there is none, as the agent works without.
pub async fn of_the_cluster() -> Client {
    let mut told = false;
    loop {
        match connect().await {
            Ok(client) => return client,
            Err(error) if !std::mem::replace(&mut told, true) => {
                warn!(
                    error = &*error as &dyn std::error::Error,
                    "no Kubernetes API; containers are counted by their ids"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn connect() -> Result<Client, Box<dyn std::error::Error>> {
    Ok(Client::try_from(bounded(Config::infer().await?, SILENCE))?)
}

fn bounded(mut config: Config, silence: Duration) -> Config {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(silence);
    config
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use futures::TryStreamExt as _;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::runtime::watcher::{self, watcher};

    use super::*;

    /// Lists no pods, and says nothing to whoever watches.
    fn lists_and_falls_silent(listener: &TcpListener) {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut asked = vec![0; 4096];
            let size = stream.read(&mut asked).unwrap();
            if !String::from_utf8_lossy(&asked[..size]).contains("watch=true") {
                let body = r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}"#;
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
            open.push(stream);
        }
    }

    #[tokio::test]
    async fn a_watch_that_falls_silent_fails_so_that_it_is_begun_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        std::thread::spawn(move || lists_and_falls_silent(&listener));
        let mut config = bounded(Config::new(url), Duration::from_millis(50));
        config.default_retry = false;
        let pods: Api<Pod> = Api::all(Client::try_from(config).unwrap());
        let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()));
        assert!(matches!(events.try_next().await, Ok(Some(watcher::Event::Init))));
        assert!(matches!(events.try_next().await, Ok(Some(watcher::Event::InitDone))));
        let ended = events.try_next().await.unwrap_err();
        assert!(matches!(ended, watcher::Error::WatchStartFailed(_) | watcher::Error::WatchFailed(_)), "{ended:?}");
    }
}
