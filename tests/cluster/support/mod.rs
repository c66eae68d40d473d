//! A small language for the tests: scenes with leaking and steady workloads, policies, and waiting with a reason.

pub mod embedder;
pub mod gpus;
pub mod leader;
pub mod monitor;
pub mod prometheus;
pub mod receiver;
pub mod scene;
pub mod world;

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Looks until `seen` gives something; says what it waited for, and what there was instead, when it never came.
pub async fn until<T, Looked>(what: &str, limit: Duration, mut seen: impl FnMut() -> Looked) -> Result<T>
where
    Looked: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut last_error = None;
    while start.elapsed() < limit {
        match seen().await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => last_error = None,
            Err(error) => last_error = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    match last_error {
        Some(error) => Err(error.context(format!("waited {} s for: {what}", limit.as_secs()))),
        None => bail!("waited {} s in vain for: {what}", limit.as_secs()),
    }
}

/// Looks for the whole time that `holds` stays true.
pub async fn throughout<Looked>(what: &str, span: Duration, mut holds: impl FnMut() -> Looked) -> Result<()>
where
    Looked: Future<Output = Result<bool>>,
{
    let start = Instant::now();
    while start.elapsed() < span {
        if !holds().await? {
            bail!("after {} s no longer true: {what}", start.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}
