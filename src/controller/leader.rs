//! Who leads: one Lease in the operator's namespace, kept as client-go keeps it.
//!
//! Flows in: the Lease. Flows out: [`Leadership`]. Two rules make it safe. Others' claims are timed on our own monotonic
//! clock from when we saw them change, so a wrong wall clock neither steals nor keeps a lease. And our own claim ends, here,
//! before it may end for others: when a renewal has not succeeded for [`Terms::renew_within`], we lead no more, whether the
//! API answers or not. (kube-lease-manager, the helper crate for kube 5, does neither: it compares wall clocks, and goes on
//! saying "leader" while the API is away.) The fence of an action is its recorded intent, not this.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::text::chain;

/// Whether this replica leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// True while this replica holds the Lease for certain.
    pub is_leader: bool,
    /// Our holder identity in the Lease and in intents.
    pub identity: String,
    /// Since when this state holds.
    pub since: Instant,
}

impl Leadership {
    /// Not leading.
    pub fn follower(identity: impl Into<String>, since: Instant) -> Self {
        Self { is_leader: false, identity: identity.into(), since }
    }
}

/// Times of the Lease: `retry < renew_within < duration`.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Others take over when they saw no renewal for this long.
    pub duration: Duration,
    /// We stop leading when no renewal succeeded for this long.
    pub renew_within: Duration,
    /// Between two looks at the Lease; also the deadline of one.
    pub retry: Duration,
}

impl Default for Terms {
    /// client-go's own: a dead leader is replaced within 15 to 17 s.
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), renew_within: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// Why the Lease could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API refused or did not answer.
    #[error("the Lease could not be {verb}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The API did not answer in time.
    #[error("the API did not answer in time")]
    Deadline,
}

/// What we saw of the Lease, and when it last changed.
struct Sighting {
    spec: Option<LeaseSpec>,
    since: Instant,
}

/// A candidate for the Lease.
pub struct Candidate {
    /// Leases of the operator's namespace. Its client must not retry by itself.
    pub leases: Api<Lease>,
    /// Name of the Lease.
    pub name: String,
    /// Who we are.
    pub identity: String,
    /// Times.
    pub terms: Terms,
}

/// Takes part in the election until `leadership` has no receiver or `shutdown` resolves; then lets go of the Lease, so that
/// another takes over at once.
pub async fn run(candidate: Candidate, leadership: watch::Sender<Leadership>, shutdown: impl Future<Output = ()>) {
    let Candidate { identity, terms, .. } = &candidate;
    let mut sighting: Option<Sighting> = None;
    let mut renewed: Option<Instant> = None;
    tokio::pin!(shutdown);
    loop {
        let asked = Instant::now();
        let look = tokio::time::timeout(terms.retry, candidate.look(&mut sighting, asked));
        let outcome = tokio::select! {
            outcome = look => outcome.unwrap_or(Err(Error::Deadline)),
            () = &mut shutdown => break,
        };
        match outcome {
            // Our term counts from before the request: the others' does from after it.
            Ok(true) => renewed = Some(asked),
            Ok(false) => renewed = None,
            Err(error) => warn!(error = chain(&error), "leader election"),
        }
        let ends = renewed.map(|renewed| renewed + terms.renew_within);
        publish(&leadership, identity, ends.is_some_and(|ends| Instant::now() < ends));
        let next = asked + terms.retry;
        // Wake up in time to stop leading even if the next look hangs.
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {}
            () = leadership.closed() => break,
            () = &mut shutdown => break,
        }
        if ends.is_some_and(|ends| Instant::now() + terms.retry > ends) {
            // The coming look may take all of `retry`: whoever leads by then must have renewed before.
            publish(&leadership, identity, false);
        }
    }
    let held = leadership.borrow().is_leader;
    publish(&leadership, identity, false);
    if held {
        let _ = tokio::time::timeout(terms.retry, candidate.let_go()).await;
    }
}

fn publish(leadership: &watch::Sender<Leadership>, identity: &str, is_leader: bool) {
    leadership.send_if_modified(|known| {
        let changed = known.is_leader != is_leader;
        if changed {
            info!(identity, is_leader, "leadership changed");
            known.is_leader = is_leader;
            known.since = Instant::now();
        }
        changed
    });
}

impl Candidate {
    /// Renews, takes or leaves the Lease; true when we hold it now.
    async fn look(&self, sighting: &mut Option<Sighting>, now: Instant) -> Result<bool, Error> {
        let found = self.leases.get_opt(&self.name).await.map_err(|source| failed("read", source))?;
        let Some(lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(self.claim(None)),
            };
            return won(self.leases.create(&PostParams::default(), &lease).await, "created");
        };
        let changed = sighting.as_ref().is_none_or(|seen| seen.spec != lease.spec);
        if changed {
            *sighting = Some(Sighting { spec: lease.spec.clone(), since: now });
        }
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let since = sighting.as_ref().map_or(now, |seen| seen.since);
        let may_take = holder.is_empty() || holder == self.identity || now.duration_since(since) >= self.terms.duration;
        if !may_take {
            return Ok(false);
        }
        // With the resource version read above: whoever was faster makes this a conflict.
        let lease = Lease { spec: Some(self.claim(Some(spec))), ..lease };
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await, "taken")
    }

    fn claim(&self, before: Option<LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let before = before.unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.terms.duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: if ours { before.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!ours)),
            ..before
        }
    }

    async fn let_go(&self) -> Result<(), Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await.map_err(|source| failed("read", source))? else {
            return Ok(());
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        let free = LeaseSpec { holder_identity: None, ..spec };
        let lease = Lease { spec: Some(free), ..lease };
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await, "given up").map(drop)
    }
}

/// A conflict means that somebody else was faster.
fn won(outcome: Result<Lease, kube::Error>, verb: &'static str) -> Result<bool, Error> {
    match outcome {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(source) => Err(failed(verb, source)),
    }
}

fn failed(verb: &'static str, source: kube::Error) -> Error {
    Error::Api { verb, source: Box::new(source) }
}
