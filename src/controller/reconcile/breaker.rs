//! The breaker above all policies: steps it with what the fleet looks like, and says how it and the budgets stand.

use std::collections::BTreeSet;
use std::time::Duration;

use gpumem_engine::pacing::Brake;
use gpumem_engine::risk::Level;
use tracing::warn;

use crate::controller::context::Context;
use crate::controller::intent::{self, LedgerDeed, State};
use crate::controller::metrics::BreakerState;
use crate::controller::now::Now;
use crate::controller::observe::Observed;
use crate::controller::stock::Stock;

/// Opens the breaker where too much seems wrong at once, in the ledger first. Where it cannot be written it is open all the
/// same, for this round.
pub async fn step(ctx: &Context, mut stock: Stock, observed: &[Observed], now: &Now) -> Stock {
    let (high, watched) = at_risk(observed);
    if let Some(breaker) = stock.breaker() {
        let mut stepped = breaker.clone();
        stepped.step(now.stamp, high, watched);
        if stepped.open != breaker.open {
            warn!(high, watched, "the breaker opens: nothing is done for a while");
            if let Err(error) = intent::open_breaker(ctx, high, watched, now).await {
                warn!(error = &error as &dyn std::error::Error, "open breaker not noted, trying again");
            }
            // What was written above is a newer version than the one that was read.
            stock.ledger = intent::read(ctx).await;
            if let Ok(Ok(state)) = stock.ledger.as_mut().map(|ledger| ledger.state.as_mut()) {
                state.breaker.open = state.breaker.open.or(stepped.open);
            }
        }
    }
    let state = match stock.breaker().map(|breaker| breaker.brake(now.stamp)) {
        None => BreakerState::Off,
        Some(Brake::BreakerOpen { .. }) => BreakerState::Open,
        Some(Brake::HalfOpen { .. }) => BreakerState::HalfOpen,
        Some(_) => BreakerState::Closed,
    };
    ctx.metrics.breaker(state);
    ctx.metrics.budgets(&stock.budgets());
    if let Some(state) = stock.state() {
        let (current, hour) = disrupted(state, now);
        ctx.metrics.disrupted(current, hour);
    }
    stock
}

/// Pods that have not recovered yet, and those disrupted within an hour. Dry runs disrupt nobody.
fn disrupted(state: &State, now: &Now) -> (u32, u32) {
    let sum = |counts: &dyn Fn(&LedgerDeed) -> bool| {
        let deeds = state.deeds.iter().filter(|deed| !deed.dry_run && counts(deed));
        deeds.fold(0_u32, |sum, deed| sum.saturating_add(deed.blast))
    };
    let within_hour = |deed: &LedgerDeed| now.stamp.since(deed.stamp()) < Duration::from_hours(1);
    (sum(&|deed| deed.is_recovering(now.stamp)), sum(&within_hour))
}

/// Workloads at High, and all that are watched. One without a forecast is watched as well.
fn at_risk(observed: &[Observed]) -> (u32, u32) {
    let views = || observed.iter().flat_map(|one| &one.views);
    let count = |set: BTreeSet<_>| u32::try_from(set.len()).unwrap_or(u32::MAX);
    let high = views().filter(|view| view.level == Level::High).map(|view| &view.workload.uid).collect();
    (count(high), count(views().map(|view| &view.workload.uid).collect()))
}
