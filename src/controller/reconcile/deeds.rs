//! The life of an action: settle what is open, record the intent, act, write down what came of it.

use std::sync::Arc;
use std::time::Duration;

use gpumem_engine::decision::{Act, Decision, Workload};
use gpumem_engine::pacing::{AdminBudgets, Brake, Deeds, Stamp};
use gpumem_engine::policy::{Disruption, Mode};
use tracing::{info, warn};

use crate::api::convert;
use crate::api::policy::{ActionRecord, GpuMemoryPolicy};
use crate::controller::act::{self, Outcome};
use crate::controller::context::Context;
use crate::controller::intent::{self, Closing, Intent, Ledger, LedgerDeed, PolicyRef, Settled};
use crate::controller::now::{Now, parse_rfc3339, rfc3339};
use crate::controller::observe::{Memory, Observed, key_of};
use crate::controller::profile;
use crate::controller::report::shorten;
use crate::controller::workload::{read_group, read_pod};

/// Calls are at least this far apart, whatever budgets allow: the API server and the scheduler have others to serve.
const BETWEEN_CALLS: Duration = Duration::from_secs(5);
/// Recovering workloads are looked at this often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);

/// An action that ended, or whose end is not known yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// What was recorded before it.
    pub intent: Intent,
    /// What came of it.
    pub outcome: Outcome,
    /// When.
    pub at: Stamp,
}

impl Done {
    /// As status and profile keep it.
    pub fn record(&self) -> ActionRecord {
        let Intent { id, container, device, reason, .. } = &self.intent;
        let message = format!("container {container} on {device}: {reason}; {}", self.outcome.explain());
        ActionRecord {
            id: id.clone(),
            action: self.intent.action.kind(),
            time: rfc3339(self.at),
            pod: self.intent.pod.clone(),
            pod_uid: self.intent.pod_uid.as_str().to_owned(),
            workload: format!("{}/{}", self.intent.workload.kind, self.intent.workload.name),
            outcome: self.outcome.name().to_owned(),
            message: shorten(&message, 500),
            dry_run: self.intent.dry_run,
        }
    }
}

/// Reads the ledger, and settles what an earlier leader or a lost answer left open in it.
pub async fn take_stock(
    ctx: &Context,
    policies: &[Arc<GpuMemoryPolicy>],
    now: &Now,
) -> (Result<Ledger, intent::Error>, Vec<Done>) {
    let mut done = Vec::new();
    let ledger = match intent::read(ctx).await {
        Ok(ledger) => ledger,
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "ledger not read, nothing is done this round");
            return (Err(error), done);
        }
    };
    match intent::settle(ctx, &ledger, now).await {
        Ok(settled) if settled.is_empty() => return (Ok(ledger), done),
        Ok(settled) => {
            for settled in settled {
                let (intent, outcome) = match settled {
                    Settled::Done(intent) => (intent, Outcome::FoundDone),
                    Settled::Abandoned(intent) => (intent, Outcome::Abandoned),
                };
                info!(id = intent.id, outcome = outcome.name(), "settled an action that was left open");
                let disruption = policies
                    .iter()
                    .find(|object| key_of(object) == intent.policy.key())
                    .and_then(|object| convert::policy(key_of(object), &object.spec, Mode::Enforce).ok())
                    .map(|policy| policy.disruption);
                done.push(conclude(ctx, intent, outcome, disruption.as_ref(), now).await);
            }
        }
        Err(error) => warn!(error = &error as &dyn std::error::Error, "open action not settled yet"),
    }
    // What was closed above changed the ledger.
    (intent::read(ctx).await, done)
}

/// Looks after deeds whose workload has still to recover: writes what is missing in its profile, and sees whether it is
/// whole again.
pub async fn look_after(ctx: &Context, memory: &mut Memory, ledger: &Result<Ledger, intent::Error>, now: &Now) {
    let Some(state) = ledger.as_ref().ok().and_then(|ledger| ledger.state.as_ref().ok()) else { return };
    let is_due = |deed: &&LedgerDeed| deed.is_recovering(now.stamp) && !deed.dry_run;
    let recovering: Vec<&LedgerDeed> = state.deeds.iter().filter(is_due).collect();
    let looked = memory.last_recovery_look.is_some_and(|at| now.stamp.since(at) < BETWEEN_LOOKS);
    if looked || recovering.is_empty() {
        return;
    }
    memory.last_recovery_look = Some(now.stamp);
    let mut changed = Vec::new();
    for deed in recovering {
        let seen = look_at(ctx, deed, now).await;
        if seen != *deed {
            changed.push(seen);
        }
    }
    if changed.is_empty() {
        return;
    }
    if let Err(error) = intent::update(ctx, &changed, now).await {
        warn!(error = &error as &dyn std::error::Error, "recovery not noted, trying again");
    }
}

/// How a deed stands now. What cannot be read leaves it as it is.
async fn look_at(ctx: &Context, deed: &LedgerDeed, now: &Now) -> LedgerDeed {
    let mut deed = deed.clone();
    let workload = Workload::from(&deed.workload);
    let group = match read_group(&ctx.read, &deed.namespace, &workload).await {
        Ok(Some(group)) => group,
        Ok(None) => {
            // Nobody is left to recover, nor to be remembered.
            deed.settled = true;
            return deed;
        }
        Err(_) => return deed,
    };
    if let Some(record) = &deed.unrecorded {
        match profile::record(&ctx.act, &deed.namespace, &workload, record, None, now.stamp).await {
            Ok(()) => deed.unrecorded = None,
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "action still not in its workload's profile");
                return deed;
            }
        }
    }
    // A pod that is ending may count as Ready until it is gone.
    let ended = match read_pod(&ctx.read, &deed.namespace, &deed.pod).await {
        Ok(pod) => pod.is_none_or(|pod| pod.pod.uid != deed.pod_uid),
        Err(_) => return deed,
    };
    if !ended || !group.is_whole() {
        deed.whole_since = None;
        return deed;
    }
    let since = deed.whole_since.get_or_insert_with(|| rfc3339(now.stamp));
    let held = parse_rfc3339(since).map_or(Duration::ZERO, |since| now.stamp.since(since));
    deed.settled = held >= Duration::from_secs(deed.settle_seconds);
    deed
}

/// Everything that was done lately, as decisions see it.
pub fn gather(ctx: &Context, ledger: &Result<Ledger, intent::Error>, observed: &[Observed], now: &Now) -> Deeds {
    let (brake, deeds) = match ledger {
        Ok(ledger) => (ledger.brake(), ledger.deeds(now.stamp)),
        Err(error) => (Brake::Unreadable(error.to_string()), Vec::new()),
    };
    let histories =
        observed.iter().flat_map(|one| one.histories.iter().map(|(uid, history)| (uid.clone(), history.clone())));
    Deeds {
        leading_since: now.stamp_of(ctx.leadership.borrow().since),
        brake,
        admin: AdminBudgets::default(),
        deeds,
        histories: histories.collect(),
    }
}

/// Takes the most urgent of all decisions to evict: one a round, so that the next is decided on what this one changed.
pub async fn carry_out(
    ctx: &Context,
    memory: &mut Memory,
    ledger: Result<Ledger, intent::Error>,
    observed: &[Observed],
    decisions: &[Vec<Decision>],
    now: &Now,
) -> Option<Done> {
    let ledger = ledger.ok()?;
    if memory.last_call.is_some_and(|at| now.stamp.since(at) < BETWEEN_CALLS) {
        return None;
    }
    let evictions = observed.iter().zip(decisions).flat_map(|(one, decisions)| {
        decisions.iter().filter_map(move |decision| match decision {
            Decision::Act(evict) => Some((one, evict)),
            Decision::Notify(_) | Decision::Hold { .. } => None,
        })
    });
    let most_urgent = |(_, evict): &(&Observed, &Act)| (evict.expected_in.unwrap_or(Duration::MAX), evict.pod.clone());
    let (one, evict) = evictions.min_by_key(most_urgent)?;
    let policy = one.policy.as_ref().ok()?;
    memory.last_call = Some(now.stamp);
    memory.forget_reads();
    let generation = one.object.metadata.generation.unwrap_or_default();
    let settle = policy.disruption.settle().as_secs();
    let recorded = match intent::record(ctx, ledger, PolicyRef::from(&one.key), generation, evict, settle, now).await {
        Ok(recorded) => recorded,
        Err(error) => {
            warn!(pod = evict.pod.name, error = &error as &dyn std::error::Error, "action not recorded, not taken");
            ctx.metrics.decision_blocked(error.kind());
            return None;
        }
    };
    let (intent, outcome) = act::evict(ctx, recorded, now).await;
    let done = conclude(ctx, intent, outcome, Some(&policy.disruption), now).await;
    ctx.metrics.action(&one.key, "Evict", done.outcome.name(), policy.mode);
    Some(done)
}

/// Writes down what came of an action: in the workload's profile, then in the ledger. A crash in between leaves the intent
/// open, and whoever settles it writes both again; the profile knows the id already.
async fn conclude(ctx: &Context, intent: Intent, outcome: Outcome, disruption: Option<&Disruption>, now: &Now) -> Done {
    let done = Done { intent, outcome, at: now.later() };
    let Done { intent, outcome, at } = &done;
    info!(id = intent.id, namespace = intent.namespace, pod = intent.pod, outcome = outcome.name(), "action ended");
    if matches!(outcome, Outcome::Unclear { .. }) {
        return done;
    }
    let workload = Workload::from(&intent.workload);
    let written = profile::record(&ctx.act, &intent.namespace, &workload, &done.record(), disruption, *at).await;
    if let Err(error) = &written {
        warn!(error = error as &dyn std::error::Error, "action not in its workload's profile yet");
    }
    let closing = if outcome.disrupted() {
        Closing::Disrupted { unrecorded: written.is_err().then(|| done.record()) }
    } else {
        Closing::Nothing
    };
    if let Err(error) = intent::close(ctx, intent, &closing, now).await {
        warn!(id = intent.id, error = &error as &dyn std::error::Error, "action stays open until it can be closed");
    }
    done
}
