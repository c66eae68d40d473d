//! `gpumem checkpoint answer`: what it reads, when it saves, and what it answers.

use std::time::Duration;

use gpumem::cli::checkpoint::{Answerer, Args, Error, Noted, Patience, Patient, Turn, Unanswered, save, take};
use jiff::Timestamp;
use serde_json::json;

use crate::cluster::Cluster;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn asked(id: &str, until: i64) -> Noted {
    Noted { request: Some(id.to_owned()), deadline: Some(at(until)), done: None }
}

#[test]
fn the_downward_api_file_is_read_and_others_annotations_are_passed_over() {
    let text = "kubernetes.io/config.seen=\"2026-11-29T10:00:00Z\"\n\
        gpumem.dev/checkpoint-deadline=\"2026-11-29T10:05:00Z\"\n\
        gpumem.dev/checkpoint-done=\"old\"\n\
        gpumem.dev/checkpoint-request=\"a1-b2.3\"\n\
        note=\"first\\ngpumem.dev/checkpoint-request=\\\"forged\\\"\"";
    let noted = Noted::parse(text);
    assert_eq!(noted.request.as_deref(), Some("a1-b2.3"));
    assert_eq!(noted.deadline, Some("2026-11-29T10:05:00Z".parse().unwrap()));
    assert_eq!(noted.done.as_deref(), Some("old"));
    let long = format!("gpumem.dev/checkpoint-request=\"{}\"", "x".repeat(300));
    for nothing in ["", "\n", "gpumem.dev/checkpoint-request", "gpumem.dev/checkpoint-request=", &long] {
        assert_eq!(Noted::parse(nothing), Noted::default(), "{nothing}");
    }
    let cut = "gpumem.dev/checkpoint-request=\"a1\"\ngpumem.dev/checkpoint-deadline=\"2026-";
    assert_eq!(Noted::parse(cut).deadline, None, "a time that is none bounds nothing, and harms nothing");
}

#[test]
fn a_request_is_saved_once_answered_once_and_the_next_one_again() {
    let mut answerer = Answerer::default();
    assert_eq!(answerer.turn(&Noted::default(), at(0)), Turn::Rest);
    assert_eq!(answerer.turn(&asked("one", 60), at(1)), Turn::Save("one".to_owned(), 59 * SECOND));
    answerer.saved(true, at(20));
    assert_eq!(answerer.turn(&asked("one", 60), at(20)), Turn::Answer("one".to_owned()));
    answerer.wrote(true, at(21));
    // The file does not show the answer yet.
    assert_eq!(answerer.turn(&asked("one", 60), at(22)), Turn::Rest);
    assert_eq!(answerer.turn(&Noted::default(), at(23)), Turn::Rest, "withdrawn");
    assert_eq!(answerer.turn(&asked("two", 90), at(30)), Turn::Save("two".to_owned(), 60 * SECOND));
}

#[test]
fn a_save_that_fails_is_never_answered_and_is_tried_three_times_within_its_time() {
    let mut answerer = Answerer::default();
    let mut saves = 0;
    for second in 0..120 {
        match answerer.turn(&asked("one", 60), at(second)) {
            Turn::Save(_, left) => {
                saves += 1;
                assert!(left <= Duration::from_secs(60 - second.unsigned_abs()));
                answerer.saved(false, at(second));
            }
            Turn::Rest => {}
            Turn::Answer(id) => panic!("{id} was answered at {second} s"),
        }
    }
    assert_eq!(saves, 3);
    assert_eq!(Answerer::default().turn(&asked("late", 60), at(60)), Turn::Rest, "the time is over");
}

#[test]
fn an_answer_that_cannot_be_written_is_tried_until_it_is_without_saving_again() {
    let mut answerer = Answerer::default();
    assert!(matches!(answerer.turn(&asked("one", 60), at(0)), Turn::Save(..)));
    answerer.saved(true, at(10));
    let mut writes = 0;
    for second in 10..200 {
        match answerer.turn(&asked("one", 60), at(second)) {
            Turn::Answer(_) => {
                writes += 1;
                answerer.wrote(second > 100, at(second));
            }
            Turn::Rest => {}
            Turn::Save(..) => panic!("saved twice"),
        }
    }
    assert!((15..=25).contains(&writes), "with a pause in between: {writes}");
}

#[test]
fn a_sidecar_that_was_restarted_does_not_save_what_it_answered_before() {
    let noted = Noted { done: Some("one".to_owned()), ..asked("one", 60) };
    assert_eq!(Answerer::default().turn(&noted, at(1)), Turn::Rest);
}

#[test]
fn a_file_that_cannot_be_read_for_half_a_minute_will_not_come() {
    let mut patience = Patience::default();
    assert_eq!(patience.unread(5 * SECOND), Patient::Begins);
    assert_eq!((6..35).map(|second| patience.unread(second * SECOND)).find(|now| *now != Patient::Waits), None);
    patience.read();
    assert_eq!(patience.unread(36 * SECOND), Patient::Begins, "kubelet replaced it");
    assert_eq!(patience.unread(66 * SECOND), Patient::Ends);
    let error = Error::Annotations { file: "/podinfo/annotations".into(), source: std::io::ErrorKind::NotFound.into() };
    let text = error.to_string();
    assert!(text.contains("/podinfo/annotations could not be read for 30 s") && text.contains("downwardAPI"), "{text}");
    assert_eq!(error.kind(), "Annotations");
}

#[test]
fn a_request_without_a_readable_deadline_has_two_hours() {
    let noted = Noted { deadline: None, ..asked("one", 60) };
    assert_eq!(Answerer::default().turn(&noted, at(0)), Turn::Save("one".to_owned(), Duration::from_hours(2)));
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test]
async fn the_save_command_hears_the_id_and_its_exit_code_is_its_word() {
    let knows = words(&["sh", "-c", "test \"$GPUMEM_CHECKPOINT_REQUEST\" = one"]);
    save(&knows, "one", 10 * SECOND).await.unwrap();
    assert!(matches!(save(&knows, "two", 10 * SECOND).await, Err(Unanswered::Failed(_))));
    assert!(matches!(save(&words(&["/none"]), "one", SECOND).await, Err(Unanswered::Start(_))));
    save(&[], "one", SECOND).await.unwrap();
}

#[tokio::test]
async fn a_save_command_past_its_deadline_is_told_to_end() {
    let endless = words(&["sh", "-c", "trap 'exit 0' TERM; while :; do :; done"]);
    assert!(matches!(save(&endless, "one", Duration::from_millis(50)).await, Err(Unanswered::Late)));
}

#[tokio::test]
async fn the_answer_is_written_to_this_pod_and_to_nothing_else_of_it() {
    let cluster = Cluster::new();
    cluster.deployment("train", 1);
    let client = cluster.api.client();
    let before = cluster.world().list("", "pods", "")[0].clone();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let args = Args {
        annotations: "/none".into(),
        pod: text(&before["metadata"]["name"]),
        namespace: text(&before["metadata"]["namespace"]),
        interval: SECOND,
        exec: Vec::new(),
    };
    let mut answerer = Answerer::default();
    for _ in 0..2 {
        let turn = answerer.turn(&asked("one", 60), at(0));
        take(&client, &args, &mut answerer, turn).await;
    }
    let after = cluster.world().list("", "pods", "")[0].clone();
    assert_eq!(after["metadata"]["annotations"]["gpumem.dev/checkpoint-done"], json!("one"));
    assert_eq!(after["spec"], before["spec"]);
    let gone = Args { pod: "gone".to_owned(), ..args };
    let mut answerer = Answerer::default();
    let _ = answerer.turn(&asked("two", 60), at(0));
    answerer.saved(true, at(0));
    take(&client, &gone, &mut answerer, Turn::Answer("two".to_owned())).await;
    assert_eq!(answerer.turn(&asked("two", 60), Timestamp::now()), Turn::Rest, "it pauses, and tries again later");
}
