//! What one round goes by: the ledger and the administrator's limits, as they were read at its beginning.

use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::{AdminBudgets, Brake, Breaker, Stamp};

use crate::controller::admin::{self, Limits};
use crate::controller::context::Context;
use crate::controller::intent::{self, Ledger, LedgerRequest, State};

/// See the module.
#[derive(Debug)]
pub struct Stock {
    /// The ledger.
    pub ledger: Result<Ledger, intent::Error>,
    /// What the administrator allows.
    pub limits: Result<Limits, admin::Error>,
}

impl Stock {
    /// Reads both.
    pub async fn read(ctx: &Context) -> Self {
        let (ledger, limits) = tokio::join!(intent::read(ctx), admin::read(ctx));
        Self { ledger, limits }
    }

    /// What the ledger says, where it can be read.
    pub fn state(&self) -> Option<&State> {
        self.ledger.as_ref().ok()?.state.as_ref().ok()
    }

    /// Our request for a checkpoint that a pod stands with.
    pub fn request(&self, pod: &PodUid) -> Option<&LedgerRequest> {
        self.state()?.request(pod)
    }

    /// Budgets above all policies. Where they cannot be read, the brake is on.
    pub fn budgets(&self) -> AdminBudgets {
        self.limits.as_ref().map(Limits::budgets).unwrap_or_default()
    }

    /// The breaker, where it may open.
    pub fn breaker(&self) -> Option<&Breaker> {
        let limits = self.limits.as_ref().ok()?;
        self.state().filter(|_| limits.breaker.enabled).map(|state| &state.breaker)
    }

    /// The brake that follows from all of it.
    pub fn brake(&self, now: Stamp) -> Brake {
        let ledger = match &self.ledger {
            Ok(ledger) => ledger.brake(),
            Err(error) => Brake::Unreadable(error.to_string()),
        };
        match (ledger, &self.limits) {
            (Brake::Released, Err(error)) => Brake::Unreadable(error.to_string()),
            (Brake::Released, Ok(_)) => self.breaker().map_or(Brake::Released, |breaker| breaker.brake(now)),
            (held, _) => held,
        }
    }
}
