//! What holds for any numbers a driver may return, however absurd.

use proptest::prelude::*;

use super::*;

/// Amounts where overflow, the sentinel and ordinary sums meet.
fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => (0..200_u64).prop_map(Bytes::gib),
        2 => any::<u64>().prop_map(Bytes),
        1 => Just(Bytes(u64::MAX)),
        1 => (u64::MAX - 3..u64::MAX).prop_map(Bytes),
        1 => (0..4_u64).prop_map(Bytes),
    ]
}

fn failure() -> impl Strategy<Value = QueryFailure> {
    prop_oneof![Just(QueryFailure::DeviceLost), Just(QueryFailure::Truncated), Just(QueryFailure::Hung)]
}

fn reading<T: Clone + std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Reading<T>> {
    prop_oneof![
        8 => value.prop_map(Reading::Value),
        1 => Just(()).prop_map(|()| Reading::NotSupported),
        1 => failure().prop_map(Reading::Failed),
    ]
}

fn memory() -> impl Strategy<Value = DeviceMemory> {
    let any = (bytes(), bytes(), bytes(), proptest::option::of(bytes()));
    any.prop_map(|(total, used, free, reserved)| DeviceMemory { total, used, free, reserved })
}

fn processes() -> impl Strategy<Value = Vec<ProcessMemory>> {
    let process = (0..12_u32, proptest::option::weighted(0.9, bytes()));
    proptest::collection::vec(process.prop_map(|(pid, used)| ProcessMemory { pid: Pid(pid), used }), 0..24)
}

fn device_sample() -> impl Strategy<Value = DeviceSample> {
    (reading(memory()), reading(processes())).prop_map(|(memory, processes)| DeviceSample {
        memory,
        processes,
        ..gpu("g0", Bytes::ZERO)
    })
}

/// A device whose processes claim close to what it uses, so that every branch of fitting is met.
fn consistent() -> impl Strategy<Value = DeviceSample> {
    (processes(), -3..=3_i64, 1..2_000_u64).prop_map(|(mut processes, skew, scale)| {
        for process in &mut processes {
            process.used = process.used.map(|used| Bytes(used.0 % scale));
        }
        let claimed = distinct(&processes).iter().filter_map(|process| process.used).sum::<Bytes>();
        let used = Bytes(claimed.0.saturating_add_signed(skew));
        let memory = DeviceMemory { total: Bytes(400), used, free: Bytes::ZERO, reserved: Some(Bytes::ZERO) };
        let (memory, processes) = (Reading::Value(memory), Reading::Value(processes));
        DeviceSample { memory, processes, ..gpu("g0", Bytes::ZERO) }
    })
}

fn any_device() -> impl Strategy<Value = DeviceSample> {
    prop_oneof![device_sample(), consistent()]
}

/// Some processes are unknown, some the host's, some share a container.
fn any_owners() -> impl Strategy<Value = BTreeMap<Pid, Owner>> {
    let place =
        prop_oneof![Just(None), Just(Some("host")), Just(Some("a/main")), Just(Some("a/side")), Just(Some("b/main")),];
    proptest::collection::vec(place, 12).prop_map(|places| {
        let known: Vec<_> = (0..).zip(places).filter_map(|(pid, place)| Some((pid, place?))).collect();
        owners(&known)
    })
}

fn split_of(devices: &[DeviceSample], owners: &BTreeMap<Pid, Owner>) -> Vec<DeviceUsage> {
    let sample = RawSample { at: Moment::from_secs(5), devices: devices.to_vec() };
    attribute(&sample, |pid| owners.get(&pid)).devices
}

proptest! {
    #[test]
    fn the_parts_of_a_device_make_up_what_it_uses(
        devices in proptest::collection::vec(any_device(), 0..4),
        owners in any_owners(),
    ) {
        let split = split_of(&devices, &owners);
        prop_assert_eq!(split.len(), devices.len());
        for (sample, device) in devices.iter().zip(&split) {
            prop_assert_eq!(device.memory.as_ref(), sample.memory.value());
            prop_assert_eq!(device.unattributed.is_some(), device.memory.is_some());
            if let (Some(memory), Some(unattributed)) = (device.memory, device.unattributed) {
                let named: u128 = device.containers.iter().filter_map(|usage| usage.used).map(wide).sum();
                prop_assert_eq!(named + wide(unattributed), wide(memory.used));
            }
            if let Attribution::Unavailable(_) = device.attribution {
                prop_assert!(device.containers.is_empty());
            }
            prop_assert!(device.containers.is_sorted_by(|a, b| a.container < b.container));
            let mut pids: Vec<_> = device.containers.iter().flat_map(|usage| &usage.processes).collect();
            let listed = pids.len();
            pids.sort_unstable();
            pids.dedup();
            prop_assert_eq!(pids.len(), listed, "no process is in two places");
        }
    }

    #[test]
    fn the_order_of_processes_does_not_matter(
        (listed, shuffled) in processes().prop_flat_map(|listed| (Just(listed.clone()), Just(listed).prop_shuffle())),
        memory in reading(memory()),
        owners in any_owners(),
    ) {
        let with = |processes| DeviceSample {
            memory: memory.clone(),
            processes: Reading::Value(processes),
            ..gpu("g0", Bytes::ZERO)
        };
        prop_assert_eq!(split_of(&[with(listed)], &owners), split_of(&[with(shuffled)], &owners));
    }

    #[test]
    fn listing_processes_twice_changes_nothing(sample in any_device(), owners in any_owners()) {
        let mut twice = sample.clone();
        if let Reading::Value(processes) = &mut twice.processes {
            processes.extend_from_within(..);
        }
        prop_assert_eq!(split_of(&[sample], &owners), split_of(&[twice], &owners));
    }

    #[test]
    fn a_device_is_split_alike_alone_and_beside_others(
        sample in any_device(),
        other in any_device(),
        owners in any_owners(),
    ) {
        let alone = split_of(std::slice::from_ref(&sample), &owners);
        let beside = split_of(&[other, sample], &owners);
        prop_assert_eq!(&alone[0], &beside[1]);
    }

    #[test]
    fn no_container_gets_more_than_its_processes_claim(sample in consistent(), owners in any_owners()) {
        let Reading::Value(listed) = &sample.processes else { unreachable!() };
        let claims: BTreeMap<Pid, Option<Bytes>> = distinct(listed).iter().map(|each| (each.pid, each.used)).collect();
        for usage in split_of(std::slice::from_ref(&sample), &owners).iter().flat_map(|device| &device.containers) {
            let claimed: Option<Bytes> = usage.processes.iter().map(|(pid, _)| claims[pid]).sum();
            prop_assert_eq!(usage.used.is_some(), claimed.is_some());
            prop_assert!(usage.used <= claimed);
        }
    }

    #[test]
    fn an_owner_is_handed_out_only_for_the_process_last_seen_alive(
        cycles in proptest::collection::vec(proptest::collection::vec((0..4_u32, 0..6_u64), 0..6), 1..8),
        listed_at in 0..8_u64,
    ) {
        let mut owners = Owners::default();
        for cycle in cycles {
            let alive: Vec<_> = cycle.iter().map(|(pid, started)| (Pid(*pid), StartTime(*started))).collect();
            for (pid, started) in owners.refresh(&alive, StartTime(listed_at)) {
                owners.insert(pid, Owner { started, container: None });
            }
            for pid in (0..4).map(Pid) {
                if let Some(owner) = owners.get(pid) {
                    prop_assert!(alive.contains(&(pid, owner.started)));
                    prop_assert!(owner.started.0 < listed_at);
                }
            }
        }
    }
}
