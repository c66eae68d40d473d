//! What a node may show, and how it must be split. T-numbers are those of the project's list of test cases.

use super::*;

// T1
#[test]
fn the_processes_of_one_container_are_one_sum() {
    let sample = gpu("g0", gib(13)).process(3, gib(1)).process(1, gib(9)).process(2, gib(2));
    let device = device(sample, &[(1, "train/main"), (2, "train/main"), (3, "train/main")]);
    assert_eq!(shares(&device), [share("train/main", gib(12))]);
    let processes = [1, 2, 3].map(|pid| (Pid(pid), StartTime(7)));
    assert_eq!(device.containers[0].processes, processes);
    assert_eq!(device.unattributed, Some(gib(1)));
    assert_eq!(device.attribution, Attribution::Complete);
}

// T2, T22
#[test]
fn pods_that_share_a_gpu_have_their_own_values_and_one_without_processes_has_none() {
    let sample = gpu("g0", mib(12_500)).process(1, gib(10)).process(2, gib(2));
    let device = device(sample, &[(1, "a/main"), (2, "b/main"), (3, "c/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(10)), share("b/main", gib(2))]);
    assert_eq!(device.unattributed, Some(mib(212)));
    assert_eq!(device.attribution, Attribution::Complete, "so that the absence of c means it uses nothing");
}

// T3
#[test]
fn two_containers_of_one_pod_are_told_apart() {
    let sample = gpu("g0", gib(7)).process(1, gib(5)).process(2, gib(1)).process(3, gib(1));
    let device = device(sample, &[(1, "pod/server"), (2, "pod/sidecar"), (3, "pod/server")]);
    assert_eq!(shares(&device), [share("pod/server", gib(6)), share("pod/sidecar", gib(1))]);
}

// T4
#[test]
fn mps_clients_are_their_pods_and_the_server_is_the_daemons() {
    let compute = gpu("g0", mib(9_250)).process(10, mib(30)).process(1, gib(4)).process(2, gib(5));
    let both_lists = compute.process(1, gib(4)).process(2, gib(5));
    let device = device(both_lists, &[(1, "a/main"), (2, "b/main"), (10, "mps/daemon")]);
    assert_eq!(shares(&device), [share("a/main", gib(4)), share("b/main", gib(5)), share("mps/daemon", mib(30))]);
    assert_eq!(device.unattributed, Some(mib(4)));
}

// T5
#[test]
fn compute_instances_of_one_mig_slice_share_its_memory_once() {
    // The lists of both compute instances, joined; each shows the whole slice's processes on some drivers.
    let listed_twice = slice("g0", 2, "H200 MIG 3g.71gb", mib(16_925)).process(1, gib(10)).process(2, mib(6_650));
    let sample = listed_twice.process(2, mib(6_650)).process(1, gib(10));
    let device = device(sample, &[(1, "a/main"), (2, "b/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(10)), share("b/main", mib(6_650))]);
    assert_eq!(device.unattributed, Some(mib(35)));
    assert_eq!(device.memory.map(|memory| memory.reserved), Some(Some(Bytes::ZERO)));
}

// T6
#[test]
fn a_slice_cut_anew_carries_its_new_profile_and_nothing_of_the_old_one() {
    let processes = [(1, "a/main"), (2, "b/main")];
    let before = device(slice("g0", 1, "H200 MIG 3g.71gb", gib(9)).process(1, gib(9)), &processes);
    let after = device(slice("g0", 1, "H200 MIG 1g.18gb", gib(3)).process(2, gib(3)), &processes);
    assert_eq!(before.device, after.device);
    assert_ne!(before.model, after.model);
    assert_eq!(shares(&after), [share("b/main", gib(3))]);
}

// T7
#[test]
fn a_pod_that_asked_for_no_gpu_is_named_like_any_other() {
    // Owners come from processes alone; no allocation is consulted.
    let device = device(gpu("g0", gib(4)).process(1, gib(4)), &[(1, "privileged/main")]);
    assert_eq!(shares(&device), [share("privileged/main", gib(4))]);
}

// T8
#[test]
fn an_empty_list_while_memory_is_in_use_names_nobody() {
    let device = device(gpu("g0", gib(30)), &[(1, "a/main")]);
    assert_eq!(device.containers, []);
    assert_eq!(device.unattributed, Some(gib(30)));
    assert_eq!(device.attribution, unavailable(AttributionGap::NoProcessVisible));
}

// T8
#[test]
fn an_idle_device_is_complete_whichever_way_the_driver_counts_its_own_share() {
    assert_eq!(device(gpu("g0", mib(55)), &[]).attribution, Attribution::Complete);
    let version_1 = DeviceMemory { total: gib(80), used: mib(912), free: gib(80) - mib(912), reserved: None };
    let idle = DeviceSample { memory: Reading::Value(version_1), ..gpu("g0", gib(0)) };
    assert_eq!(device(idle, &[]).attribution, Attribution::Complete);
}

// T9, T10
#[test]
fn memory_of_a_process_without_a_proc_entry_is_nobodys() {
    let sample = gpu("g0", gib(9)).process(1, gib(3)).process(2, gib(6));
    let device = device(sample, &[(1, "a/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(3))]);
    assert_eq!(device.unattributed, Some(gib(6)));
    assert_eq!(device.attribution, Attribution::Partial);
}

#[test]
fn a_process_of_the_host_is_nobodys_and_the_split_is_complete() {
    let sample = gpu("g0", gib(9)).process(1, gib(3)).process(2, gib(6)).withheld(3);
    let device = device(sample, &[(1, "a/main"), (2, "host"), (3, "host")]);
    assert_eq!(shares(&device), [share("a/main", gib(3))]);
    assert_eq!(device.unattributed, Some(gib(6)));
    assert_eq!(device.attribution, Attribution::Complete);
}

// T11
#[test]
fn a_list_that_was_cut_gives_no_container_a_value() {
    let device = device(unlisted(gpu("g0", gib(30)), QueryFailure::Truncated), &[(1, "a/main")]);
    assert_eq!(device.containers, []);
    assert_eq!(device.unattributed, Some(gib(30)));
    assert_eq!(device.attribution, unavailable(AttributionGap::Query(QueryFailure::Truncated)));
}

// T12
#[test]
fn a_process_in_several_lists_counts_once_with_its_largest_value() {
    let sample = gpu("g0", gib(9)).process(1, gib(7)).withheld(1).process(1, gib(8)).process(1, gib(8));
    let device = device(sample, &[(1, "a/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(8))]);
    assert_eq!(device.containers[0].processes.len(), 1);
    assert_eq!(device.attribution, Attribution::Complete);
}

// T13
#[test]
fn a_withheld_value_leaves_its_container_without_one_and_the_others_untouched() {
    let sample = gpu("g0", gib(9)).process(1, gib(3)).withheld(2).process(3, gib(4)).process(4, Bytes(u64::MAX));
    let device = device(sample, &[(1, "a/main"), (2, "a/main"), (3, "b/main"), (4, "c/main")]);
    assert_eq!(shares(&device), [("a/main".into(), None), share("b/main", gib(4)), ("c/main".into(), None)]);
    assert_eq!(device.unattributed, Some(gib(5)));
    assert_eq!(device.attribution, Attribution::Partial);
}

// T13
#[test]
fn where_every_value_is_withheld_all_memory_is_unattributed() {
    let device = device(gpu("g0", gib(9)).withheld(1).withheld(2), &[(1, "a/main"), (2, "b/main")]);
    assert_eq!(shares(&device), [("a/main".into(), None), ("b/main".into(), None)]);
    assert_eq!(device.unattributed, Some(gib(9)));
}

// T14
#[test]
fn a_gpu_without_memory_counters_gives_the_sums_of_its_processes() {
    let sample = DeviceSample { memory: Reading::NotSupported, ..gpu("g0", gib(0)) };
    let device = device(sample.process(1, gib(3)).process(2, gib(4)), &[(1, "a/main"), (2, "a/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(7))]);
    assert_eq!((device.memory, device.unattributed), (None, None));
    assert_eq!(device.attribution, Attribution::Complete);
}

#[test]
fn a_device_without_a_process_list_says_so() {
    let sample = DeviceSample { processes: Reading::NotSupported, ..gpu("g0", gib(9)) };
    let device = device(sample, &[]);
    assert_eq!(device.unattributed, Some(gib(9)));
    assert_eq!(device.attribution, unavailable(AttributionGap::NotSupported));
}

// T15
#[test]
fn a_lost_gpu_leaves_the_other_seven_working() {
    let healthy = |i| gpu(&format!("g{i}"), gib(9)).process(i, gib(8));
    let mut devices: Vec<_> = (0..8).map(healthy).collect();
    devices[3] = failed(QueryFailure::DeviceLost);
    let places: Vec<_> = (0..8).map(|i| (i, "train/main")).collect();
    for (i, device) in usage(&devices, &places).devices.iter().enumerate() {
        if i == 3 {
            assert_eq!((device.memory, device.unattributed, &device.containers[..]), (None, None, &[][..]));
            assert_eq!(device.attribution, unavailable(AttributionGap::Query(QueryFailure::DeviceLost)));
        } else {
            assert_eq!(shares(device), [share("train/main", gib(8))]);
        }
    }
}

// T16, T17, T23
#[test]
fn a_query_that_failed_never_looks_like_an_idle_gpu() {
    let failures = [QueryFailure::DriverGone, QueryFailure::Hung, QueryFailure::NoPermission, QueryFailure::Unknown];
    for failure in failures {
        let device = device(failed(failure), &[]);
        assert_eq!((device.memory, device.unattributed), (None, None));
        assert_eq!(device.attribution, unavailable(AttributionGap::Query(failure)));
    }
}

#[test]
fn a_list_is_not_believed_where_the_device_itself_cannot_be_read() {
    let sample = DeviceSample { memory: Reading::Failed(QueryFailure::DeviceLost), ..gpu("g0", gib(9)) };
    let device = device(sample.process(1, gib(3)), &[(1, "a/main")]);
    assert_eq!(device.containers, []);
    assert_eq!(device.attribution, unavailable(AttributionGap::Query(QueryFailure::DeviceLost)));
}

// T21
#[test]
fn a_pod_created_anew_under_the_same_name_is_another_container() {
    let processes = [(1, "uid-old/main"), (2, "uid-new/main")];
    let sample = gpu("g0", gib(9)).process(1, gib(8)).process(2, gib(1));
    assert_eq!(shares(&device(sample, &processes)), [share("uid-new/main", gib(1)), share("uid-old/main", gib(8))]);
    let next = gpu("g0", gib(1)).process(2, gib(1));
    assert_eq!(shares(&device(next, &processes)), [share("uid-new/main", gib(1))]);
}

// T24
#[test]
fn a_refused_parent_leaves_its_mig_slices_readable() {
    let slice = slice("g0", 1, "H200 MIG 3g.71gb", gib(5)).process(1, gib(5));
    let usage = usage(&[failed(QueryFailure::NoPermission), slice], &[(1, "a/main")]);
    let refused = unavailable(AttributionGap::Query(QueryFailure::NoPermission));
    assert_eq!(usage.devices[0].attribution, refused);
    assert_eq!(shares(&usage.devices[1]), [share("a/main", gib(5))]);
}

// T25
#[test]
fn managed_memory_is_blamed_on_nobody() {
    let device = device(gpu("g0", gib(58)).process(1, gib(5)), &[(1, "a/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(5))]);
    assert_eq!(device.unattributed, Some(gib(53)));
    assert_eq!(device.attribution, Attribution::Complete);
}

// T29
#[test]
fn processes_that_grew_while_they_were_read_are_scaled_to_fit() {
    let sample = gpu("g0", gib(100)).process(1, mib(51_712)).process(2, mib(51_712));
    let device = device(sample, &[(1, "a/main"), (2, "b/main")]);
    assert_eq!(shares(&device), [share("a/main", gib(50)), share("b/main", gib(50))]);
    assert_eq!(device.unattributed, Some(Bytes::ZERO));
    assert_eq!(device.attribution, Attribution::Complete);
}

// T29
#[test]
fn processes_that_claim_far_more_than_the_device_are_not_believed() {
    let sample = gpu("g0", gib(11)).process(1, gib(10)).process(2, gib(10));
    let device = device(sample, &[(1, "a/main"), (2, "b/main")]);
    assert_eq!(device.containers, []);
    assert_eq!(device.unattributed, Some(gib(11)));
    assert_eq!(device.attribution, unavailable(AttributionGap::Inconsistent));
}
