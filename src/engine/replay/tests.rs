use std::fmt::Write as _;

use std::time::Duration;

use super::*;

/// A leak of 20 MiB/s beside a flat neighbour on 24 GiB, a row a second.
fn leak() -> String {
    let mut text = "t_s,container,used_mib,capacity_mib\n".to_owned();
    for second in 0..1000 {
        let _ = writeln!(text, "{second},train,{},24576", 2000 + 20 * second);
        let _ = writeln!(text, "{second},serve,4000,24576");
    }
    text
}

fn options() -> Options {
    let mut options = Options::default();
    options.prediction.warm_up = Duration::from_mins(1);
    options.prediction.act_for = Duration::from_secs(45);
    options
}

#[test]
fn a_leak_is_raised_once_and_names_the_leaker() {
    let rows = parse(&leak()).unwrap();
    let episodes = episodes(&evaluate(&rows, &options()));
    assert_eq!(episodes.len(), 1, "{episodes:?}");
    assert_eq!((episodes[0].culprit.as_str(), episodes[0].cleared_s), ("train", None));
    assert!(episodes[0].raised_s < 400.0, "{episodes:?}");
    assert!(summary(&episodes).contains("train"));
}

#[test]
fn evaluations_are_objects_with_the_documented_fields() {
    let rows = parse(&leak()).unwrap();
    let evaluations = evaluate(&rows, &options());
    let last: serde_json::Value = serde_json::to_value(evaluations.last().unwrap()).unwrap();
    assert_eq!(last["container"], "train");
    assert_eq!(last["level"], "High");
    assert!(last["probability"]["900"].as_f64().unwrap() > 0.8);
    assert!(last["seconds_to_oom"]["q50"].as_f64().is_some());
    let first: serde_json::Value = serde_json::to_value(&evaluations[0]).unwrap();
    assert_eq!(first["level"], "Unknown");
    assert!(first["probability"].is_null() && first["seconds_to_oom"].is_null());
    assert!(table(&evaluations).lines().count() == evaluations.len() + 1);
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let wrong = |text: &str| parse(text).unwrap_err().to_string();
    assert!(wrong("").starts_with("line 1: the file is empty"));
    assert!(wrong("t_s,container\n").contains("`used_mib` is missing"));
    assert!(wrong("t_s,container,used_mib,colour\n").contains("unknown column `colour`"));
    assert!(wrong("t_s,container,used_mib,t_s\n").contains("appears twice"));
    let header = "t_s,container,used_mib,gpu\n";
    assert_eq!(wrong(&format!("{header}0,a,1\n")), "line 2: 3 values where the header has 4 columns");
    assert_eq!(wrong(&format!("{header}0,a,x,0\n")), "line 2: `used_mib` is not a number: `x`");
    assert_eq!(wrong(&format!("{header}0,a,NaN,0\n")), "line 2: `used_mib` is not a number: `NaN`");
    assert_eq!(wrong(&format!("{header}0,a,1,0\n\n1,a,-2,0\n")), "line 4: `used_mib` is negative: `-2`");
    assert_eq!(wrong(&format!("{header}5,a,1,0\n4,a,1,0\n")), "line 3: time of container `a` goes back from 5 to 4 s");
    assert_eq!(wrong(&format!("{header},a,1,0\n")), "line 2: `t_s` is empty");
}

#[test]
fn columns_come_in_any_order_and_containers_one_after_the_other() {
    let rows = parse("used_mib,t_s,container\r\n5,1,b\r\n6,2,b\r\n7,1,a\r\n").unwrap();
    let order: Vec<_> = rows.iter().map(|row| (row.t_s, row.container.as_str())).collect();
    assert_eq!(order, [(1.0, "b"), (1.0, "a"), (2.0, "b")]);
}

#[test]
fn a_declared_peak_keeps_a_loader_silent() {
    let mut options = options();
    options.prediction.declared_peak = Some(Bytes::gib(16));
    options.capacity = Some(Bytes::gib(24));
    let mut text = "t_s,container,used_mib\n".to_owned();
    for second in 0..1000 {
        let _ = writeln!(text, "{second},cache,{}", 2000 + 20 * second.min(700));
    }
    let rows = parse(&text).unwrap();
    assert_eq!(episodes(&evaluate(&rows, &options)), []);
}
