//! What a limit becomes, by example and for any input. Cases of the notes on limits: 20, 24 to 26.

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> PolicyKey {
    PolicyKey { namespace: "team".to_owned(), name: name.to_owned() }
}

fn claim(ceiling: Option<Ceiling>, per_minute: Option<Bytes>) -> Claim {
    let limit = GrowthLimit { ceiling, per_minute, enforcement: Enforcement::Kernel };
    Claim { policy: key("p"), limit, headroom: Bytes::gib(1) }
}

fn room() -> Room {
    Room { total: Bytes::gib(80), usable: Bytes::gib(79), unattributed: Bytes::ZERO, neighbours: Bytes::gib(30) }
}

fn using(used: Bytes) -> Subject {
    Subject {
        used,
        minute_floor: Some(used),
        pressure: false,
        newcomer: false,
        applied: None,
        bounds: Vec::new(),
        previous: None,
    }
}

const fn size(gib: u64) -> Ceiling {
    Ceiling::Size(Bytes::gib(gib))
}

fn target(subject: &Subject, claims: &[Claim]) -> Option<(Bytes, Cause)> {
    desire(&room(), subject, claims, Style::Contain).map(|desired| (desired.target, desired.cause))
}

#[test]
fn a_ceiling_is_a_size_or_a_share_of_the_device() {
    let subject = using(Bytes::gib(10));
    assert_eq!(target(&subject, &[claim(Some(size(40)), None)]), Some((Bytes::gib(40), Cause::Ceiling)));
    let half = claim(Some(Ceiling::Percent(50)), None);
    assert_eq!(target(&subject, &[half]), Some((Bytes::gib(40), Cause::Ceiling)));
    assert_eq!(target(&subject, &[]), None, "nobody limits it");
}

#[test]
fn the_strictest_of_several_policies_wins_and_is_named() {
    let strict = Claim { policy: key("strict"), ..claim(Some(size(20)), None) };
    let desired = desire(&room(), &using(Bytes::gib(1)), &[claim(Some(size(40)), None), strict], Style::Contain);
    let desired = desired.expect("limited");
    assert_eq!((desired.target, desired.policy), (Bytes::gib(20), key("strict")));
}

#[test]
fn a_rate_counts_from_the_least_of_the_last_minute_and_not_during_the_warm_up() {
    let rate = claim(None, Some(Bytes::mib(512)));
    let mut subject = using(Bytes::gib(10));
    subject.minute_floor = Some(Bytes::gib(10) - Bytes::mib(100));
    assert_eq!(target(&subject, std::slice::from_ref(&rate)), Some((Bytes::gib(10) + Bytes::mib(412), Cause::Rate)));
    subject.minute_floor = None;
    assert_eq!(target(&subject, &[rate]), None, "a loader takes much, once");
}

#[test]
fn under_pressure_the_grower_is_capped_at_what_its_flat_neighbours_leave() {
    let mut grower = using(Bytes::gib(40));
    grower.pressure = true;
    let claims = [claim(Some(size(79)), None)];
    let desired = desire(&room(), &grower, &claims, Style::Contain).expect("limited");
    assert_eq!((desired.target, desired.cause), (Bytes::gib(48), Cause::Share), "79 less 1 less 30");
    assert!(desired.reason.contains("neighbours need 30 GiB"), "{}", desired.reason);
    grower.pressure = false;
    assert_eq!(target(&grower, &claims), Some((Bytes::gib(78), Cause::Capacity)), "raised at once when it ends");
}

#[test]
fn to_preserve_the_newcomer_bears_it_and_to_contain_the_grower() {
    let mut subject = using(Bytes::gib(40));
    subject.pressure = true;
    let claims = [claim(Some(size(79)), None)];
    let cause = |subject: &Subject, style| desire(&room(), subject, &claims, style).map(|desired| desired.cause);
    assert_eq!(cause(&subject, Style::Contain), Some(Cause::Share));
    assert_eq!(cause(&subject, Style::Preserve), Some(Cause::Capacity));
    subject.newcomer = true;
    assert_eq!(cause(&subject, Style::Preserve), Some(Cause::Share));
}

#[test]
fn no_limit_is_beyond_the_device_and_unit_nonsense_is_harmless() {
    let subject = using(Bytes::gib(10));
    assert_eq!(target(&subject, &[claim(Some(size(4096)), None)]), Some((Bytes::gib(78), Cause::Capacity)));
    // Case 24: 1000.5 MiB is 1000 MiB.
    let odd = claim(Some(Ceiling::Size(Bytes(1000 * (1 << 20) + (1 << 19)))), None);
    assert_eq!(target(&using(Bytes::ZERO), &[odd]), Some((Bytes::mib(1000), Cause::Ceiling)));
    // "40" was meant as 40Gi: the limit is zero, and what holds is what the container has.
    let tiny = desire(&room(), &subject, &[claim(Some(Ceiling::Size(Bytes(40))), None)], Style::Contain);
    let tiny = tiny.expect("limited");
    assert!(tiny.is_pending() && tiny.holds == Bytes::gib(10) + slack(Bytes::gib(80)), "{tiny:?}");
}

#[test]
fn another_enforcer_is_an_upper_bound_that_is_never_raised_or_fought() {
    let mut subject = using(Bytes::gib(10));
    subject.bounds = vec![
        Bound { enforcer: Enforcer::Mps, bytes: Bytes::gib(30) },
        Bound { enforcer: Enforcer::Hami, bytes: Bytes::gib(16) },
    ];
    let claims = [claim(Some(size(40)), None)];
    assert_eq!(target(&subject, &claims), Some((Bytes::gib(16), Cause::ManagedBy(Enforcer::Hami))));
    let stricter = [claim(Some(size(12)), None)];
    assert_eq!(target(&subject, &stricter), Some((Bytes::gib(12), Cause::Ceiling)), "ours is the tighter one");
}

#[test]
fn a_limit_that_would_tremble_stays_and_what_people_wrote_is_exact() {
    let rate = [claim(None, Some(Bytes::gib(1)))];
    let mut subject = using(Bytes::gib(10));
    subject.previous = Some((Bytes::gib(11) - Bytes::mib(100), Duration::ZERO));
    assert_eq!(target(&subject, &rate).map(|(bytes, _)| bytes), Some(Bytes::gib(11) - Bytes::mib(100)), "too little");
    subject.previous = Some((Bytes::gib(10), Duration::ZERO));
    assert_eq!(target(&subject, &rate).map(|(bytes, _)| bytes), Some(Bytes::gib(11)), "raised at once");
    subject.previous = Some((Bytes::gib(20), Duration::from_secs(1)));
    assert_eq!(target(&subject, &rate).map(|(bytes, _)| bytes), Some(Bytes::gib(20)), "lowered a moment ago");
    subject.previous = Some((Bytes::gib(20), BETWEEN_LOWERINGS));
    assert_eq!(target(&subject, &rate).map(|(bytes, _)| bytes), Some(Bytes::gib(11)));
    subject.previous = Some((Bytes::gib(40), Duration::ZERO));
    let edited = [claim(Some(Ceiling::Size(Bytes::gib(40) + Bytes::mib(1))), None)];
    assert_eq!(target(&subject, &edited).map(|(bytes, _)| bytes), Some(Bytes::gib(40) + Bytes::mib(1)));
}

#[test]
fn case_20_a_limit_below_use_comes_down_as_use_falls() {
    let (target, slack) = (Bytes::gib(20), Bytes::mib(100));
    let first = ratchet(target, Bytes::gib(30), None, slack);
    assert_eq!(first, Bytes::gib(30) + slack);
    assert_eq!(ratchet(target, first, Some(first), slack), first, "use that grows up to it gains nothing");
    let second = ratchet(target, Bytes::gib(25), Some(first), slack);
    assert_eq!(second, Bytes::gib(25) + slack);
    assert_eq!(ratchet(target, Bytes::gib(12), Some(second), slack), target);
    assert_eq!(ratchet(target, target, Some(target), slack), target, "at the target it stays there");
    assert_eq!(ratchet(Bytes::gib(40), target, Some(target), slack), Bytes::gib(40), "raised at once");
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        6 => (0..200_u64).prop_map(Bytes::gib),
        3 => (0..200_000_u64).prop_map(Bytes::mib),
        1 => any::<u64>().prop_map(Bytes),
    ]
}

fn subjects() -> impl Strategy<Value = Subject> {
    let bounds = proptest::collection::vec(bytes().prop_map(|bytes| Bound { enforcer: Enforcer::Kai, bytes }), 0..3);
    let previous = proptest::option::of((bytes(), (0..100_u64).prop_map(Duration::from_secs)));
    let flags = (any::<bool>(), any::<bool>());
    let optional = || proptest::option::of(bytes());
    (bytes(), optional(), flags, optional(), bounds, previous).prop_map(
        |(used, minute_floor, (pressure, newcomer), applied, bounds, previous)| Subject {
            used,
            minute_floor,
            pressure,
            newcomer,
            applied,
            bounds,
            previous,
        },
    )
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let ceiling = prop_oneof![bytes().prop_map(Ceiling::Size), (1..=100_u32).prop_map(Ceiling::Percent),];
    let one = (proptest::option::of(ceiling), proptest::option::of(bytes()), bytes());
    proptest::collection::vec(
        one.prop_map(|(ceiling, per_minute, headroom)| Claim { headroom, ..claim(ceiling, per_minute) }),
        0..4,
    )
}

fn rooms() -> impl Strategy<Value = Room> {
    (bytes(), bytes(), bytes(), bytes()).prop_map(|(total, reserved, unattributed, neighbours)| Room {
        total,
        usable: total - reserved,
        unattributed,
        neighbours,
    })
}

proptest! {
    #[test]
    fn no_target_exceeds_the_device_or_another_enforcers_limit(
        room in rooms(), subject in subjects(), claims in claims(), contain in any::<bool>(),
    ) {
        let style = if contain { Style::Contain } else { Style::Preserve };
        let first = Subject { previous: None, ..subject };
        if let Some(desired) = desire(&room, &first, &claims, style) {
            prop_assert!(desired.target <= room.usable);
            prop_assert!(first.bounds.iter().all(|bound| desired.target <= bound.bytes));
            prop_assert_eq!(desired.target.0 % UNIT.0, 0);
            prop_assert!(desired.holds >= desired.target);
            prop_assert!(!desired.reason.is_empty());
        }
    }

    #[test]
    fn one_more_policy_never_loosens_a_limit(
        room in rooms(), subject in subjects(), claims in claims(),
    ) {
        // Policies differ in headroom, and the strictest's counts; with one headroom for all, more is never looser.
        let same: Vec<Claim> = claims.into_iter().map(|claim| Claim { headroom: Bytes::ZERO, ..claim }).collect();
        let first = Subject { previous: None, ..subject };
        let of = |claims: &[Claim]| desire(&room, &first, claims, Style::Contain).map(|desired| desired.target);
        if let (Some(all), Some((_, fewer))) = (of(&same), same.split_last()) {
            prop_assert!(of(fewer).is_none_or(|target| all <= target));
        }
    }

    #[test]
    fn what_is_set_leaves_room_to_what_is_used_or_is_lower_already(
        target in bytes(), used in bytes(), applied in proptest::option::of(bytes()), slack in bytes(),
    ) {
        let set = ratchet(target, used, applied, slack);
        prop_assert!(set >= target);
        match applied {
            None => prop_assert!(set >= used),
            // Coming down: never up again, and never below use by our own doing.
            Some(applied) if applied > target => prop_assert!(set <= applied && (set >= used || set == applied)),
            Some(_) => prop_assert_eq!(set, target),
        }
    }

    #[test]
    fn a_ratchet_ends_at_the_target_once_use_is_low_enough(
        target in (1..100_u64).prop_map(Bytes::gib), uses in proptest::collection::vec(bytes(), 0..20),
    ) {
        let slack = Bytes::mib(64);
        let mut applied = None;
        for used in uses {
            applied = Some(ratchet(target, used, applied, slack));
        }
        prop_assert_eq!(ratchet(target, Bytes::ZERO, applied, slack), target);
    }
}
