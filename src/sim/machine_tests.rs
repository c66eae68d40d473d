use std::time::{Duration, Instant};

use super::*;
use crate::spec::parse_devices;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn machine(devices: &str) -> Machine {
    Machine::new(parse_devices(devices, "node").unwrap(), Costs::default(), 1)
}

fn open(machine: &mut Machine, client: ClientId, pid: u32, device: &str) -> Answer {
    machine.open(client, pid, Wanted { device, name: "job", kind: Kind::Compute, context: None }, Instant::now())
}

fn alloc(machine: &mut Machine, client: ClientId, bytes: u64) -> Answer {
    machine.alloc(client, bytes, Instant::now())
}

fn state(machine: &mut Machine) -> State {
    machine.state(1, Instant::now())
}

#[test]
fn used_is_what_processes_hold_and_a_little_of_nobodys() {
    let mut machine = machine("1x8GiB");
    assert_eq!(state(&mut machine).devices[0].memory.used, 0);
    open(&mut machine, 1, 10, "0");
    open(&mut machine, 2, 20, "0");
    alloc(&mut machine, 1, GIB);
    let device = &state(&mut machine).devices[0];
    let seen: Vec<(u32, u64)> = device.processes.iter().map(|p| (p.pid, p.bytes / MIB)).collect();
    assert_eq!(seen, [(10, 1524), (20, 500)]);
    let Memory { total, reserved, used, free } = device.memory;
    assert_eq!(used / MIB, 1524 + 500 + 15);
    assert_eq!(total, reserved + used + free);
}

#[test]
fn what_does_not_fit_is_refused_with_its_numbers_and_changes_nothing() {
    let mut machine = machine("1x4GiB,reserved=0B");
    open(&mut machine, 1, 10, "0");
    open(&mut machine, 2, 20, "0");
    alloc(&mut machine, 1, GIB);
    let before = state(&mut machine);
    let Answer::OutOfMemory(refusal) = alloc(&mut machine, 2, 3 * GIB) else { panic!("it fits") };
    assert_eq!(
        refusal,
        OutOfMemory {
            device: 0,
            requested: 3 * GIB,
            total: 4 * GIB,
            free: 2057 * MIB,
            pid: 20,
            context: 500 * MIB,
            held: 0,
            processes: vec![(10, 1524 * MIB), (20, 500 * MIB)],
        }
    );
    assert_eq!(state(&mut machine), before);
    assert_eq!(alloc(&mut machine, 2, 2057 * MIB), Answer::Held { bytes: 2057 * MIB });
    assert_eq!(state(&mut machine).devices[0].memory.free, 0);
}

#[test]
fn closing_frees_everything() {
    let mut machine = machine("1x4GiB");
    open(&mut machine, 1, 10, "0");
    alloc(&mut machine, 1, GIB);
    machine.close(1);
    assert_eq!(state(&mut machine).devices[0].memory.used, 0);
}

#[test]
fn freeing_more_than_held_frees_all_but_the_context() {
    let mut machine = machine("1x4GiB");
    open(&mut machine, 1, 10, "0");
    alloc(&mut machine, 1, GIB);
    assert_eq!(machine.free(1, u64::MAX), Answer::Held { bytes: 0 });
    assert_eq!(state(&mut machine).devices[0].processes[0].bytes, 500 * MIB);
}

#[test]
fn a_context_that_does_not_fit_is_out_of_memory() {
    let mut machine = machine("1x1GiB");
    assert!(matches!(open(&mut machine, 1, 10, "0"), Answer::OutOfMemory(refusal) if refusal.requested == 500 * MIB));
    assert!(state(&mut machine).devices[0].processes.is_empty());
}

#[test]
fn auto_takes_the_device_with_most_free_memory() {
    let mut machine = machine("2x8GiB");
    let device = |answer| match answer {
        Answer::Opened { device, .. } => device,
        other => panic!("{other:?}"),
    };
    assert_eq!([1, 2, 3, 4].map(|n| device(open(&mut machine, n, n as u32, "auto"))), [0, 1, 0, 1]);
}

#[test]
fn devices_go_by_index_slot_or_uuid() {
    let mut machine = machine("1x8GiB;H200,mig=3g.71gb+-+1g.18gb");
    let found = state(&mut machine);
    let instance = found.devices[1].slots[2].clone().unwrap();
    let place = |answer: Answer| match answer {
        Answer::Opened { device, slot, total, .. } => Some((device, slot, total)),
        _ => None,
    };
    assert_eq!(place(open(&mut machine, 1, 1, &found.devices[0].uuid)), Some((0, None, 8 * GIB)));
    assert_eq!(place(open(&mut machine, 2, 1, "1.0")), Some((1, Some(0), 71_885 * MIB)));
    assert_eq!(place(open(&mut machine, 3, 1, &instance.uuid)), Some((1, Some(2), instance.memory.total)));
    let refusal = |answer: Answer| match answer {
        Answer::Refused { why } => why,
        other => panic!("{other:?}"),
    };
    assert!(refusal(open(&mut machine, 4, 1, "1.1")).contains("no device `1.1`"));
    assert!(refusal(open(&mut machine, 4, 1, "1")).contains("sliced by MIG"));
    assert!(refusal(open(&mut machine, 1, 1, "0")).contains("has its context"));
    assert!(refusal(alloc(&mut machine, 9, 1)).contains("open a context first"));
}

#[test]
fn an_instance_is_full_while_its_device_is_not() {
    let mut machine = machine("H200,mig=1g.18gb+1g.18gb");
    open(&mut machine, 1, 1, "0.0");
    assert!(matches!(alloc(&mut machine, 1, 18 * GIB), Answer::OutOfMemory(_)));
    alloc(&mut machine, 1, 17 * GIB);
    let device = &state(&mut machine).devices[0];
    let used = |slot: usize| device.slots[slot].as_ref().map(|instance| instance.memory.used / MIB);
    assert_eq!((used(0), used(1), device.memory.used / MIB), (Some(17_554), Some(0), 17_554));
}

#[test]
fn connections_of_one_process_to_one_place_are_one_entry() {
    let mut machine = machine("2x8GiB");
    open(&mut machine, 1, 10, "0");
    open(&mut machine, 2, 10, "0");
    open(&mut machine, 3, 10, "1");
    let counts: Vec<usize> = state(&mut machine).devices.iter().map(|device| device.processes.len()).collect();
    assert_eq!(counts, [1, 1]);
    assert_eq!(state(&mut machine).devices[0].processes[0].bytes, 1000 * MIB);
}

#[test]
fn faults_hold_until_cleared_or_over() {
    let mut machine = machine("2x8GiB");
    let now = Instant::now();
    machine.set_fault(Some(1), Fault::Hung, Some(now + Duration::from_secs(30)));
    machine.set_fault(Some(1), Fault::Sentinel, None);
    machine.set_fault(None, Fault::Duplicates, None);
    assert_eq!(machine.state(1, now).devices[1].faults, [Fault::Hung, Fault::Sentinel]);
    assert_eq!(machine.state(1, now).faults, [Fault::Duplicates]);
    assert_eq!(machine.state(1, now + Duration::from_secs(30)).devices[1].faults, [Fault::Sentinel]);
    machine.clear_fault(Some(0), None);
    assert_eq!(machine.state(1, now).devices[1].faults, [Fault::Sentinel]);
    machine.clear_fault(None, Some(Fault::Sentinel));
    assert_eq!(machine.state(1, now).devices[1].faults, []);
    assert_eq!(machine.state(1, now).faults, [Fault::Duplicates]);
    assert!(matches!(machine.set_fault(Some(2), Fault::Lost, None), Answer::Refused { .. }));
}

#[test]
fn nothing_can_be_allocated_on_a_lost_device() {
    let mut machine = machine("1x8GiB");
    open(&mut machine, 1, 10, "0");
    machine.set_fault(Some(0), Fault::Lost, None);
    assert_eq!(alloc(&mut machine, 1, 1), Answer::DeviceLost);
    assert_eq!(open(&mut machine, 2, 10, "0"), Answer::DeviceLost);
    machine.clear_fault(None, None);
    assert_eq!(alloc(&mut machine, 1, 1), Answer::Held { bytes: 1 });
}
