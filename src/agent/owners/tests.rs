use super::*;

#[test]
fn the_start_time_is_found_behind_any_name() {
    let zeros = "0 ".repeat(18);
    for name in ["(python)", "(a b)", "(a) R 1 (b)", "()"] {
        let stat = format!("17 {name} S {zeros}4242 0 0");
        assert_eq!(start_time(stat.as_bytes()), Ok(StartTime(4242)), "{name}");
    }
}

#[test]
fn malformed_stat_is_an_error_never_a_guess() {
    for bad in ["", "17", "17 (python", "17 (python) S 1 2 3", "17 (x) S \u{fffd}"] {
        assert_eq!(start_time(bad.as_bytes()), Err(Error::Malformed), "{bad}");
    }
    let zeros = "0 ".repeat(18);
    for start in ["-1", "abc", "99999999999999999999999"] {
        assert_eq!(start_time(format!("1 (x) S {zeros}{start} 0").as_bytes()), Err(Error::Malformed), "{start}");
    }
    assert_eq!(start_time(b"\xff\xff) \xff"), Err(Error::Malformed));
}

#[test]
fn system_errors_have_names_from_a_closed_set() {
    assert_eq!(Error::from(Errno::SRCH), Error::Gone);
    assert_eq!(Error::from(Errno::MFILE).kind(), "descriptors");
    assert_eq!(Error::from(Errno::ACCESS).kind(), "permission");
    assert_eq!(Error::from(Errno::INVAL).kind(), "io");
}
