//! How far a container may grow: from policies, its use and its neighbours to one limit in bytes, with the reason.
//!
//! Flows in: what the policies claim, and one container on one device as the newest samples show it. Flows out: a
//! [`Desired`] limit, and by [`ratchet`] what may be set of it now. Two rules hold whatever the input: a limit is never
//! set below what a container uses plus [`slack`] (drivers drop such a request silently, or the next allocation of a
//! process that did nothing wrong fails), and never above what another enforcer or the device allows.
//!
//! A cap turns a node's problem into the capped pod's: its own allocation fails and its neighbours live. So it is
//! computed only for containers of a policy that asks for it.

use std::time::Duration;

use crate::policy::{Ceiling, Enforcement, GrowthLimit, PolicyKey};
use crate::quantity::Bytes;

#[cfg(test)]
mod tests;

/// Limits are whole MiB: the unit of NVIDIA's own tools.
pub const UNIT: Bytes = Bytes::mib(1);
/// A lower limit than the present one is asked for at most this often.
pub const BETWEEN_LOWERINGS: Duration = Duration::from_secs(10);

/// What one policy says of the container.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Which policy.
    pub policy: PolicyKey,
    /// Its growth limit.
    pub limit: GrowthLimit,
    /// What it never plans to fill.
    pub headroom: Bytes,
}

/// The device, as the newest sample shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All of its memory: what a ceiling in percent counts from.
    pub total: Bytes,
    /// What workloads can fill of it.
    pub usable: Bytes,
    /// Used by nobody who has a name.
    pub unattributed: Bytes,
    /// What the other containers on it need: their use, or their recent peak where that is higher.
    pub neighbours: Bytes,
}

/// The container on that device.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// What it uses.
    pub used: Bytes,
    /// The least it used within the last minute; `None` during the warm-up, when a loader may take much at once.
    pub minute_floor: Option<Bytes>,
    /// Whether it is at risk now, by the policy's thresholds and dwells.
    pub pressure: bool,
    /// True for a container younger than the policy's warm-up.
    pub newcomer: bool,
    /// The limit that holds, as it was read back; `None` where none does or nobody knows.
    pub applied: Option<Bytes>,
    /// What other enforcers hold it to.
    pub bounds: Vec<Bound>,
    /// The target that is in force, and for how long it has been.
    pub previous: Option<(Bytes, Duration)>,
}

/// A limit that somebody else set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Who.
    pub enforcer: Enforcer,
    /// How much it lets through.
    pub bytes: Bytes,
}

/// Others that hold a container to a share of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcer {
    /// HAMi-core in the process (`CUDA_DEVICE_MEMORY_LIMIT…`).
    Hami,
    /// KAI's GPU fractioning (`nvidia.com/container.<name>.gpu-memory.limit`).
    Kai,
    /// A client limit of MPS (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
    Mps,
    /// The container toolkit's hook (`NVIDIA_GPU_MEMORY_LIMIT`).
    Toolkit,
    /// The administrator, by hand: a limit of the cgroup that is not ours.
    Operator,
}

/// Who bears the pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// The container that grows: its allocation fails, its neighbours live.
    #[default]
    Contain,
    /// Newcomers: who has been there stays as it is, who comes late gets what is left.
    Preserve,
}

/// What made a limit what it is: a closed set, fit for a condition's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The policy's ceiling.
    Ceiling,
    /// The policy's rate.
    Rate,
    /// What neighbours leave, under pressure.
    Share,
    /// The device's size.
    Capacity,
    /// Another enforcer.
    ManagedBy(Enforcer),
}

/// Where a container's limit should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The limit, in whole MiB.
    pub target: Bytes,
    /// What may be set of it now: the target, or more where the container uses more.
    pub holds: Bytes,
    /// Which policy is the strictest.
    pub policy: PolicyKey,
    /// Who enforces it.
    pub enforcement: Enforcement,
    /// What made it what it is.
    pub cause: Cause,
    /// That in a sentence, with the numbers.
    pub reason: String,
}

impl Desired {
    /// True while the container uses more than the target leaves it.
    pub fn is_pending(&self) -> bool {
        self.holds > self.target
    }
}

/// Room between what a container uses and a limit: an allocator's block, and a context's growth.
pub fn slack(total: Bytes) -> Bytes {
    whole(Bytes(total.0 / 200).clamp(Bytes::mib(64), Bytes::mib(512)))
}

/// The limit that follows from `claims`, or `None` where nothing limits the container.
///
/// The strictest claim wins. The result is clamped to what the device has and to what other enforcers allow; where one of
/// those holds the container tighter than we could, its value is the target and [`Cause::ManagedBy`] says so.
pub fn desire(room: &Room, subject: &Subject, claims: &[Claim], style: Style) -> Option<Desired> {
    let mut best: Option<(Bytes, Cause, &Claim, String)> = None;
    for claim in claims {
        for (bytes, cause, why) in candidates(room, subject, claim, style) {
            if best.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                best = Some((bytes, cause, claim, why));
            }
        }
    }
    let (mut target, mut cause, claim, mut reason) = best?;
    let most = room.usable - claim.headroom;
    if target > most {
        (target, cause) = (most, Cause::Capacity);
        reason = format!("the device has {} to give, {} of headroom left out", room.usable, claim.headroom);
    }
    if let Some(bound) = subject.bounds.iter().min_by_key(|bound| bound.bytes).filter(|bound| bound.bytes <= target) {
        (target, cause) = (bound.bytes, Cause::ManagedBy(bound.enforcer));
        reason = format!("{} holds it to {}, which is not raised", bound.enforcer.name(), bound.bytes);
    }
    target = whole(target);
    // What moves with use is kept from trembling; what people wrote is taken as it is.
    if let Some((previous, since)) = subject.previous.filter(|_| matches!(cause, Cause::Rate | Cause::Share)) {
        target = settle(previous, since, target, step(room, &claim.limit));
    }
    let holds = ratchet(target, subject.used, subject.applied, slack(room.total));
    let enforcement = claim.limit.enforcement;
    Some(Desired { target, holds, policy: claim.policy.clone(), enforcement, cause, reason })
}

/// What to set now, given the target, what the container uses, and the limit that holds (`None`: none does).
///
/// A limit below the target is raised to it at once. One above it comes down as use falls, never below use plus `slack`,
/// and never goes up again on the way: growth beyond the target gains nothing.
pub fn ratchet(target: Bytes, used: Bytes, applied: Option<Bytes>, slack: Bytes) -> Bytes {
    let lowest = target.max(whole_up(used + slack));
    match applied {
        None => lowest,
        Some(applied) if applied > target => applied.min(lowest),
        Some(_) => target,
    }
}

/// Each way in which one claim limits the container.
fn candidates(room: &Room, subject: &Subject, claim: &Claim, style: Style) -> Vec<(Bytes, Cause, String)> {
    let mut found = Vec::new();
    match claim.limit.ceiling {
        Some(Ceiling::Size(bytes)) => found.push((bytes, Cause::Ceiling, format!("the policy's ceiling is {bytes}"))),
        Some(Ceiling::Percent(percent)) => {
            let bytes = Bytes((u128::from(room.total.0) * u128::from(percent.min(100)) / 100) as u64);
            found.push((bytes, Cause::Ceiling, format!("the policy's ceiling is {percent}% of {}", room.total)));
        }
        None => {}
    }
    if let (Some(rate), Some(floor)) = (claim.limit.per_minute, subject.minute_floor) {
        let why = format!("the policy allows {rate} a minute, and {floor} were in use within the last one");
        found.push((floor + rate, Cause::Rate, why));
    }
    let bears = match style {
        Style::Contain => !subject.newcomer,
        Style::Preserve => subject.newcomer,
    };
    if subject.pressure && bears {
        let share = room.usable - claim.headroom - room.unattributed - room.neighbours;
        let why = format!(
            "an out-of-memory is near, and of {} its neighbours need {} and {} is headroom",
            room.usable, room.neighbours, claim.headroom
        );
        found.push((share, Cause::Share, why));
    }
    found
}

/// Raised at once; lowered by a step or more, and not in quick succession: a limit that trembles costs a write each time.
fn settle(previous: Bytes, since: Duration, next: Bytes, step: Bytes) -> Bytes {
    let lowers_enough = next + step <= previous && since >= BETWEEN_LOWERINGS;
    let raises_enough = next >= previous + step;
    if lowers_enough || raises_enough { next } else { previous }
}

/// The smallest change worth a write.
fn step(room: &Room, limit: &GrowthLimit) -> Bytes {
    let hundredth = Bytes(room.total.0 / 100);
    let by_rate = limit.per_minute.map(|rate| Bytes(rate.0 / 8));
    by_rate.unwrap_or(hundredth).clamp(Bytes::mib(16), Bytes::mib(256))
}

fn whole(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 / UNIT.0 * UNIT.0)
}

fn whole_up(bytes: Bytes) -> Bytes {
    whole(bytes + UNIT - Bytes(1))
}

// === impl Enforcer ===

impl Enforcer {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hami => "HAMi",
            Self::Kai => "KAI GPU fractioning",
            Self::Mps => "MPS",
            Self::Toolkit => "NVIDIA_GPU_MEMORY_LIMIT",
            Self::Operator => "a limit set by hand",
        }
    }
}

// === impl Cause ===

impl Cause {
    /// Name for a condition's reason.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Ceiling => "Ceiling",
            Self::Rate => "Rate",
            Self::Share => "Share",
            Self::Capacity => "Capacity",
            Self::ManagedBy(_) => "ManagedBy",
        }
    }
}
