use super::*;

const NOW: StartTime = StartTime(1_000);

fn owner(started: u64, pod: &str) -> Owner {
    Owner { started: StartTime(started), container: Some(container(pod, "main")) }
}

fn alive(pid: u32, started: u64) -> (Pid, StartTime) {
    (Pid(pid), StartTime(started))
}

#[test]
fn an_owner_is_looked_up_once_in_a_processs_life() {
    let mut owners = Owners::default();
    assert_eq!(owners.refresh(&[alive(1, 10)], NOW), [alive(1, 10)]);
    assert_eq!(owners.get(Pid(1)), None);
    owners.insert(Pid(1), owner(10, "a"));
    assert_eq!(owners.refresh(&[alive(1, 10)], NOW), []);
    assert_eq!(owners.get(Pid(1)), Some(&owner(10, "a")));
}

#[test]
fn a_process_on_several_devices_is_asked_for_once() {
    let mut owners = Owners::default();
    assert_eq!(owners.refresh(&[alive(1, 10), alive(2, 11), alive(1, 10)], NOW), [alive(1, 10), alive(2, 11)]);
    owners.insert(Pid(1), owner(10, "a"));
    owners.insert(Pid(2), owner(11, "b"));
    assert_eq!(owners.refresh(&[alive(1, 10), alive(2, 11), alive(1, 10)], NOW), []);
    assert_eq!(owners.get(Pid(1)), Some(&owner(10, "a")));
}

// T9
#[test]
fn a_process_that_ended_has_no_owner_although_it_is_still_listed() {
    let mut owners = Owners::default();
    owners.insert(Pid(1), owner(10, "a"));
    owners.refresh(&[], NOW);
    assert_eq!(owners.get(Pid(1)), None);
}

// T9
#[test]
fn a_reused_pid_never_gets_the_former_owner() {
    let mut owners = Owners::default();
    owners.insert(Pid(1), owner(10, "victim"));
    assert_eq!(owners.refresh(&[alive(1, 500)], NOW), [alive(1, 500)]);
    assert_eq!(owners.get(Pid(1)), None);
}

// T9
#[test]
fn a_process_younger_than_the_list_is_not_the_one_listed() {
    let mut owners = Owners::default();
    owners.insert(Pid(1), owner(10, "a"));
    assert_eq!(owners.refresh(&[alive(1, NOW.0), alive(2, NOW.0 + 5)], NOW), []);
    assert_eq!(owners.get(Pid(1)), None);
    let next_cycle = StartTime(NOW.0 + 100);
    assert_eq!(owners.refresh(&[alive(1, NOW.0)], next_cycle), [alive(1, NOW.0)]);
}
