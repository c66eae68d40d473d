use proptest::prelude::*;

use super::*;

fn wanted() -> Wanted {
    Wanted {
        expandable_segments: true,
        tensorflow_growth: true,
        jax_growth: true,
        fraction: None,
        torch: None,
        hook: None,
        may_be_suspended: false,
    }
}

fn container(env: &[(&str, &str)]) -> Container {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), Given::Literal((*value).to_owned()))).collect();
    Container { sees_gpu: true, env, ..Container::default() }
}

/// The value of `name` after the merge; the empty text where it is not there.
fn after(container: &Container, wanted: &Wanted, name: &str) -> String {
    let after = applied(container, &merge(container, wanted));
    match after.env.iter().rev().find(|(other, _)| other == name) {
        Some((_, Given::Literal(value))) => value.clone(),
        Some((_, Given::ValueFrom)) => "valueFrom".to_owned(),
        None => String::new(),
    }
}

fn why(container: &Container, wanted: &Wanted, name: &str) -> Vec<Why> {
    merge(container, wanted).kept.into_iter().filter(|kept| kept.name == name).map(|kept| kept.why).collect()
}

#[test]
fn a_list_gains_the_missing_key_at_its_end_and_nothing_else_changes() {
    for (own, expected) in [
        ("max_split_size_mb:128", "max_split_size_mb:128,expandable_segments:True"),
        (
            "roundup_power2_divisions:[256:1,512:2,>:4]",
            "roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True",
        ),
        ("garbage_collection_threshold:0.8 ", "garbage_collection_threshold:0.8 ,expandable_segments:True"),
        ("backend:native", "backend:native,expandable_segments:True"),
    ] {
        assert_eq!(after(&container(&[(TORCH, own)]), &wanted(), TORCH), expected);
    }
}

#[test]
fn what_the_user_said_stands() {
    for own in ["expandable_segments:False", "max_split_size_mb:64,expandable_segments:False", ""] {
        let container = container(&[(TORCH, own), (TENSORFLOW, "false"), (JAX_PREALLOCATE, "true")]);
        assert_eq!(merge(&container, &wanted()).changes, [], "{own}");
        assert_eq!(why(&container, &wanted(), TORCH), [Why::UserSet]);
    }
}

#[test]
fn without_a_value_every_version_of_pytorch_reads_the_name_that_is_added() {
    let merged = merge(&container(&[]), &wanted());
    let added: Vec<_> = merged.changes.iter().map(|change| (change.name.as_str(), change.after.as_str())).collect();
    assert_eq!(added, [(TORCH, "expandable_segments:True"), (TENSORFLOW, "true"), (JAX_PREALLOCATE, "false")]);
}

#[test]
fn the_name_that_the_user_uses_is_used_and_both_where_both_are() {
    let new = container(&[(TORCH_NEW, "max_split_size_mb:64")]);
    assert_eq!(after(&new, &wanted(), TORCH_NEW), "max_split_size_mb:64,expandable_segments:True");
    assert_eq!(after(&new, &wanted(), TORCH), "");
    let both = container(&[(TORCH_NEW, "max_split_size_mb:64"), (TORCH, "backend:cudaMallocAsync")]);
    assert_eq!(after(&both, &wanted(), TORCH_NEW), "max_split_size_mb:64,expandable_segments:True");
    assert_eq!(after(&both, &wanted(), TORCH), "backend:cudaMallocAsync", "nothing is copied across");
    assert_eq!(why(&both, &wanted(), TORCH), [Why::AsyncBackend]);
}

#[test]
fn an_unreadable_list_is_left_alone_with_a_warning() {
    for own in [
        "max_split_size_mb:128,",
        ",a:1",
        "expandable_segments:true",
        "a",
        ":1",
        "a:",
        "a:[1",
        "a:1]",
        "a:[[1]]",
        "a b:,",
    ] {
        let container = container(&[(TORCH, own)]);
        let merged = merge(&container, &wanted());
        assert!(merged.changes.iter().all(|change| change.name != TORCH), "{own}");
        let kept = merged.kept.iter().find(|kept| kept.name == TORCH).map(|kept| (&kept.why, kept.is_warning));
        assert!(matches!(kept, Some((Why::Unreadable(_), true))), "{own}: {kept:?}");
    }
    let long = container(&[(TORCH, &"a:1,".repeat(2000))]);
    assert_eq!(why(&long, &wanted(), TORCH), [Why::Unreadable(alloc_conf::Problem::TooLong)]);
}

#[test]
fn what_cannot_be_seen_is_not_shadowed() {
    let mut from = container(&[]);
    from.env.push((TORCH.to_owned(), Given::ValueFrom));
    assert_eq!(after(&from, &wanted(), TORCH), "valueFrom");
    assert_eq!(why(&from, &wanted(), TORCH), [Why::ValueFrom]);
    let hidden = Container { has_env_from: true, ..container(&[]) };
    assert_eq!(merge(&hidden, &wanted()).changes, []);
    // An entry in env beats envFrom already, so it may be added to.
    let mixed = Container { has_env_from: true, ..container(&[(TORCH, "max_split_size_mb:64")]) };
    assert_eq!(after(&mixed, &wanted(), TORCH), "max_split_size_mb:64,expandable_segments:True");
    let reference = container(&[(TORCH, "$(OTHER),max_split_size_mb:64")]);
    assert_eq!(why(&reference, &wanted(), TORCH), [Why::Reference]);
}

#[test]
fn of_two_entries_the_later_counts_and_is_changed() {
    let twice = container(&[(TORCH, "expandable_segments:False"), ("X", "1"), (TORCH, "max_split_size_mb:64")]);
    let after = applied(&twice, &merge(&twice, &wanted()));
    assert_eq!(after.env[0], (TORCH.to_owned(), Given::Literal("expandable_segments:False".to_owned())));
    assert_eq!(
        after.env[2],
        (TORCH.to_owned(), Given::Literal("max_split_size_mb:64,expandable_segments:True".to_owned()))
    );
}

#[test]
fn a_sleep_mode_and_a_pod_that_may_be_suspended_get_no_expandable_segments() {
    let saver = Container {
        words: vec!["vllm".to_owned(), "serve".to_owned(), "--enable-sleep-mode".to_owned()],
        ..container(&[])
    };
    assert_eq!(why(&saver, &wanted(), TORCH), [Why::MemorySaver]);
    let wanted = Wanted { may_be_suspended: true, ..wanted() };
    assert_eq!(why(&container(&[]), &wanted, TORCH), [Why::Suspendable]);
    assert_eq!(after(&container(&[]), &wanted, TENSORFLOW), "true");
}

#[test]
fn a_fraction_goes_to_a_pytorch_that_is_known_to_understand_it() {
    let own = container(&[(TORCH, "garbage_collection_threshold:0.8")]);
    let mut wanted = Wanted { fraction: Some(0.5), expandable_segments: false, ..wanted() };
    for old in [None, Some(TorchVersion { major: 2, minor: 9 }), Some(TorchVersion { major: 1, minor: 13 })] {
        wanted.torch = old;
        assert_eq!(after(&own, &wanted, TORCH), "garbage_collection_threshold:0.8");
        assert_eq!(why(&own, &wanted, TORCH), [Why::TorchVersion]);
    }
    wanted.torch = Some(TorchVersion { major: 2, minor: 12 });
    assert_eq!(after(&own, &wanted, TORCH), "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5");
}

#[test]
fn jax_gets_one_fraction_at_most() {
    let wanted = Wanted { fraction: Some(0.25), ..wanted() };
    assert_eq!(after(&container(&[]), &wanted, JAX_FRACTION), "0.25");
    for (name, value) in [(JAX_FRACTION_NEW, "0.4"), (XLA_FLAGS, "--xla_gpu_memory_fraction_policy=0.75+")] {
        let container = container(&[(name, value)]);
        assert_eq!(after(&container, &wanted, JAX_FRACTION), "", "{name}");
        assert_eq!(why(&container, &wanted, JAX_FRACTION), [Why::OtherFraction]);
    }
    assert_eq!(after(&container(&[(JAX_FRACTION, ".9")]), &wanted, JAX_FRACTION), ".9");
}

#[test]
fn the_hook_goes_behind_the_users_own_path_and_not_where_it_is_switched_off() {
    let wanted = Wanted { hook: Some("/hook".to_owned()), ..wanted() };
    for (own, expected) in
        [(None, "/hook"), (Some("/app"), "/app:/hook"), (Some("/hook:/app"), "/hook:/app"), (Some(""), "/hook")]
    {
        let env: Vec<_> = own.iter().map(|own| (PYTHONPATH, *own)).collect();
        assert_eq!(after(&container(&env), &wanted, PYTHONPATH), expected);
    }
    let off = container(&[(HOOK, "0")]);
    assert_eq!(after(&off, &wanted, PYTHONPATH), "");
    assert_eq!(why(&off, &wanted, HOOK), [Why::UserSet]);
}

#[test]
fn a_container_without_a_gpu_gains_nothing() {
    let sidecar = Container { sees_gpu: false, ..container(&[(TORCH, "max_split_size_mb:64")]) };
    let merged = merge(&sidecar, &wanted());
    assert_eq!((merged.changes.len(), merged.kept.len()), (0, 1));
    assert_eq!(merged.kept[0].why, Why::NoGpu);
}

fn entry() -> impl Strategy<Value = (String, Given)> {
    let name = prop_oneof![
        Just(TORCH),
        Just(TORCH_NEW),
        Just(TENSORFLOW),
        Just(JAX_PREALLOCATE),
        Just(JAX_FRACTION),
        Just(JAX_FRACTION_NEW),
        Just(XLA_FLAGS),
        Just(PYTHONPATH),
        Just(HOOK),
        Just("OTHER"),
    ];
    let conf = prop_oneof![
        Just("expandable_segments:True".to_owned()),
        Just("expandable_segments:False".to_owned()),
        Just("backend:cudaMallocAsync".to_owned()),
        Just("max_split_size_mb:64".to_owned()),
        Just("a:[1:2,>:3]".to_owned()),
        Just(String::new()),
        Just("per_process_memory_fraction:0.3".to_owned()),
        "[a-z:,\\[\\]$() ]{0,12}",
    ];
    let value = prop_oneof![
        6 => prop::collection::vec(conf, 0..3).prop_map(|parts| Given::Literal(parts.join(","))),
        1 => Just(Given::ValueFrom),
    ];
    (name, value).prop_map(|(name, value)| (name.to_owned(), value))
}

fn any_container() -> impl Strategy<Value = Container> {
    let words =
        prop::collection::vec(prop_oneof![Just("python".to_owned()), Just("--enable-sleep-mode".to_owned())], 0..3);
    (prop::collection::vec(entry(), 0..8), any::<bool>(), any::<bool>(), words)
        .prop_map(|(env, sees_gpu, has_env_from, words)| Container { sees_gpu, env, has_env_from, words })
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    let torch = prop_oneof![Just(None), Just(Some(TorchVersion { major: 2, minor: 9 })), Just(Some(TORCH_FRACTION))];
    (any::<[bool; 5]>(), prop::option::of(0.01..1.0), torch).prop_map(
        |([segments, tensorflow, jax, hook, suspended], fraction, torch)| Wanted {
            expandable_segments: segments,
            tensorflow_growth: tensorflow,
            jax_growth: jax,
            fraction,
            torch,
            hook: hook.then(|| "/opt/hook".to_owned()),
            may_be_suspended: suspended,
        },
    )
}

proptest! {
    #[test]
    fn a_second_merge_changes_nothing(container in any_container(), wanted in any_wanted()) {
        let once = applied(&container, &merge(&container, &wanted));
        prop_assert_eq!(merge(&once, &wanted).changes, vec![]);
        prop_assert_eq!(&applied(&once, &merge(&once, &wanted)), &once);
    }

    #[test]
    fn every_character_and_place_of_the_users_stays(container in any_container(), wanted in any_wanted()) {
        let merged = merge(&container, &wanted);
        let after = applied(&container, &merged);
        prop_assert!(after.env.len() >= container.env.len());
        for ((name, own), (name_after, now)) in container.env.iter().zip(&after.env) {
            prop_assert_eq!(name, name_after);
            match (own, now) {
                (Given::Literal(own), Given::Literal(now)) => prop_assert!(now.starts_with(own.as_str())),
                (own, now) => prop_assert_eq!(own, now),
            }
        }
        for change in &merged.changes {
            prop_assert!(change.before.as_deref() != Some(change.after.as_str()));
        }
    }

    #[test]
    fn the_users_keys_keep_their_values_and_the_result_is_readable(container in any_container(), wanted in any_wanted()) {
        for change in merge(&container, &wanted).changes {
            if change.name != TORCH && change.name != TORCH_NEW { continue; }
            let after = AllocConf::parse(&change.after);
            prop_assert!(after.is_ok(), "{}", change.after);
            let before = AllocConf::parse(change.before.as_deref().unwrap_or("x:1"));
            if let (Ok(after), Ok(before)) = (after, before) {
                for key in ["expandable_segments", "backend", "max_split_size_mb", "a", "per_process_memory_fraction"] {
                    prop_assert!(before.get(key).is_none() || before.get(key) == after.get(key));
                }
                prop_assert!(!(after.is_async() && before.get(alloc_conf::EXPANDABLE).is_none() && after.get(alloc_conf::EXPANDABLE).is_some()));
            }
        }
    }

    #[test]
    fn what_is_hidden_or_without_a_gpu_is_never_touched(container in any_container(), wanted in any_wanted()) {
        let merged = merge(&container, &wanted);
        prop_assert!(container.sees_gpu || merged.changes.is_empty());
        for change in &merged.changes {
            let own = container.env.iter().rev().find(|(name, _)| *name == change.name);
            prop_assert!(!matches!(own, Some((_, Given::ValueFrom))));
            prop_assert!(own.is_some() || !container.has_env_from);
        }
    }

    #[test]
    fn no_text_makes_the_reader_fail(text in "\\PC{0,40}") {
        let _ = AllocConf::parse(&text);
    }
}
