//! The acting loop, all of it: observe, decide, act, report; at most once a second, woken by news.
//!
//! Flows in: policies through one watch, and the fleet's reports. Flows out: at most one action a round, and what became of
//! it. Only the leader does anything here. Nothing is kept between rounds that a restart cannot rebuild, but for dwell
//! times, which start anew: a restart delays and never hastens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem_engine::decision::decide;
use gpumem_engine::policy::Policy;
use kube::runtime::events::Recorder;
use tracing::info;

use super::context::Context;
use super::fleet::Observation;
use super::limits;
use super::now::Now;
use super::observe::{Memory, observe};
use super::report;
use super::truth;
use crate::api::policy::GpuMemoryPolicy;
use crate::api::usage::PodReport;

mod breaker;

mod deeds;

mod policies;

mod recovery;

mod undo;

pub use deeds::{Task, perform};
pub use policies::Policies;

/// Rounds are at least this far apart: samples come once a second.
const PAUSE: Duration = Duration::from_secs(1);
/// Without news a round still comes, for what ages by itself.
const IDLE: Duration = Duration::from_secs(5);
/// A round that takes longer than this is stuck.
const STUCK: Duration = Duration::from_mins(3);

/// Runs until `shutdown`. A round under way is finished first, so that no action is left without its outcome.
pub async fn run(ctx: Arc<Context>, shutdown: impl Future<Output = ()>) {
    let mut listened = Policies::new(ctx.watch.clone());
    let (mut memory, recorder) = (Memory::new(Instant::now()), report::recorder(&ctx));
    let mut news = ctx.news.clone();
    let (mut due, mut woken, mut was_leading) = (tokio::time::Instant::now() + PAUSE, false, false);
    tokio::pin!(shutdown);
    loop {
        let wake = async {
            if !woken {
                let _ = tokio::time::timeout(IDLE, news.changed()).await;
                // Kept outside, or an event of the watch during the sleep would make us forget the news.
                woken = true;
            }
            tokio::time::sleep_until(due).await;
        };
        tokio::select! {
            () = &mut shutdown => break,
            is_news = listened.changed() => {
                woken |= is_news;
                continue;
            }
            () = wake => {}
        }
        if !listened.is_blind() {
            ctx.health.beat("reconcile", STUCK);
        }
        (due, woken) = (tokio::time::Instant::now() + PAUSE, false);
        let leads = ctx.leadership.borrow().is_leader;
        if leads != was_leading {
            info!(leads, "leadership changed");
            (memory, was_leading) = (Memory::new(Instant::now()), leads);
        }
        if leads {
            let (policies, now) = (listened.state(), Now::read());
            let fetch = |policy: &Policy, select: &dyn Fn(&PodReport) -> bool| {
                ctx.observe(now.instant, &policy.key.namespace, select, policy)
            };
            Box::pin(round(&ctx, &mut memory, &recorder, &policies, &now, fetch)).await;
        }
    }
    ctx.health.retire("reconcile");
}

/// One round: observe, decide, act, report.
pub async fn round(
    ctx: &Context,
    memory: &mut Memory,
    recorder: &Recorder,
    policies: &[Arc<GpuMemoryPolicy>],
    now: &Now,
    fetch: impl FnMut(&Policy, &dyn Fn(&PodReport) -> bool) -> Vec<Observation>,
) {
    if !ctx.leadership.borrow().is_leader {
        return;
    }
    let (stock, mut done) = deeds::take_stock(ctx, policies, now).await;
    recovery::look_after(ctx, memory, &stock, now).await;
    let observed = observe(ctx, memory, policies, &stock, now, fetch).await;
    let stock = breaker::step(ctx, stock, &observed, now).await;
    let deeds = deeds::gather(ctx, &stock, &observed, now);
    let untold = stock.state().map(|state| state.untold.clone()).unwrap_or_default();
    let mut undo = undo::due(ctx, &stock, &observed, &deeds, now).await;
    let decisions: Vec<_> = observed
        .iter()
        .map(|one| {
            let mut decisions = match &one.policy {
                Ok(policy) => decide(now.stamp, policy, &one.views, &deeds),
                Err(_) => Vec::new(),
            };
            if one.policy.is_ok() {
                decisions.extend(undo.remove(&one.key).unwrap_or_default());
            }
            decisions
        })
        .collect();
    done.extend(Box::pin(deeds::carry_out(ctx, memory, stock, &observed, &decisions, &undo, now)).await);
    limits::hold(ctx, memory, &observed, &deeds.brake, now).await;
    report::report(ctx, memory, recorder, &observed, &decisions, &done, untold, &deeds.brake, now).await;
    truth::look(ctx, memory, recorder, &observed, &done, now).await;
}
