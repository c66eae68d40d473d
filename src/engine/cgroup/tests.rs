use proptest::prelude::*;

use super::*;

const UID: &str = "2f1b5c3e-0a4d-4e6f-9b7a-1c2d3e4f5a6b";
const UID_: &str = "2f1b5c3e_0a4d_4e6f_9b7a_1c2d3e4f5a6b";
const OTHER_UID: &str = "9c8b7a6d-1111-4222-8333-444455556666";
const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";
const OWN_UID: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
const ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER_ID: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

fn key(pod: &str, container: &str) -> ContainerKey {
    ContainerKey { pod: pod.into(), container: container.into() }
}

fn in_container(pod: &str, container: &str) -> Membership {
    Membership::Container(key(pod, container))
}

fn not_a_pod(why: NotAPod) -> Membership {
    Membership::NotAPod(why)
}

/// The agent's reading: it knows its own pod.
fn read(text: &str) -> Membership {
    parse(text, Some(&OWN_UID.into()))
}

/// A v2 text of one path.
fn v2(path: &str) -> String {
    format!("0::{path}\n")
}

/// Twelve lines of v1, all with this path.
fn v1(path: &str) -> String {
    let controllers = [
        "name=systemd",
        "memory",
        "blkio",
        "devices",
        "pids",
        "cpuset",
        "net_cls,net_prio",
        "freezer",
        "hugetlb",
        "cpu,cpuacct",
        "perf_event",
        "rdma",
    ];
    let lines = controllers.iter().enumerate().map(|(i, name)| format!("{}:{name}:{path}", 12 - i));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

// T20
#[test]
fn every_known_path_of_a_container_names_its_pod_and_id() {
    let slice = format!("kubepods-burstable-pod{UID_}.slice");
    let systemd = format!("/kubepods.slice/kubepods-burstable.slice/{slice}");
    let besteffort = format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice");
    let guaranteed = format!("/kubepods.slice/kubepods-pod{UID_}.slice");
    let kind = format!(
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID_}.slice"
    );
    let paths = [
        ("cgroupfs, burstable", format!("/kubepods/burstable/pod{UID}/{ID}")),
        ("cgroupfs, guaranteed", format!("/kubepods/pod{UID}/{ID}")),
        ("cgroupfs, CRI-O", format!("/kubepods/besteffort/pod{UID}/crio-{ID}")),
        ("systemd, containerd", format!("{systemd}/cri-containerd-{ID}.scope")),
        ("systemd, containerd, guaranteed", format!("{guaranteed}/cri-containerd-{ID}.scope")),
        ("systemd, CRI-O", format!("{besteffort}/crio-{ID}.scope")),
        ("systemd, CRI-O with its subdirectory", format!("{besteffort}/crio-{ID}.scope/container")),
        ("systemd, docker", format!("{guaranteed}/docker-{ID}.scope")),
        ("cgroupfs id under systemd", format!("/system.slice/containerd.service/{slice}:cri-containerd:{ID}")),
        ("cgroupfs id under systemd, at the root", format!("/{slice}:cri-containerd:{ID}")),
        ("--cgroup-root, cgroupfs", format!("/machines/kubepods/burstable/pod{UID}/{ID}")),
        ("--cgroup-root, systemd", format!("{kind}/cri-containerd-{ID}.scope")),
        ("kind on cgroupfs", format!("/docker/{OTHER_ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}")),
        ("kind on systemd", format!("/system.slice/docker-{OTHER_ID}.scope{kind}/cri-containerd-{ID}.scope")),
        ("another pod of the reader's class, cgroupfs", format!("/../../pod{UID}/{ID}")),
        ("another pod of the reader's class, systemd", format!("/../../{slice}/cri-containerd-{ID}.scope")),
        ("another class, cgroupfs", format!("/../../../burstable/pod{UID}/{ID}")),
        (
            "another class, systemd",
            format!("/../../../kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope/container"),
        ),
        ("docker within the container", format!("/kubepods/burstable/pod{UID}/{ID}/docker/{OTHER_ID}")),
        ("services within the container", format!("{systemd}/cri-containerd-{ID}.scope/system.slice/sshd.service")),
        ("a cgroup already removed", format!("/kubepods/burstable/pod{UID}/{ID} (deleted)")),
    ];
    for (name, path) in paths {
        assert_eq!(read(&v2(&path)), in_container(UID, ID), "{name}, v2");
        assert_eq!(read(&v1(&path)), in_container(UID, ID), "{name}, v1");
        assert_eq!(parse(&v2(&path), None), in_container(UID, ID), "{name}, reader outside a pod");
    }
}

// T20
#[test]
fn a_static_pod_keeps_the_hash_that_is_its_uid() {
    for path in [
        format!("/kubepods/burstable/pod{STATIC_UID}/{ID}"),
        format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC_UID}.slice/crio-{ID}.scope"),
    ] {
        assert_eq!(read(&v2(&path)), in_container(STATIC_UID, ID), "{path}");
    }
}

// T20
#[test]
fn every_path_outside_a_pods_containers_says_why() {
    let pod = format!("/kubepods/burstable/pod{UID}");
    let scopes = format!("/kubepods.slice/kubepods-pod{UID_}.slice");
    let paths = [
        (NotAPod::Root, "/".to_owned()),
        (NotAPod::Root, "/..".to_owned()),
        (NotAPod::Host, "/system.slice/sshd.service".to_owned()),
        (NotAPod::Host, "/../../../../user.slice/user-1000.slice/session-2.scope".to_owned()),
        (NotAPod::Host, "/kubepods/burstable".to_owned()),
        (NotAPod::Host, format!("/kubepods/burstable/pod{UID_}/x")),
        (NotAPod::Host, format!("/user.slice/user-pod{UID_}.slice")),
        (NotAPod::PlainContainer, format!("/docker/{ID}")),
        (NotAPod::PlainContainer, format!("/system.slice/docker-{ID}.scope")),
        (NotAPod::PlainContainer, format!("/../../../docker/{ID}")),
        (NotAPod::PlainContainer, format!("/../../../{ID}")),
        (NotAPod::PlainContainer, format!("/kubepods/burstable/pod{}/{ID}", &UID[1..])),
        (NotAPod::PlainContainer, format!("/kubepods.slice/kubepods-pod{UID}.slice/crio-{ID}.scope")),
        (NotAPod::PodOverhead, pod.clone()),
        (NotAPod::PodOverhead, format!("{pod}/kata_overhead")),
        (NotAPod::PodOverhead, format!("{pod}/{}", &ID[1..])),
        (NotAPod::RuntimeMonitor, format!("{scopes}/crio-conmon-{ID}.scope")),
        (NotAPod::RuntimeMonitor, format!("{pod}/crio-conmon-{ID}")),
        (NotAPod::RuntimeMonitor, format!("/system.slice/crio-conmon-{ID}.scope")),
        (NotAPod::RuntimeMonitor, format!("/../crio-conmon-{ID}.scope")),
        (NotAPod::Malformed, format!("{pod}/../{ID}")),
    ];
    for (why, path) in paths {
        assert_eq!(read(&v2(&path)), not_a_pod(why), "{path}");
        assert_eq!(read(&v1(&path)), not_a_pod(why), "{path}");
    }
}

// T20
#[test]
fn a_sibling_of_the_reader_needs_the_readers_own_pod() {
    for path in [
        format!("/../{ID}"),
        format!("/../cri-containerd-{ID}.scope"),
        format!("/../crio-{ID}.scope/container"),
        format!("/../../crio-{ID}.scope/container"),
    ] {
        assert_eq!(read(&v2(&path)), in_container(OWN_UID, ID), "{path}");
        assert_eq!(parse(&v2(&path), None), not_a_pod(NotAPod::OwnPodUnknown), "{path}");
    }
}

// T20
#[test]
fn a_hybrid_text_is_read_by_whichever_line_names_the_container() {
    let path = format!("/kubepods/burstable/pod{UID}/{ID}");
    assert_eq!(read(&format!("{}0::/\n", v1(&path))), in_container(UID, ID));
    assert_eq!(read(&format!("1:name=systemd:/\n0::{path}\n")), in_container(UID, ID));
    assert_eq!(read(&format!("garbage\n\n3:cpu:relative\n0::{path}")), in_container(UID, ID));
}

#[test]
fn a_text_of_no_known_form_is_malformed() {
    for text in ["", "\n", "0:", "0::", "::/kubepods", "x::/", "0:/kubepods", "\0\u{fffd}", "0::kubepods/x"] {
        assert_eq!(read(text), not_a_pod(NotAPod::Malformed), "{text:?}");
    }
}

#[test]
fn a_text_beyond_the_bound_is_not_read() {
    let text = format!("{}{}", v2(&format!("/kubepods/pod{UID}/{ID}")), "\n".repeat(MAX_TEXT_BYTES));
    assert_eq!(read(&text), not_a_pod(NotAPod::TooLong));
}

#[test]
fn lines_that_name_different_containers_blame_nobody() {
    let text = format!("2:cpu:/kubepods/pod{UID}/{ID}\n1:memory:/kubepods/pod{OTHER_UID}/{OTHER_ID}\n");
    assert_eq!(read(&text), not_a_pod(NotAPod::Conflicting));
}

#[test]
fn of_nested_pods_the_outermost_known_to_the_node_is_named() {
    let path = format!("/kubepods/pod{UID}/{ID}/kubepods/burstable/pod{OTHER_UID}/{OTHER_ID}");
    let nested = read(&v2(&path));
    assert_eq!(nested, Membership::Nested(vec![key(UID, ID), key(OTHER_UID, OTHER_ID)]));
    let known = |pods: &'static [&'static str]| move |pod: &PodUid| pods.contains(&pod.as_str());
    assert_eq!(nested.container(known(&[UID])), Some(&key(UID, ID)));
    assert_eq!(nested.container(known(&[OTHER_UID])), Some(&key(OTHER_UID, OTHER_ID)));
    assert_eq!(nested.container(known(&[])), Some(&key(OTHER_UID, OTHER_ID)));
    // A container that forges a victim's path below its own cgroup stays the one to blame.
    assert_eq!(nested.container(known(&[UID, OTHER_UID])), Some(&key(UID, ID)));
    let sibling = read(&v2(&format!("/../{ID}/pod{OTHER_UID}/{OTHER_ID}")));
    assert_eq!(sibling.container(known(&[OWN_UID, OTHER_UID])), Some(&key(OWN_UID, ID)));
}

#[test]
fn hierarchies_a_nested_runtime_does_not_use_do_not_contradict() {
    let outer = format!("/kubepods/pod{UID}/{ID}");
    let text = format!("2:cpu:{outer}\n1:name=systemd:{outer}/kubepods/pod{OTHER_UID}/{OTHER_ID}\n");
    assert_eq!(read(&text), Membership::Nested(vec![key(UID, ID), key(OTHER_UID, OTHER_ID)]));
}

#[test]
fn endless_nesting_keeps_the_outermost_and_the_innermost() {
    let inner = format!("/pod{OTHER_UID}/{OTHER_ID}").repeat(100);
    let Membership::Nested(containers) = read(&v2(&format!("/kubepods/pod{UID}/{ID}{inner}/pod{STATIC_UID}/{ID}")))
    else {
        panic!("expected nested containers");
    };
    assert_eq!(containers.len(), MAX_NESTED);
    assert_eq!(containers.first(), Some(&key(UID, ID)));
    assert_eq!(containers.last(), Some(&key(STATIC_UID, ID)));
}

fn uid() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "[0-9a-f]{32}"]
}

fn path() -> impl Strategy<Value = (String, String, String)> {
    let prefix =
        prop_oneof!["", "/kubelet\\.slice", "/docker/[0-9a-f]{64}/kubelet", "(/\\.\\.){3,5}", "(/[a-z_]{1,12}){1,3}"];
    let class = prop_oneof![Just(""), Just("burstable"), Just("besteffort")];
    (prefix, class, uid(), "[0-9a-f]{64}", 0..6_u8, prop_oneof!["", "/container", "/[a-z]{1,9}\\.service"]).prop_map(
        |(prefix, class, uid, id, layout, suffix)| {
            let dash = if class.is_empty() { "" } else { "-" };
            let slice = format!("kubepods{dash}{class}-pod{}.slice", uid.replace('-', "_"));
            let path = match layout {
                0 => format!("{prefix}/kubepods/{class}/pod{uid}/{id}{suffix}"),
                1 => format!("{prefix}/kubepods.slice/{slice}/cri-containerd-{id}.scope{suffix}"),
                2 => format!("{prefix}/kubepods.slice/{slice}/crio-{id}.scope{suffix}"),
                3 => format!("{prefix}/kubepods.slice/{slice}/docker-{id}.scope{suffix}"),
                4 => format!("{prefix}/{slice}:cri-containerd:{id}{suffix}"),
                _ => format!("/../../pod{uid}/{id}{suffix}"),
            };
            (path, uid, id)
        },
    )
}

/// Texts made of the pieces the parser looks for, in any order.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/".to_owned()),
        Just("/..".to_owned()),
        Just("\n".to_owned()),
        Just("0::".to_owned()),
        Just(":".to_owned()),
        Just("-".to_owned()),
        Just(".slice".to_owned()),
        Just(".scope".to_owned()),
        Just("kubepods".to_owned()),
        Just(format!("pod{UID}")),
        Just(format!("kubepods-pod{UID_}.slice")),
        Just(ID.to_owned()),
        Just(format!("crio-conmon-{ID}.scope")),
        any::<String>(),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_path_a_kubelet_makes_gives_back_its_uid_and_id((path, uid, id) in path()) {
        prop_assert_eq!(read(&v2(&path)), in_container(&uid, &id));
        prop_assert_eq!(read(&v1(&path)), in_container(&uid, &id));
    }

    #[test]
    fn any_text_gives_an_answer(text in any::<String>()) {
        let _ = parse(&text, None);
    }

    #[test]
    fn whatever_is_named_has_the_form_of_an_identity(text in soup()) {
        let containers = match read(&text) {
            Membership::Container(container) => vec![container],
            Membership::Nested(containers) => {
                prop_assert!((2..=MAX_NESTED).contains(&containers.len()));
                containers
            }
            Membership::NotAPod(_) => vec![],
        };
        for container in containers {
            prop_assert!(is_lower_hex(container.container.as_str(), 64));
            prop_assert_eq!(pod_uid(container.pod.as_str(), '-'), Some(container.pod.clone()));
        }
    }
}
