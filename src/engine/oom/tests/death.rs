//! What ended a container, and what to do about it.

use super::super::*;

const FULL: &str = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.50 GiB total capacity; \
     30.00 GiB already allocated; 1.00 GiB free; 38.00 GiB reserved in total by PyTorch)";

fn kind(death: &Death) -> Option<Kind> {
    match death {
        Death::GpuOom(report) => Some(report.kind),
        Death::HostOomKilled | Death::Other => None,
    }
}

#[test]
fn the_kernels_word_beats_the_log() {
    assert_eq!(from_exit(137, Some("OOMKilled"), Some(FULL)), Death::HostOomKilled);
    assert_eq!(from_exit(1, Some("OOMKilled"), None), Death::HostOomKilled);
    let killed = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0";
    assert_eq!(from_exit(137, Some("Error"), Some(killed)), Death::HostOomKilled);
}

#[test]
fn an_error_exit_after_the_message_is_a_gpu_out_of_memory() {
    assert_eq!(kind(&from_exit(1, Some("Error"), Some(FULL))), Some(Kind::DeviceFull));
    assert_eq!(kind(&from_exit(134, None, Some(FULL))), Some(Kind::DeviceFull));
}

#[test]
fn a_process_stopped_from_outside_only_probably_died_of_it() {
    assert_eq!(kind(&from_exit(137, Some("Error"), Some(FULL))), Some(Kind::Probable));
    assert_eq!(kind(&from_exit(143, Some("Error"), Some(FULL))), Some(Kind::Probable));
    let retried = "failed to allocate 48.00M (50331648 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory";
    assert_eq!(kind(&from_exit(1, Some("Error"), Some(retried))), Some(Kind::Probable));
}

#[test]
fn a_handled_or_unrelated_end_is_other() {
    assert_eq!(from_exit(0, Some("Completed"), Some(FULL)), Death::Other);
    assert_eq!(from_exit(137, Some("Error"), None), Death::Other);
    assert_eq!(from_exit(1, Some("Error"), Some("KeyError: 'x'")), Death::Other);
    let echo = "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.";
    assert_eq!(from_exit(1, Some("Error"), Some(echo)), Death::Other);
}

#[test]
fn the_message_with_numbers_wins_over_its_echo() {
    let tail = format!("{FULL}\nterminate called\nwhat(): CUDA error: out of memory\n");
    assert_eq!(classify(&tail).map(|report| report.shape), Some("pt-reserved-total"));
}

#[test]
fn a_limit_is_blamed_only_if_it_refused() {
    let message = |free: &str, reserved: &str| {
        format!(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.00 GiB of which {free} is free. \
             40.00 GiB allowed; Of the allocated memory {reserved} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        )
    };
    let kind = |free, reserved| classify(&message(free, reserved)).map(|report| report.kind);
    assert_eq!(kind("30.00 GiB", "39.00 GiB"), Some(Kind::SelfImposedLimit));
    assert_eq!(kind("1.00 GiB", "39.00 GiB"), Some(Kind::SelfImposedLimit));
    assert_eq!(kind("1.00 GiB", "10.00 GiB"), Some(Kind::DeviceFull));
}

#[test]
fn advice_follows_the_numbers() {
    let first = |tail: &str| advice(&classify(tail).expect("an OOM")).first().copied().unwrap_or_default();
    assert!(first(FULL).contains("expandable_segments"));
    let crowded =
        FULL.replace("30.00 GiB already", "5.00 GiB already").replace("38.00 GiB reserved", "5.10 GiB reserved");
    assert!(first(&crowded).contains("Another process"));
    let huge = FULL.replace("2.00 GiB (", "200.00 GiB (");
    assert!(first(&huge).contains("larger than the whole device"));
    let limited = FULL.replace("1.00 GiB free;", "9.00 GiB free; 30.50 GiB allowed;");
    assert!(first(&limited).contains("memory fraction"));
}
