//! The ways of asking the API server: they differ in how long they wait for an answer, and in whether they ask again.

use std::time::Duration;

use kube::{Client, Config};

/// No read may hang longer: a round would wait for it, and the whole controller would be started anew for that.
const READ: Duration = Duration::from_secs(20);
/// No API call that acts may hang longer: its decision would be old.
const ACT: Duration = Duration::from_secs(20);
/// No look at the Lease may hang longer than a fraction of its term.
const LEASE: Duration = Duration::from_secs(4);

/// One client for each way of asking.
pub(super) struct Clients {
    /// Reads; asks again where an error may pass.
    pub read: Client,
    /// Watches: silent for as long as nothing happens.
    pub watch: Client,
    /// Acts: asks once.
    pub act: Client,
    /// Looks at the Lease: asks once, and gives up early.
    pub lease: Client,
}

impl Clients {
    /// Of the cluster that this process runs in, or that its environment names.
    pub(super) async fn infer() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let config = Config::infer().await?;
        Ok(Self {
            read: Client::try_from(within(config.clone(), READ))?,
            act: Client::try_from(at_once(config.clone(), ACT))?,
            lease: Client::try_from(at_once(config.clone(), LEASE))?,
            watch: Client::try_from(config)?,
        })
    }
}

/// No answer takes longer.
fn within(mut config: Config, limit: Duration) -> Config {
    config.connect_timeout = Some(limit);
    config.read_timeout = Some(limit);
    config.write_timeout = Some(limit);
    config
}

/// A refused call must surface at once: retried for minutes it would act on an old decision.
fn at_once(config: Config, limit: Duration) -> Config {
    let mut config = within(config, limit);
    config.default_retry = false;
    config
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// Whether a read of a server that takes questions and answers none ends in this time, which is given and not waited for
    /// where it ends before.
    async fn gives_up(limit: Duration, change: impl FnOnce(Config) -> Config) -> bool {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(change(Config::new(url))).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, "ml");
        timeout(limit, pods.get("train-0")).await.is_ok_and(|answer| answer.is_err())
    }

    #[tokio::test]
    async fn a_question_that_is_never_answered_is_given_up_and_only_a_watch_listens_on() {
        let short = Duration::from_millis(20);
        assert!(gives_up(Duration::from_mins(1), |config| within(config, short)).await);
        assert!(gives_up(Duration::from_mins(1), |config| at_once(config, short)).await);
        assert!(!gives_up(10 * short, |config| config).await);
    }
}
