//! The committed table of known messages, whole and decorated the ways logs decorate them.

mod death;
mod properties;
mod wordings;

use serde_json::Value;

use super::*;

/// Shapes with their sources, and texts that must not match.
fn table() -> Value {
    serde_json::from_str(include_str!("../../../tests/data/oom_messages.json")).expect("the table is JSON")
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_else(|| panic!("{key} is missing in {entry}"))
}

/// `(id, label, sample)` of each known shape.
fn known() -> Vec<(String, String, String)> {
    let table = table();
    let shapes = table["shapes"].as_array().expect("shapes are a list");
    let own = |entry: &Value, key: &str| text(entry, key).to_owned();
    shapes.iter().map(|entry| (own(entry, "id"), own(entry, "label"), own(entry, "sample_invented_numbers"))).collect()
}

fn look_alikes() -> Vec<(String, String)> {
    let table = table();
    let entries = table["look_alikes_negative"].as_array().expect("look-alikes are a list");
    entries
        .iter()
        .map(|entry| (text(entry, "id").to_owned(), text(entry, "sample_invented_numbers").to_owned()))
        .collect()
}

fn fits(label: &str, kind: Kind) -> bool {
    match label {
        "gpu_oom" => matches!(kind, Kind::DeviceFull | Kind::SelfImposedLimit),
        "gpu_oom_secondary" => kind == Kind::Secondary,
        "gpu_oom_probable" => kind == Kind::Probable,
        "gpu_startup_no_fit" => kind == Kind::StartupDoesNotFit,
        _ => false,
    }
}

#[test]
fn every_known_message_is_named_and_labelled() {
    for (id, label, sample) in known() {
        let report = classify(&sample).unwrap_or_else(|| panic!("{id} is not recognised"));
        assert!(fits(&label, report.kind), "{id}: {:?} for {label}", report.kind);
        // The logger around a message is no shape of its own.
        let expected = if id == "torch-jsonlog-wrapped" { "pt-reserved-total" } else { id.as_str() };
        assert_eq!(report.shape, expected, "{sample}");
        assert!(!advice(&report).is_empty(), "{id} leaves the person on call alone");
    }
}

#[test]
fn no_look_alike_is_taken_for_an_out_of_memory() {
    for (id, sample) in look_alikes() {
        assert_eq!(classify(&sample), None, "{id}");
        let among = format!("step 12 loss 0.3\n{sample}\nTraceback (most recent call last):\nKeyError: 'x'");
        assert_eq!(classify(&among), None, "{id}");
    }
}

#[test]
fn decoration_by_loggers_and_launchers_changes_nothing() {
    for (id, _, sample) in known() {
        let plain = classify(&sample).map(|report| (report.shape, report.kind, report.numbers));
        let each = |prefix: &str| format!("{prefix}{}\n", sample.replace('\n', &format!("\n{prefix}")));
        let json = serde_json::json!({"level": "ERROR", "message": sample}).to_string();
        let twice = serde_json::json!({"log": format!("{json}\n"), "stream": "stderr"}).to_string();
        for decorated in [
            each("[rank3]: "),
            each("2026-01-02T03:04:05.678Z stderr F "),
            each("(Worker_TP1 pid=812) ERROR 01-02 03:04:05 [core.py:700] "),
            each("\u{1b}[36m(RayWorker pid=9)\u{1b}[0m "),
            each("E0102 03:04:05.678901 140 "),
            format!("\u{1b}[31m{sample}\u{1b}[0m"),
            sample.replace('\n', "\r\n"),
            json,
            twice,
        ] {
            let found = classify(&decorated).map(|report| (report.shape, report.kind, report.numbers));
            assert_eq!(found, plain, "{id}: {decorated}");
        }
    }
}

#[test]
fn all_amounts_of_a_message_are_read() {
    let find = |id: &str| {
        let (_, _, sample) = known().into_iter().find(|(known, ..)| known == id).expect("a known id");
        classify(&sample).expect("a known message").numbers
    };
    let mib = |n: f64| Some(Bytes::from_f64(n * 1_048_576.0));
    let gib = |n: f64| mib(n * 1024.0);
    let numbers = find("pt-legacy-cached");
    assert_eq!((numbers.requested, numbers.capacity), (mib(41.25), gib(10.5)));
    assert_eq!((numbers.allocated, numbers.free), (gib(9.02), mib(7.5)));
    assert_eq!(numbers.idle(), mib(12.75));
    let numbers = find("pt-fraction-allowed");
    assert_eq!((numbers.allowed, numbers.reserved, numbers.free), (gib(4.7), gib(4.68), gib(6.8)));
    let numbers = find("pt-25-process-list");
    assert_eq!((numbers.requested, numbers.capacity, numbers.free), (mib(38.0), gib(23.5), mib(31.2)));
    assert_eq!((numbers.allocated, numbers.idle()), (gib(1.2), mib(205.0)));
    assert!(numbers.elsewhere() > Some(Bytes::gib(20)));
    let numbers = find("pt-async-allocator");
    assert_eq!((numbers.requested, numbers.capacity), (mib(900.0), gib(23.6)));
    assert_eq!((numbers.allocated, numbers.free, numbers.allowed), (gib(20.1), mib(11.0), None));
    let numbers = find("tf-bfc-stats");
    assert_eq!((numbers.capacity, numbers.allocated), (Some(Bytes(2_700_000_000)), Some(Bytes(2_690_000_000))));
    assert_eq!(find("tf-driver-failed-alloc").requested, Some(Bytes(50_331_648)));
    assert_eq!(find("jax-failed-request").requested, Some(Bytes(6_549_825_126)));
    assert_eq!(find("ort-bfcarena").requested, Some(Bytes(930_000_000)));
    let numbers = find("cupy");
    assert_eq!((numbers.requested, numbers.allocated), (Some(Bytes(1_070_000_000)), Some(Bytes(12_300_000_000))));
    let numbers = find("paddle");
    assert_eq!((numbers.requested, numbers.allocated, numbers.free), (gib(1.5), gib(7.1), mib(700.0)));
}
