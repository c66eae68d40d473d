//! The fence: an action is recorded by compare-and-swap in the ledger ConfigMap before it is taken, and closed after.
//!
//! Flows in: a decision to act, and the ledger as it was read for that decision. Flows out: a [`RecordedIntent`], the only
//! thing `act::take` takes; only [`record`] makes one. At most one intent is open at any time, of all leaders together:
//! whoever finds one settles it first ([`act::settle`](super::act::settle)). A ledger that cannot be read is never written over, and no intent can
//! be recorded in it.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::Act;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::quantity::{Bytes, counted};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::admin::Limits;
use super::context::Context;
use super::now::{Now, rfc3339};
use crate::api::policy::ActionRecord;

mod done;
mod ledger;
mod outcome;
mod records;
mod words;

pub use done::Done;
pub use ledger::{Ledger, Malformed, State};
pub use outcome::Outcome;
pub use records::{Action, Intent, LedgerDeed, LedgerRequest, Lever, PolicyRef, Untold};

/// A call is not sent later than this after its intent was recorded.
pub const SEND_WITHIN: Duration = Duration::from_secs(15);
/// By now a call that was sent in time has been answered, or never will be: [`SEND_WITHIN`], the client's own 20 s, and
/// what the API server may go on for after the client hung up.
const DEADLINE: Duration = Duration::from_mins(1);
/// Conflicts in a row that are somebody's loop rather than a race.
const WRITE_TRIES: u32 = 5;

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("reading the ledger")]
    Read(#[source] kube::Error),
    /// It could not be written.
    #[error("writing the ledger")]
    Write(#[source] kube::Error),
    /// Somebody else wrote it since it was read.
    #[error("the ledger changed since it was read")]
    Conflict,
    /// Its content is not what we write.
    #[error("the ledger is malformed")]
    Malformed(#[source] Malformed),
    /// Another intent is open.
    #[error("action {id} is not settled yet")]
    Open {
        /// Its id.
        id: String,
    },
    /// It holds as much as it may.
    #[error("the ledger is full: {} still to recover", counted(*deeds, "pod is", "pods are"))]
    Full {
        /// Deeds in it.
        deeds: usize,
    },
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Read(_) => "ledger_read",
            Self::Write(_) => "ledger_write",
            Self::Conflict => "ledger_conflict",
            Self::Malformed(_) => "ledger_malformed",
            Self::Open { .. } => "ledger_open",
            Self::Full { .. } => "ledger_full",
        }
    }
}

/// Proof that an intent stands in the ledger. It is used up by the action it permits.
#[derive(Debug)]
pub struct RecordedIntent {
    intent: Intent,
    policy_generation: i64,
    limits: Limits,
    fresh_until: Stamp,
    send_by: Stamp,
}

impl RecordedIntent {
    /// What was recorded.
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// Generation of the policy that the decision was made under.
    pub fn policy_generation(&self) -> i64 {
        self.policy_generation
    }

    /// The administrator's limits that the decision was made under.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// After this the samples behind the decision are too old.
    pub fn fresh_until(&self) -> Stamp {
        self.fresh_until
    }

    /// After this the call may not be sent any more.
    pub fn send_by(&self) -> Stamp {
        self.send_by
    }

    /// Uses it up.
    pub fn spend(self) -> Intent {
        self.intent
    }
}

/// Reads the ledger. One that does not exist is empty.
pub async fn read(ctx: &Context) -> Result<Ledger, Error> {
    let found = api(ctx).get_opt(&ctx.ledger).await.map_err(Error::Read)?;
    Ok(Ledger::of(found))
}

/// What is to be recorded.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// Policy it is for.
    pub policy: PolicyRef,
    /// Generation of the policy that the decision was made under.
    pub policy_generation: i64,
    /// The decision.
    pub act: &'a Act,
    /// The lever of the workload, where the action needs one.
    pub lever: Option<Lever>,
    /// Memory of the container.
    pub used: Option<Bytes>,
    /// How long it has run.
    pub age: Option<Duration>,
    /// See [`Intent::settle_seconds`].
    pub settle_seconds: u64,
    /// The administrator's limits that the decision was made under.
    pub limits: Limits,
}

/// Records the intent to act, if the ledger is still the one that was read, and nothing in it is open.
pub async fn record(ctx: &Context, ledger: Ledger, order: Order<'_>, now: &Now) -> Result<RecordedIntent, Error> {
    let Order { policy, policy_generation, act, lever, used, age, settle_seconds, limits } = order;
    let created = now.later();
    let intent = Intent {
        id: id(created, act),
        policy,
        workload: (&act.workload).into(),
        namespace: act.pod.namespace.clone(),
        pod: act.pod.name.clone(),
        pod_uid: act.pod.uid.clone(),
        node: act.pod.node.clone(),
        container: act.container.clone(),
        device: act.device.clone(),
        action: Action::of(&act.step),
        lever,
        blast: act.blast,
        used: used.map(|used| used.0),
        age_seconds: age.map(|age| age.as_secs()),
        reason: crate::text::shorten(&act.reason, 300),
        holder: ctx.identity.clone(),
        created: rfc3339(created),
        deadline: rfc3339(created + DEADLINE),
        settle_seconds,
        dry_run: act.dry_run,
    };
    let mut state = ledger.state.clone().map_err(Error::Malformed)?;
    if let Some(open) = state.intents.first() {
        return Err(Error::Open { id: open.id.clone() });
    }
    if state.is_full() {
        return Err(Error::Full { deeds: state.deeds.len() });
    }
    state.intents.push(intent.clone());
    write(ctx, &ledger, &state).await?;
    Ok(RecordedIntent {
        intent,
        policy_generation,
        limits,
        fresh_until: act.fresh_until,
        send_by: created + SEND_WITHIN,
    })
}

/// How an intent is closed.
#[derive(Clone, Debug, PartialEq)]
pub enum Closing {
    /// It changed nothing.
    Nothing,
    /// It took a pod away or changed a workload, or would have; with the record, where that could not be written into the
    /// profile.
    Disrupted {
        /// See [`LedgerDeed::unrecorded`].
        unrecorded: Option<ActionRecord>,
    },
    /// A request for a checkpoint stands.
    Requested,
    /// The request with this id no longer stands.
    TakenBack {
        /// Its id.
        id: String,
    },
    /// The workload goes on again.
    Resumed,
}

/// Closes an intent. One that is no longer there was closed by somebody else, which is as good. `failed` is what the breaker
/// is told of it, if anything; `untold` is what people are to be told.
pub async fn close(
    ctx: &Context,
    untold: &Untold,
    closing: &Closing,
    failed: Option<bool>,
    now: &Now,
) -> Result<(), Error> {
    change(ctx, now, |state| {
        let open = state.intents.iter().position(|open| open.id == untold.intent.id)?;
        let intent = state.intents.remove(open);
        state.to_tell(untold.clone());
        if let Some(failed) = failed.filter(|_| !intent.dry_run) {
            state.breaker.record(now.later(), failed);
        }
        match closing {
            Closing::Nothing => {}
            Closing::Disrupted { unrecorded } => state.deeds.push(LedgerDeed::of(&intent, unrecorded.clone())),
            Closing::Requested => state.requests.extend(LedgerRequest::of(&intent)),
            Closing::TakenBack { id } => state.requests.retain(|request| request.id != *id),
            Closing::Resumed => {
                let same = |deed: &&mut LedgerDeed| deed.workload.uid == intent.workload.uid && deed.is_suspended();
                for deed in state.deeds.iter_mut().filter(same) {
                    deed.lifted = true;
                }
            }
        }
        Some(())
    })
    .await
}

/// Steps the breaker with what the fleet looks like, where that opens it.
pub async fn open_breaker(ctx: &Context, high: u32, watched: u32, now: &Now) -> Result<(), Error> {
    change(ctx, now, |state| {
        let before = state.breaker.open;
        state.breaker.step(now.stamp, high, watched);
        (state.breaker.open != before).then_some(())
    })
    .await
}

/// Drops what people have been told of.
pub async fn told(ctx: &Context, ids: &[String], now: &Now) -> Result<(), Error> {
    change(ctx, now, |state| {
        let before = state.untold.len();
        state.untold.retain(|untold| !ids.contains(&untold.intent.id));
        (state.untold.len() != before).then_some(())
    })
    .await
}

/// Drops requests for a checkpoint that stand for nothing any more: their pod is gone.
pub async fn forget_requests(ctx: &Context, ids: &[String], now: &Now) -> Result<(), Error> {
    change(ctx, now, |state| {
        let before = state.requests.len();
        state.requests.retain(|request| !ids.contains(&request.id));
        (state.requests.len() != before).then_some(())
    })
    .await
}

/// Writes down how deeds stand by now. A deed that is no longer there is left out.
pub async fn update(ctx: &Context, deeds: &[LedgerDeed], now: &Now) -> Result<(), Error> {
    change(ctx, now, |state| {
        let mut changed = None;
        for deed in &mut state.deeds {
            if let Some(newer) = deeds.iter().find(|newer| newer.id == deed.id && *newer != deed) {
                *deed = newer.clone();
                changed = Some(());
            }
        }
        changed
    })
    .await
}

/// Reads, changes and writes the ledger until nobody came between. `None` from `edit` means that nothing is to be done.
async fn change(ctx: &Context, now: &Now, edit: impl Fn(&mut State) -> Option<()>) -> Result<(), Error> {
    for _ in 0..WRITE_TRIES {
        let ledger = read(ctx).await?;
        let mut state = ledger.state.clone().map_err(Error::Malformed)?;
        if edit(&mut state).is_none() {
            return Ok(());
        }
        state.trim(now.later());
        match write(ctx, &ledger, &state).await {
            Err(Error::Conflict) => {}
            other => return other,
        }
    }
    Err(Error::Conflict)
}

/// Writes `state` over the ledger that was read: a PUT with its resourceVersion, or a POST where there was none. Keys that
/// are not ours, `pause` among them, stay as they were read.
async fn write(ctx: &Context, ledger: &Ledger, state: &State) -> Result<(), Error> {
    let mut object = ledger.object.clone().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(ctx.ledger.clone()),
            namespace: Some(ctx.namespace.clone()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    state.store(object.data.get_or_insert_with(BTreeMap::new));
    let api = api(ctx);
    let written = match &ledger.object {
        Some(_) => api.replace(&ctx.ledger, &PostParams::default(), &object).await,
        None => api.create(&PostParams::default(), &object).await,
    };
    match written {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(Error::Conflict),
        Err(error) => Err(Error::Write(error)),
    }
}

/// Through the client without retries: a write that is repeated after its answer was lost would meet its own conflict.
fn api(ctx: &Context) -> Api<ConfigMap> {
    Api::namespaced(ctx.act.clone(), &ctx.namespace)
}

/// Unique without chance: one intent at a time is open, and a pod gets one in any second.
fn id(created: Stamp, act: &Act) -> String {
    let uid: String = act.pod.uid.as_str().chars().take(13).collect();
    format!("{:x}-{uid}", created.0)
}
