//! From flags to a client. I/O.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::Cli;
use super::cluster::{Cluster, Error};

/// Somebody waits at a terminal: a server that says nothing for so long is down.
const DEADLINE: Duration = Duration::from_secs(15);

/// The cluster that the flags name.
pub(super) async fn cluster(cli: &Cli) -> Result<Cluster, Error> {
    let options = KubeConfigOptions { context: cli.context.clone(), ..KubeConfigOptions::default() };
    let wrong = |error: &dyn std::error::Error| Error::Config(crate::text::chain(error));
    let mut config = match &cli.kubeconfig {
        Some(file) => {
            let file = Kubeconfig::read_from(file).map_err(|error| wrong(&error))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| wrong(&error))?
        }
        None if cli.context.is_some() => Config::from_kubeconfig(&options).await.map_err(|error| wrong(&error))?,
        None => Config::infer().await.map_err(|error| wrong(&error))?,
    };
    config.connect_timeout = Some(DEADLINE);
    config.read_timeout = Some(DEADLINE);
    // A person sees an error at once and asks again.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let server = server(cli, &config);
    let client = Client::try_from(config).map_err(|error| wrong(&error))?;
    let namespace = match (cli.all_namespaces, &cli.namespace) {
        (true, _) => None,
        (false, Some(named)) => Some(named.clone()),
        (false, None) => Some(namespace),
    };
    Ok(Cluster { client, namespace, operator: cli.operator_namespace.clone(), clock: jiff::Timestamp::now, server })
}

/// `https://10.0.0.1:6443, context prod`: what a person needs who waits in vain.
fn server(cli: &Cli, config: &Config) -> String {
    let current = || {
        let file = match &cli.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        file.ok().and_then(|file| file.current_context)
    };
    let context = cli.context.clone().or_else(current).map(|context| format!(", context {context}"));
    format!("{}{}", config.cluster_url, context.unwrap_or_default())
}
