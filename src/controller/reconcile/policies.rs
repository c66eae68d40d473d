//! The policies of the cluster, by a watch that cannot go deaf unnoticed.
//!
//! Flows in: listings and events. Flows out: the policies as they were last heard of. A watch that says nothing looks the same
//! whether nothing happens or the API server behind a load balancer is gone, and a request that is never answered looks like
//! one that takes its time: after a while of silence everything is listed anew, on a new request.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Api;
use kube::runtime::reflector::{self, Store, store::Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::api::policy::GpuMemoryPolicy;

/// Silence after which everything is listed anew. The API server ends a watch after 5 to 10 minutes by itself.
const QUIET: Duration = Duration::from_mins(4);
/// Nothing heard for longer than this, listings included, shows us policies of long ago.
const BLIND: Duration = Duration::from_mins(10);

/// See the module.
pub struct Policies {
    api: Api<GpuMemoryPolicy>,
    store: Store<GpuMemoryPolicy>,
    writer: Writer<GpuMemoryPolicy>,
    events: BoxStream<'static, watcher::Result<watcher::Event<GpuMemoryPolicy>>>,
    quiet: Duration,
    /// When the server last said something.
    heard: Instant,
    /// When it last said something, even if that was a failure, or was asked anew.
    asked: Instant,
}

impl Policies {
    /// Begins to listen.
    pub fn new(client: kube::Client) -> Self {
        Self::anew_after(QUIET, client)
    }

    /// Listens, and lists everything anew after so much silence.
    pub fn anew_after(quiet: Duration, client: kube::Client) -> Self {
        let (api, now) = (Api::all(client), Instant::now());
        let (store, writer) = reflector::store();
        Self { events: listen(&api), api, store, writer, quiet, heard: now, asked: now }
    }

    /// The policies as they were last heard of.
    pub fn state(&self) -> Vec<Arc<GpuMemoryPolicy>> {
        self.store.state()
    }

    /// Whether nothing was heard for so long that they may be others by now.
    pub fn is_blind(&self) -> bool {
        self.heard.elapsed() >= BLIND
    }

    /// Waits until the server says something, or has said nothing for too long. True where there is news. Nothing is lost
    /// where this is given up half way.
    pub async fn changed(&mut self) -> bool {
        let event = tokio::time::timeout_at(self.asked + self.quiet, self.events.next()).await;
        self.asked = Instant::now();
        match event {
            Ok(Some(Ok(event))) => {
                self.heard = self.asked;
                self.writer.apply_watcher_event(&event);
                return true;
            }
            // The watcher waits and begins anew by itself.
            Ok(Some(Err(error))) => warn!(%error, "watch of policies failed, trying again"),
            Ok(None) | Err(_) => {
                debug!("nothing heard of policies for a while, listing them anew");
                self.events = listen(&self.api);
            }
        }
        false
    }
}

fn listen(api: &Api<GpuMemoryPolicy>) -> BoxStream<'static, watcher::Result<watcher::Event<GpuMemoryPolicy>>> {
    watcher(api.clone(), watcher::Config::default()).default_backoff().boxed()
}
