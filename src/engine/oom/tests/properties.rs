//! Whatever a tenant writes into a log: no panic, and nobody else's lines change the verdict.

use proptest::prelude::*;

use super::super::*;
use super::known;

fn unrelated() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("Traceback (most recent call last):".to_owned()),
        Just("  File \"train.py\", line 12, in <module>".to_owned()),
        Just("INFO step=120 loss=0.31 used 12.00 GiB of 80.00 GiB".to_owned()),
        Just("E ProcessGroupNCCL.cpp:607] watchdog got timeout".to_owned()),
        "[ -~]{0,80}".prop_filter("no phrase of ours by accident", |line| classify(line).is_none()),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

/// Pieces of messages, escapes and numbers in any order: nearer to the parser's edges than plain noise.
fn hostile() -> impl Strategy<Value = String> {
    let pieces = vec![
        "CUDA out of memory",
        "Tried to allocate ",
        "99999999999999999999999 GiB",
        "1.2.3 MiB",
        "\\n",
        "\\\\\\",
        "\\u00",
        "\\ud800",
        "\u{1b}[",
        "\u{1b}",
        "\"level\":",
        "has a total capacity of",
        "é",
        " is free",
        " cached)",
        "(",
        "Limit:",
        "MaxInUse:",
        "\n",
        "[",
        "]:",
        "less than desired GPU memory utilization",
        "/",
        ",",
        "0",
        "bytes (total",
        "𝔊",
    ];
    proptest::collection::vec(proptest::sample::select(pieces), 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_is_read_without_harm(text in any::<String>(), shuffled in hostile(), code in any::<i32>()) {
        for text in [text, shuffled] {
            if let Some(report) = classify(&text) {
                prop_assert!(report.evidence.chars().count() <= EVIDENCE_CHARS);
                prop_assert!((1..=2).contains(&advice(&report).len()));
            }
            let _ = from_exit(code, Some(&text), Some(&text));
        }
    }

    #[test]
    fn unrelated_lines_around_a_message_keep_the_verdict(
        (_, _, sample) in proptest::sample::select(known()),
        before in unrelated(),
        after in unrelated(),
    ) {
        let alone = classify(&sample);
        prop_assert_eq!(classify(&format!("{before}\n{sample}\n{after}")).map(|r| (r.shape, r.kind)), alone.map(|r| (r.shape, r.kind)));
    }

    #[test]
    fn a_prefix_on_each_line_keeps_the_verdict(
        (_, _, sample) in proptest::sample::select(known()),
        prefix in r"(\[rank[0-9]{1,3}\]: |20[0-9]{2}-0[1-9]-1[0-9] 0[0-9]:00:00,[0-9]{3} |\(worker-[0-9]+ pid=[0-9]{1,6}\) |[a-z]{3,8}-[0-9] \| )",
    ) {
        let prefixed = format!("{prefix}{}", sample.replace('\n', &format!("\n{prefix}")));
        prop_assert_eq!(classify(&prefixed).map(|r| (r.shape, r.kind, r.numbers)), classify(&sample).map(|r| (r.shape, r.kind, r.numbers)));
    }
}

#[test]
fn only_the_end_of_a_huge_tail_is_read() {
    let filler = "é\\n\u{1b}[".repeat(200_000);
    assert_eq!(classify(&format!("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n{filler}")), None);
    assert!(classify(&format!("{filler}\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n")).is_some());
}

#[test]
fn a_tail_dense_with_phrases_is_read_to_its_end() {
    for piece in [
        "CUDA out of memory. Tried to allocate ",
        "out of memory\n",
        "limit:\n",
        "((((",
        "[\\\\n",
        "failed to alloc 1.1 ",
    ] {
        let tail = format!(
            "{}\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
            piece.repeat(MAX_TAIL_BYTES / piece.len())
        );
        assert!(classify(&tail).is_some_and(|report| report.evidence.len() <= 4 * EVIDENCE_CHARS), "{piece}");
    }
}
