//! The life of an action: settle what is open, record the intent, act, write down what came of it.

use std::sync::Arc;
use std::time::Duration;

use gpumem_engine::decision::{Act, Decision, Step, Workload};
use gpumem_engine::pacing::{AdminBudgets, Deeds};
use gpumem_engine::policy::{Disruption, Mode, PolicyKey};
use gpumem_engine::quantity::Bytes;
use tracing::{info, warn};

use super::undo::Undo;
use crate::api::convert;
use crate::api::policy::GpuMemoryPolicy;
use crate::controller::act::{self, Settled};
use crate::controller::admin::Limits;
use crate::controller::context::Context;
use crate::controller::intent::{self, Action, Closing, Done, Intent, Ledger, Lever, Order, Outcome, PolicyRef};
use crate::controller::now::Now;
use crate::controller::observe::{Memory, Observed, key_of};
use crate::controller::profile;
use crate::controller::stock::Stock;

/// Calls are at least this far apart, whatever budgets allow: the API server and the scheduler have others to serve.
const BETWEEN_CALLS: Duration = Duration::from_secs(5);

/// Reads ledger and limits, and settles what an earlier leader or a lost answer left open.
pub async fn take_stock(ctx: &Context, policies: &[Arc<GpuMemoryPolicy>], now: &Now) -> (Stock, Vec<Done>) {
    let mut done = Vec::new();
    let stock = Stock::read(ctx).await;
    if let Err(error) = &stock.limits {
        warn!(error = error as &dyn std::error::Error, "limits not read, nothing is done this round");
        ctx.metrics.failed("reconcile", error.kind());
    }
    let ledger = match &stock.ledger {
        Ok(ledger) => ledger,
        Err(error) => {
            warn!(error = error as &dyn std::error::Error, "ledger not read, nothing is done this round");
            ctx.metrics.failed("reconcile", error.kind());
            return (stock, done);
        }
    };
    match act::settle(ctx, ledger, now).await {
        Ok(settled) if settled.is_empty() => return (stock, done),
        Ok(settled) => {
            for settled in settled {
                let (intent, outcome) = match settled {
                    Settled::Done(intent) => {
                        let outcome = found_done(&intent.action);
                        (intent, outcome)
                    }
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
        Err(why) => warn!(%why, "open action not settled yet"),
    }
    // What was closed above changed the ledger.
    (Stock { ledger: intent::read(ctx).await, ..stock }, done)
}

/// What is said of an action whose answer was lost and whose effect is there.
const fn found_done(action: &Action) -> Outcome {
    match action {
        Action::ResumeWorkload => Outcome::Resumed,
        Action::WithdrawCheckpoint { .. } => Outcome::TakenBack,
        Action::Scale { .. }
        | Action::RequestCheckpoint { .. }
        | Action::SuspendToHost
        | Action::SuspendWorkload { .. }
        | Action::Evict => Outcome::FoundDone,
    }
}

/// Everything that was done lately, as decisions see it.
pub fn gather(ctx: &Context, stock: &Stock, observed: &[Observed], now: &Now) -> Deeds {
    let histories =
        observed.iter().flat_map(|one| one.histories.iter().map(|(uid, history)| (uid.clone(), history.clone())));
    Deeds {
        leading_since: now.stamp_of(ctx.leadership.borrow().since),
        brake: stock.brake(now.stamp),
        admin: AdminBudgets { gpu_pods: u32::try_from(ctx.fleet().counts().pods).ok(), ..stock.budgets() },
        deeds: stock.ledger.as_ref().map(|ledger| ledger.deeds(now.stamp)).unwrap_or_default(),
        histories: histories.collect(),
    }
}

/// An action that was decided on, and what it takes to carry it out.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// Policy it is for.
    pub policy: PolicyKey,
    /// Generation of the policy that the decision was made under.
    pub generation: i64,
    /// Mode it is counted under.
    pub mode: Mode,
    /// Restraint of the policy; `None` where it is gone.
    pub disruption: Option<&'a Disruption>,
    /// The decision.
    pub act: &'a Act,
    /// The lever of the workload, where the action needs one.
    pub lever: Option<Lever>,
    /// Memory of the container.
    pub used: Option<Bytes>,
    /// How long it has run.
    pub age: Option<Duration>,
}

impl<'a> Task<'a> {
    /// Of a policy that is there.
    fn of(one: &'a Observed, stock: &Stock, act: &'a Act) -> Option<Self> {
        let policy = one.policy.as_ref().ok()?;
        let lever = match act.step {
            Step::SuspendWorkload { .. } => one.levers.get(&act.pod.uid)?.suspend.clone().ok().map(Lever::Suspend),
            Step::Scale { .. } => one.levers.get(&act.pod.uid)?.scale.clone().ok().map(Lever::Scale),
            _ => suspension(stock, act),
        };
        let view = one.views.iter().find(|view| view.pod.uid == act.pod.uid);
        Some(Self {
            used: view.map(|view| view.used),
            age: view.and_then(|view| view.age),
            policy: one.key.clone(),
            generation: one.object.metadata.generation.unwrap_or_default(),
            mode: policy.mode,
            disruption: Some(&policy.disruption),
            act,
            lever,
        })
    }

    /// Of one that is gone, and leaves something to undo.
    fn orphaned(policy: &PolicyKey, stock: &Stock, act: &'a Act) -> Self {
        let policy = policy.clone();
        let mode = if act.dry_run { Mode::DryRun } else { Mode::Enforce };
        Self {
            policy,
            generation: 0,
            mode,
            disruption: None,
            act,
            lever: suspension(stock, act),
            used: None,
            age: None,
        }
    }
}

/// The lever that suspended the workload which is to go on.
fn suspension(stock: &Stock, act: &Act) -> Option<Lever> {
    if act.step != Step::ResumeWorkload {
        return None;
    }
    let deed =
        stock.state()?.deeds.iter().find(|deed| deed.is_suspended() && deed.workload.uid == act.workload.uid.0)?;
    deed.suspension().cloned().map(Lever::Suspend)
}

/// Takes the most urgent of all decisions to act: one a round, so that the next is decided on what this one changed.
pub async fn carry_out(
    ctx: &Context,
    memory: &mut Memory,
    stock: Stock,
    observed: &[Observed],
    decisions: &[Vec<Decision>],
    orphaned: &Undo,
    now: &Now,
) -> Option<Done> {
    if memory.last_call.is_some_and(|at| now.stamp.since(at) < BETWEEN_CALLS) {
        return None;
    }
    let own = observed.iter().zip(decisions).flat_map(|(one, decisions)| {
        decisions.iter().filter_map(|decision| match decision {
            Decision::Act(act) => Task::of(one, &stock, act),
            Decision::Notify(_) | Decision::Hold { .. } => None,
        })
    });
    let others = orphaned.iter().flat_map(|(policy, decisions)| {
        decisions.iter().filter_map(|decision| match decision {
            Decision::Act(act) => Some(Task::orphaned(policy, &stock, act)),
            Decision::Notify(_) | Decision::Hold { .. } => None,
        })
    });
    let urgency = |task: &Task<'_>| (task.act.expected_in.unwrap_or(Duration::MAX), task.act.pod.clone());
    let task = own.chain(others).min_by_key(urgency)?;
    memory.last_call = Some(now.stamp);
    memory.forget_reads();
    let limits = stock.limits.as_ref().cloned().unwrap_or_default();
    perform(ctx, stock.ledger.ok()?, limits, task, now).await
}

/// Records, acts and writes down what came of it.
pub async fn perform(ctx: &Context, ledger: Ledger, limits: Limits, task: Task<'_>, now: &Now) -> Option<Done> {
    let Task { policy, generation, mode, disruption, act, lever, used, age } = task;
    let order = Order {
        policy: PolicyRef::from(&policy),
        policy_generation: generation,
        act,
        lever,
        used,
        age,
        settle_seconds: disruption.map_or(0, |disruption| disruption.settle().as_secs()),
        limits,
    };
    let recorded = match intent::record(ctx, ledger, order, now).await {
        Ok(recorded) => recorded,
        Err(error) => {
            warn!(pod = act.pod.name, error = &error as &dyn std::error::Error, "action not recorded, not taken");
            ctx.metrics.decision_blocked(error.kind());
            return None;
        }
    };
    let (intent, outcome) = act::take(ctx, recorded, now).await;
    let done = conclude(ctx, intent, outcome, disruption, now).await;
    ctx.metrics.action(&policy, act.step.name(), done.outcome.name(), mode);
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
    let closing = match &intent.action {
        _ if !outcome.is_done() => Closing::Nothing,
        // Of one that was only tried the pod knows nothing, so nothing stands.
        Action::RequestCheckpoint { .. } if intent.dry_run => Closing::Nothing,
        Action::RequestCheckpoint { .. } => Closing::Requested,
        Action::WithdrawCheckpoint { id } => Closing::TakenBack { id: id.clone() },
        Action::ResumeWorkload => Closing::Resumed,
        Action::Scale { .. } | Action::SuspendToHost | Action::SuspendWorkload { .. } | Action::Evict => {
            Closing::Disrupted { unrecorded: written.is_err().then(|| done.record()) }
        }
    };
    if let Err(error) = intent::close(ctx, &done.untold(), &closing, outcome.failed(), now).await {
        warn!(id = intent.id, error = &error as &dyn std::error::Error, "action stays open until it can be closed");
    }
    done
}
