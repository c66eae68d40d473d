//! Rules about the shape of the code that no compiler holds.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    assert!(!found.is_empty(), "no source under {folder}");
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            (name, fs::read_to_string(&path).expect("a source file is readable"))
        })
        .collect()
}

fn is_test(name: &str) -> bool {
    name.contains("tests")
}

/// Lines of code before the file's inline tests, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .enumerate()
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn forbid(folder: &str, words: &[&str], because: &str) {
    let mut broken = Vec::new();
    for (name, text) in sources(folder) {
        if is_test(&name) {
            continue;
        }
        for (number, line) in code(&text) {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                broken.push(format!("{name}:{number}: `{word}`"));
            }
        }
    }
    assert!(broken.is_empty(), "{because}:\n{}", broken.join("\n"));
}

#[test]
fn agent_and_controller_never_meet() {
    forbid("src/agent", &["crate::controller"], "the agent works without a controller");
    forbid("src/controller", &["crate::agent"], "the controller knows agents by their reports only");
    forbid("src/api", &["crate::agent", "crate::controller"], "wire types know no one who uses them");
}

#[test]
fn the_engine_has_no_clock_no_files_no_threads_and_no_kubernetes() {
    forbid(
        "src/engine",
        &[
            "SystemTime",
            "time::Instant",
            "std::fs",
            "std::env",
            "std::net",
            "std::thread",
            "Mutex",
            "RwLock",
            "tokio",
            "kube::",
            "async fn",
            "println!",
        ],
        "the engine is pure",
    );
}

#[test]
fn nobody_outside_the_simulator_knows_that_it_is_a_demo() {
    for folder in ["src/agent", "src/controller", "src/engine", "src/api"] {
        forbid(folder, &["gpumem_sim::", "demo"], "the product does not know that it is watched");
    }
}

#[test]
fn metric_names_are_written_in_one_place() {
    for folder in ["src/agent", "src/controller"] {
        let mut broken = Vec::new();
        for (name, text) in sources(folder) {
            if is_test(&name) {
                continue;
            }
            for (number, line) in code(&text) {
                if line.contains("\"gpumem_device_") || line.contains("\"gpumem_container_") {
                    broken.push(format!("{name}:{number}"));
                }
            }
        }
        assert!(broken.is_empty(), "these names belong into api::names::metric:\n{}", broken.join("\n"));
    }
}

#[test]
fn files_hold_one_thing_and_stay_readable() {
    let mut long = Vec::new();
    for folder in ["src", "tests"] {
        for (name, text) in sources(folder) {
            let lines = text.lines().count();
            if lines > 650 {
                long.push(format!("{name}: {lines} lines"));
            }
        }
    }
    assert!(long.is_empty(), "split these:\n{}", long.join("\n"));
}

#[test]
fn no_test_is_ignored_and_in_process_tests_do_not_sleep() {
    for (name, text) in sources("tests") {
        let own = name.ends_with("tidy.rs");
        assert!(own || !text.contains("#[ignore"), "{name} hides a test");
        if name.starts_with("tests/it/") && !own {
            assert!(!text.contains("thread::sleep"), "{name} sleeps: make the time instead");
        }
    }
}

#[test]
fn the_committed_definitions_are_the_generated_ones() {
    for (file, definition) in gpumem::api::crd::all() {
        let generated = gpumem::api::crd::yaml(&definition).expect("a definition prints");
        let committed = fs::read_to_string(root().join("crds").join(file)).unwrap_or_default();
        assert!(generated == committed, "crds/{file} is not what the code says: run `make generate`");
    }
}
