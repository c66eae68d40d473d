//! Worked examples of published formulas and measurements, and properties that hold for any input.

use proptest::prelude::*;

use super::run::{
    Attention, Checkpointing, Compute, Format, Lora, Offload, Optimizer, Parallel, Run, Step, Targets, Task,
};
use super::shape::{Family, Shape};
use super::{
    GIB, Interval, activations, advice, cards, config, estimate, fit, job, known, manifest, options, render, states,
    vision,
};

const MIB: f64 = 1_048_576.0;

fn shape(name: &str) -> Shape {
    known::shape(name).unwrap_or_else(|| panic!("{name} is not in the table"))
}

fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found} is not {expected} within {share}");
}

#[test]
fn zero_divides_states_as_its_paper_prints() {
    for (stage, gigabytes) in [(0, 120.0), (1, 31.41), (2, 16.64), (3, 1.875)] {
        near(states::zero_paper(7.5e9, 64.0, stage) / 1e9, gigabytes, 5e-4);
    }
}

#[test]
fn deepspeed_estimators_give_the_examples_of_its_documentation() {
    let away = |weights| Offload { optimizer: true, weights };
    near(states::deepspeed_zero2(2_851e6, 8.0, false) / GIB, 15.93, 1e-3);
    near(states::deepspeed_zero2(2_851e6, 8.0, true) / GIB, 5.31, 1e-3);
    for (offload, gib) in [(Offload::default(), 6.09), (away(false), 0.78), (away(true), 0.12)] {
        near(states::deepspeed_zero3(2_851e6, 32e6, 8.0, offload) / GIB, gib, 1e-2);
    }
    for (offload, mib) in [(Offload::default(), 3_291.0), (away(false), 477.0), (away(true), 125.0)] {
        near(states::deepspeed_zero3(737.67e6, 32.90e6, 4.0, offload) / MIB, mib, 5e-3);
    }
}

#[test]
fn a_bert_loads_as_accelerate_says() {
    // bert-base-cased without its head: 108,310,272 parameters.
    let params = 413.18 * MIB / 4.0;
    for (format, mib) in [(Format::Fp32, 413.18), (Format::Bf16, 206.59), (Format::Int8, 103.29)] {
        near(params * states::bytes_per_weight(format) / MIB, mib, 1e-4);
    }
    near(states::accelerate_rule(params, 4.0) / GIB, 1.61, 3e-3);
    near(148.56 * 4.0, 594.24, 1e-9);
}

#[test]
fn a_resnet_loads_with_its_buffers() {
    let net = vision::find("resnet50.a1").expect("known");
    near(net.params * 4.0 / MIB, 97.49, 1e-4);
    near((net.params * 4.0 + net.buffers) / MIB, 97.70, 2e-4);
}

#[test]
fn a_gpt3_block_keeps_what_korthikanti_counts() {
    let gpt3 = shape("gpt3-175b");
    let block = |kind| activations::korthikanti(&gpt3, 2048.0, 2048.0, 1.0, true, kind) / 1e9;
    near(block(Checkpointing::Off), 2.869, 1e-3);
    near(96.0 * block(Checkpointing::Off), 275.4, 1e-3);
    near(96.0 * block(Checkpointing::Selective), 82.1, 1e-3);
    near(96.0 * block(Checkpointing::Full), 4.83, 1e-3);
    // Sequence parallelism divides all of it, tensor parallelism alone leaves ten of the units whole.
    let split = |sequence| activations::korthikanti(&gpt3, 2048.0, 2048.0, 8.0, sequence, Checkpointing::Selective);
    near(split(true), 34.0 / 8.0 * 2048.0 * 12288.0, 1e-9);
    near(split(false), 13.0 * 2048.0 * 12288.0, 1e-9);
}

#[test]
fn a_token_of_keys_and_values_has_its_known_size() {
    for (name, kib) in [("opt-13b", 800.0), ("llama2-7b", 512.0), ("llama3-8b", 128.0), ("llama3-70b", 320.0)] {
        near(shape(name).kv_elements_per_token() * 2.0 / 1024.0, kib, 1e-9);
    }
    near(shape("opt-13b").kv_elements_per_token() * 2.0 * 2048.0 / GIB, 1.5625, 1e-9);
}

#[test]
fn a_server_takes_its_share_of_the_card_whatever_it_holds() {
    let task = Task::Serve { utilization: 0.9, batched_tokens: 8192, sequences: 256 };
    let run = Run { task, card: cards::find("A100-80GB"), sequence: 2048, ..Run::generate(0) };
    let found = estimate(&shape("llama-13b"), &run).expect("an estimate");
    // vLLM issue 550: about 73 GB of an 80 GB card for a model of 26 GB.
    assert!(found.total.holds(73.0 * GIB * 0.98), "{}", found.total);
    assert!(found.needs.high < 40.0 * GIB, "{}", found.needs);
}

#[test]
fn an_old_bert_on_a_v100_is_within_fifteen_percent() {
    // Transformers' guide on training on one GPU: 14,949 MiB, and 2,631 MiB when loaded.
    let run = Run {
        compute: Compute::Fp32,
        optimizer: Optimizer::Adam(Step::Single),
        attention: Attention::Eager,
        batch: 4,
        sequence: 512,
        card: cards::find("V100-16GB"),
        ..Run::train()
    };
    let found = estimate(&shape("bert-large"), &run).expect("an estimate");
    near(found.total.median / MIB, 14_949.0, 0.15);
}

#[test]
fn context_parallelism_keeps_memory_when_the_sequence_grows_with_it() {
    let run = |context: u64| Run {
        sequence: 32_768 * context,
        checkpointing: Checkpointing::Full,
        parallel: Parallel { data: 8, zero: 3, context, ..Parallel::ONE },
        ..Run::train()
    };
    let median = |context| estimate(&shape("llama3.1-8b"), &run(context)).expect("an estimate").allocated.median;
    assert!(median(8) <= median(1) * 1.001);
    near(median(8), median(2), 0.12);
}

#[test]
fn more_shards_free_what_their_states_took() {
    // torchtitan, Llama 3.1 8B, FSDP on 8 and 128 GPUs: 15.0 to 15.4 GiB less; fp32 states of 16 bytes a parameter say 14.0.
    let run = |data| Run {
        parallel: Parallel { data, zero: 3, ..Parallel::ONE },
        optimizer: Optimizer::Adam(Step::Fused),
        ..Run::train()
    };
    let states = |data| states::states(&shape("llama3.1-8b"), &run(data)).total();
    near((states(8) - states(128)) / GIB, 14.0, 0.01);
}

#[test]
fn an_unknown_architecture_gets_a_wide_interval_and_says_so() {
    let text = r#"{"model_type":"hyena","hidden_size":2048,"num_layers":16,"n_head":16,"vocab_size":50000,"intermediate_size":8192}"#;
    let shape = config::shape(text).expect("a shape");
    let found = estimate(&shape, &Run { batch: 8, sequence: 1024, ..Run::train() }).expect("an estimate");
    assert!(found.total.high / found.total.low > 1.3, "{}", found.total);
    assert!(!found.unknowns.is_empty());
}

#[test]
fn an_interval_gives_a_forecast_its_spread() {
    near(Interval::new(80.0, 100.0, 100.0 * (0.12_f64 * 1.645).exp()).log_sigma(), 0.223_14 / 1.645, 1e-3);
    assert_eq!(Interval::ZERO.log_sigma(), 0.0);
    assert_eq!(Interval::exact(7.0).log_sigma(), 0.0);
}

#[test]
fn the_table_says_what_will_not_fit_and_what_to_do() {
    let options = options::Options {
        model: Some("llama3-8b".to_owned()),
        gpu: Some("A100-80GB".to_owned()),
        batch: Some(4),
        ..options::Options::default()
    };
    let answer = job::answer(&options).expect("an answer");
    let text = render::text(&answer);
    for part in ["It will not fit A100-80GB", "Do this, in order:", "margin of error", "HF Trainer", "Assumed:"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    let value = render::json(&answer);
    assert_eq!(value["verdict"], "DoesNotFit");
    assert_eq!(
        value["plan"].as_array().and_then(|plan| plan.last()).map(|last| &last["verdict"]),
        Some(&"Fits".into())
    );
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let families = prop::sample::select(vec![
        Family::Llama,
        Family::Gemma,
        Family::Gpt2,
        Family::Bert,
        Family::Opt,
        Family::NeoX,
        Family::T5,
        Family::Unknown,
    ]);
    (families, 1_u64..100, 1_u64..64, 1_u64..128, 1_u64..64, 1_u64..60_000, 1_u64..300_000, any::<bool>()).prop_map(
        |(family, layers, heads, head_dim, groups, ffn, vocab, tied)| {
            let kv_heads = (heads / groups).max(1);
            let mut shape = Shape::llama("any", layers, heads * head_dim, heads, kv_heads, ffn, vocab, tied);
            shape.family = family;
            shape
        },
    )
}

fn any_run() -> impl Strategy<Value = Run> {
    let computes = prop::sample::select(vec![
        (Compute::Fp32, Format::Fp32),
        (Compute::Half, Format::Bf16),
        (Compute::Autocast, Format::Fp32),
        (Compute::Master, Format::Bf16),
    ]);
    let optimizers = prop::sample::select(vec![
        Optimizer::Adam(Step::Foreach),
        Optimizer::Adam(Step::Fused),
        Optimizer::Adam(Step::Single),
        Optimizer::Adam8bit,
        Optimizer::Adafactor,
        Optimizer::Sgd,
        Optimizer::Momentum,
        Optimizer::Muon,
        Optimizer::Galore(64),
    ]);
    let kinds = prop::sample::select(vec![Checkpointing::Off, Checkpointing::Selective, Checkpointing::Full]);
    let kernels = prop::sample::select(vec![Attention::Eager, Attention::Sdpa, Attention::Flash]);
    let tasks = prop::sample::select(vec![0_u8, 0, 0, 1, 2, 3]);
    ((computes, optimizers, kinds, kernels, tasks), (1_u64..64, 1_u64..8192, 1_u64..9), any::<[bool; 6]>(), 0_u64..4096)
        .prop_map(
            |(
                (computes, optimizer, checkpointing, attention, task),
                (batch, sequence, accumulation),
                flags,
                loss_chunk,
            )| {
                let lora = Lora { rank: 8, targets: Targets::All, trains_embeddings: flags[5], is_fp32: true };
                let mut run = Run {
                    compute: computes.0,
                    weights: computes.1,
                    optimizer,
                    batch,
                    sequence,
                    accumulation,
                    attention,
                    checkpointing,
                    loss_chunk: if flags[0] { loss_chunk } else { 0 },
                    lora: flags[1].then_some(lora),
                    compiled: flags[2],
                    varies: flags[3],
                    is_made_on_device: flags[4],
                    ..Run::train()
                };
                if task > 0 {
                    (run.lora, run.optimizer) = (None, Optimizer::None);
                    run.task = match task {
                        1 => Task::Generate { new_tokens: 64, keeps_cache: true },
                        2 => Task::Generate { new_tokens: 64, keeps_cache: false },
                        _ => Task::Serve { utilization: 0.9, batched_tokens: 2048, sequences: 16 },
                    };
                }
                run
            },
        )
}

fn total(shape: &Shape, run: &Run) -> Interval {
    estimate(shape, run).unwrap_or_else(|error| panic!("{error} {shape:?} {run:?}")).total
}

/// Not smaller, within what floating point rounds.
fn grows(small: &Interval, large: &Interval) -> bool {
    let holds = |small: f64, large: f64| small <= large * (1.0 + 1e-9) + 1.0;
    holds(small.low, large.low) && holds(small.median, large.median) && holds(small.high, large.high)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bounds_are_ordered_finite_and_add_up(shape in any_shape(), run in any_run()) {
        let found = estimate(&shape, &run).expect("an estimate");
        for interval in found.terms.iter().map(|term| &term.bytes).chain([&found.allocated, &found.reserved, &found.total, &found.needs]) {
            prop_assert!(0.0 <= interval.low && interval.low <= interval.median && interval.median <= interval.high);
            prop_assert!(interval.high.is_finite());
        }
        let sum: f64 = found.terms.iter().map(|term| term.bytes.median).sum();
        prop_assert!((sum - found.total.median).abs() <= 1e-9 * sum + 1.0, "{} {}", sum, found.total.median);
        prop_assert!(found.allocated.median <= found.reserved.median && found.reserved.median <= found.total.median);
    }

    #[test]
    fn more_samples_tokens_or_layers_never_need_less(shape in any_shape(), run in any_run()) {
        let now = total(&shape, &run);
        let batch = Run { batch: run.batch + 1, ..run.clone() };
        let sequence = Run { sequence: run.sequence + 100, ..run.clone() };
        prop_assert!(grows(&now, &total(&shape, &batch)), "batch {} {}", now, total(&shape, &batch));
        prop_assert!(grows(&now, &total(&shape, &sequence)), "sequence {} {}", now, total(&shape, &sequence));
        let mut deeper = shape.clone();
        deeper.layers += 1;
        prop_assert!(grows(&now, &total(&deeper, &run)), "layers {} {}", now, total(&deeper, &run));
        let mut wider = shape.clone();
        wider.ffn += 64;
        prop_assert!(grows(&now, &total(&wider, &run)), "width {} {}", now, total(&wider, &run));
    }

    #[test]
    fn more_shards_never_keep_more(shape in any_shape(), run in any_run(), stage in 0_u8..=3, gpus in 2_u64..64) {
        prop_assume!(run.task == Task::Train);
        let on = |data: u64, zero: u8| Run { parallel: Parallel { data, zero, ..Parallel::ONE }, ..run.clone() };
        let states = |run: &Run| states::states(&shape, run).total();
        prop_assert!(states(&on(gpus, stage)) <= states(&on(1, stage)));
        prop_assert!(states(&on(gpus + 1, stage)) <= states(&on(gpus, stage)));
        prop_assert!(states(&on(gpus, stage.max(1))) <= states(&on(gpus, stage.max(1) - 1)));
        prop_assert!(grows(&total(&shape, &on(gpus + 1, stage)), &total(&shape, &on(gpus, stage))));
        for (tensor, more) in [(1, 2), (2, 4)] {
            let split = |tensor| Run { parallel: Parallel { tensor, ..Parallel::ONE }, ..run.clone() };
            prop_assert!(states(&split(more)) <= states(&split(tensor)));
        }
    }

    #[test]
    fn what_saves_memory_never_costs_any(shape in any_shape(), run in any_run()) {
        prop_assume!(run.task == Task::Train);
        let kept = |checkpointing| {
            let block = activations::block(&shape, &Run { checkpointing, ..run.clone() });
            match checkpointing {
                Checkpointing::Full => block.input,
                Checkpointing::Off | Checkpointing::Selective => block.kept + block.scores,
            }
        };
        prop_assert!(kept(Checkpointing::Selective) <= kept(Checkpointing::Off));
        prop_assert!(kept(Checkpointing::Full) <= kept(Checkpointing::Selective));
        let loss = |loss_chunk| activations::loss(&shape, &Run { loss_chunk, ..run.clone() });
        prop_assert!(loss(64).1 <= loss(128).1);
    }

    #[test]
    fn no_words_and_no_numbers_make_it_panic(
        words in prop::collection::vec("[-a-z_=0-9.\"'\\\\ $]{0,24}", 0..12),
        model in prop::option::of("[a-z0-9./-]{0,16}"),
        numbers in any::<[Option<u64>; 8]>(),
        config in prop::option::of("[\\[\\]{}:,\"a-z_0-9.-]{0,60}"),
        share in any::<f64>(),
    ) {
        let reading = manifest::read(&words, &[("WORLD_SIZE".to_owned(), words.concat())]);
        let mut options = reading.options;
        let _ = job::answer(&options);
        options.model = model.or(Some("gpt2".to_owned()));
        options.config = config;
        [options.batch, options.sequence, options.accumulation, options.lora_rank, options.data_parallel, options.tensor_parallel, options.new_tokens, options.loss_chunk] = numbers;
        (options.utilization, options.capacity_gib) = (Some(share), Some(share));
        for task in ["train", "generate", "serve"] {
            options.task = Some(task.to_owned());
            if let Ok(answer) = job::answer(&options) {
                let _ = (render::text(&answer), render::json(&answer));
            }
        }
    }

    #[test]
    fn every_number_of_a_config_may_be_absurd(numbers in any::<[u64; 6]>(), kind in "[a-z0-9_]{0,8}") {
        let [hidden, layers, heads, kv, ffn, vocab] = numbers;
        let text = format!(
            r#"{{"model_type":"{kind}","hidden_size":{hidden},"num_hidden_layers":{layers},"num_attention_heads":{heads},"num_key_value_heads":{kv},"intermediate_size":{ffn},"vocab_size":{vocab}}}"#
        );
        if let Ok(shape) = config::shape(&text) {
            let _ = estimate(&shape, &Run::train());
        }
    }

    #[test]
    fn remedies_promise_no_more_than_there_is(shape in any_shape(), run in any_run(), gib in 1.0_f64..200.0) {
        let needs = estimate(&shape, &run).expect("an estimate").needs;
        for remedy in advice::advise(&shape, &run, gib * GIB).expect("advice") {
            prop_assert!(remedy.saves.median <= needs.median && remedy.peak.median <= needs.median);
        }
        if let Some(batch) = fit::largest_batch(&shape, &run, gib * GIB).expect("an estimate") {
            prop_assert!(batch >= 1);
        }
    }
}
