//! Feeds arbitrary text to the cgroup parser, as any container may choose the names of its own cgroups.
//!
//! Run from the repository root: `cargo +nightly fuzz run --fuzz-dir tests/fuzz cgroup`
#![no_main]

use gpumem_engine::cgroup::{Membership, parse};
use gpumem_engine::identity::PodUid;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let own_pod = PodUid::from("aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee");
    for own_pod in [None, Some(&own_pod)] {
        let membership = parse(text, own_pod);
        if let Some(container) = membership.container(|_| true) {
            assert_eq!(container.container.as_str().len(), 64);
            assert!(matches!(container.pod.as_str().len(), 32 | 36));
        }
        if let Membership::Nested(containers) = membership {
            assert!(containers.len() > 1);
        }
    }
});
