//! Checks what a person typed and says everything there is to say about it. Flows in: [`Options`]. Flows out: a checked
//! [`Job`], and with [`answer`] its estimate, the cards that hold it, the largest batch and what to change.

use super::advice::{Remedy, advise, plan};
use super::cards::{self, Card};
use super::fit::{self, Fit, Verdict, verdict};
use super::options::Options;
use super::run::{
    Attention, Checkpointing, Compute, Format, Lora, Offload, Optimizer, Parallel, Run, Step, Targets, Task,
};
use super::shape::Shape;
use super::vision::{self, Net};
use super::{Error, Estimate, config, estimate, known, within};

/// What is estimated: a transformer or an image network.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A transformer.
    Text(Shape),
    /// An image network, and the side of its images in pixels.
    Image(&'static Net, u64),
}

/// A job whose every field is known or assumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What runs.
    pub model: Model,
    /// How it runs.
    pub run: Run,
    /// What it may take, in bytes, where that was said.
    pub capacity: Option<f64>,
    /// Defaults that were taken, in sentences.
    pub assumptions: Vec<String>,
}

/// Everything there is to say about a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What it needs.
    pub estimate: Estimate,
    /// Whether it fits what was asked for.
    pub verdict: Option<Verdict>,
    /// What was asked for, in bytes.
    pub capacity: Option<f64>,
    /// The card that was asked for.
    pub card: Option<&'static Card>,
    /// Every card, smallest first; empty for image networks and where the capacity alone was given.
    pub fits: Vec<Fit>,
    /// The largest batch (or sequences of a server) that fits; `None` where nothing does or no capacity was given.
    pub largest_batch: Option<u64>,
    /// Single remedies in order.
    pub remedies: Vec<Remedy>,
    /// Remedies one after the other until it fits; empty where it fits already.
    pub plan: Vec<Remedy>,
}

/// Everything there is to say about the job that `options` describe.
pub fn answer(options: &Options) -> Result<Answer, Error> {
    let Job { model, run, capacity, assumptions } = job(options)?;
    let capacity = capacity.or_else(|| run.card.map(Card::usable));
    let mut found = match &model {
        Model::Text(shape) => estimate(shape, &run)?,
        Model::Image(net, size) => vision::estimate(net, *size, &run)?,
    };
    found.assumptions.extend(assumptions);
    let mut answer = Answer {
        verdict: capacity.map(|capacity| verdict(&found.needs, capacity)),
        estimate: found,
        capacity,
        card: run.card,
        fits: Vec::new(),
        largest_batch: None,
        remedies: Vec::new(),
        plan: Vec::new(),
    };
    if let Model::Text(shape) = &model {
        answer.fits = fit::table(shape, &run)?;
        if let Some(capacity) = capacity {
            answer.largest_batch = fit::largest_batch(shape, &run, capacity)?;
            answer.remedies = advise(shape, &run, capacity)?;
            answer.plan = plan(shape, &run, capacity)?;
        }
    }
    Ok(answer)
}

/// Checks options and fills in defaults.
pub fn job(options: &Options) -> Result<Job, Error> {
    let mut assumptions = Vec::new();
    let run = run(options, &mut assumptions)?;
    let capacity = match options.capacity_gib {
        Some(gib) => {
            within("capacity in GiB", gib, 0.1, 1e5)?;
            Some(gib * super::GIB)
        }
        None => None,
    };
    let model = model(options)?;
    run.check()?;
    Ok(Job { model, run, capacity, assumptions })
}

fn model(options: &Options) -> Result<Model, Error> {
    if let Some(text) = &options.config {
        return config::shape(text).map(Model::Text);
    }
    let name = options.model.as_deref().ok_or(Error::Missing {
        field: "model",
        hint: "give the name of a known model or the text of its config.json",
    })?;
    if let Some(shape) = known::shape(name) {
        return Ok(Model::Text(shape));
    }
    if let Some(net) = vision::find(name) {
        return Ok(Model::Image(net, options.image_size.unwrap_or(net.size)));
    }
    let value = name.chars().take(80).collect();
    Err(Error::Unknown {
        field: "model",
        value,
        known: "a name from the table, or the text of the model's config.json",
    })
}

fn run(options: &Options, assumptions: &mut Vec<String>) -> Result<Run, Error> {
    let mut run = Run::train();
    let task = word(options.task.as_deref(), "train");
    let is_training = task == "train";
    run.optimizer = optimizer(options, is_training)?;
    run.task = match task.as_str() {
        "train" => Task::Train,
        "generate" => Task::Generate { new_tokens: options.new_tokens.unwrap_or(256), keeps_cache: !options.no_cache },
        "serve" => Task::Serve {
            utilization: options.utilization.unwrap_or(0.9),
            batched_tokens: options.batched_tokens.unwrap_or(8192),
            sequences: options.sequences.unwrap_or(256),
        },
        _ => return unknown("task", &task, "train, generate, serve"),
    };
    belong(options, &run.task)?;
    precision(options, &mut run, is_training, assumptions)?;
    let assume = |what: &str, assumptions: &mut Vec<String>| assumptions.push(format!("{what} (not given)"));
    run.batch = options.batch.unwrap_or(1);
    if options.batch.is_none() && task != "serve" {
        assume("one sample at a time", assumptions);
    }
    run.sequence = options.sequence.unwrap_or(2048);
    let is_image =
        options.config.is_none() && options.model.as_deref().is_some_and(|name| vision::find(name).is_some());
    if options.sequence.is_none() && !is_image {
        assume("sequences of 2,048 tokens", assumptions);
    }
    run.accumulation = options.accumulation.unwrap_or(1);
    run.attention = match word(options.attention.as_deref(), "sdpa").as_str() {
        "eager" => Attention::Eager,
        "sdpa" => Attention::Sdpa,
        "flash" | "flash_attention_2" | "flash_attention_3" | "flash2" => Attention::Flash,
        other => return unknown("attention", other, "eager, sdpa, flash"),
    };
    run.checkpointing = match word(options.checkpointing.as_deref(), "none").as_str() {
        "none" | "off" | "false" => Checkpointing::Off,
        "selective" => Checkpointing::Selective,
        "full" | "true" | "on" => Checkpointing::Full,
        other => return unknown("checkpointing", other, "none, selective, full"),
    };
    run.loss_chunk = options.loss_chunk.unwrap_or(0);
    run.parallel = Parallel {
        data: options.data_parallel.unwrap_or(1),
        zero: options.zero.unwrap_or(0),
        tensor: options.tensor_parallel.unwrap_or(1),
        sequence: options.sequence_parallel,
        pipeline: options.pipeline_parallel.unwrap_or(1),
        context: options.context_parallel.unwrap_or(1),
        expert: options.expert_parallel.unwrap_or(1),
    };
    run.offload =
        Offload { optimizer: options.offload_optimizer || options.offload_weights, weights: options.offload_weights };
    run.compiled = options.compile;
    run.varies = options.varying_lengths;
    run.expandable = options.expandable_segments;
    run.is_foreign = options.other_code;
    run.kv_bytes = match options.kv_cache.as_deref() {
        // As the model computes.
        None | Some("auto") => run.pass_bytes(),
        Some(format) => super::states::bytes_per_weight(Format::parse("kv cache", format)?),
    };
    run.card = match &options.gpu {
        None => None,
        Some(name) => match cards::find(name) {
            Some(card) => Some(card),
            None => {
                return unknown("gpu", name, "a card of the table, such as H200, A100-80GB, L4, H100-80GB MIG 1g.10gb");
            }
        },
    };
    if options.optimizer.as_deref().is_some_and(|optimizer| optimizer.starts_with("paged")) {
        run.offload.optimizer = true;
        assumptions.push("a paged optimizer keeps its states in host memory when the card is full".to_owned());
    }
    Ok(run)
}

/// What only a server or only training knows is not taken silently by the other.
fn belong(options: &Options, task: &Task) -> Result<(), Error> {
    let is_adapter = options.method.as_deref().is_some_and(|method| word(Some(method), "") != "full");
    let of_a_server = [
        ("utilization", options.utilization.is_some()),
        ("batched tokens", options.batched_tokens.is_some()),
        ("sequences", options.sequences.is_some()),
        ("new tokens", options.new_tokens.is_some()),
        ("kv cache", options.kv_cache.is_some()),
    ];
    match task {
        Task::Serve { .. } if is_adapter => {
            let why = "adapters are trained; a server is estimated without them, so leave method out";
            Err(Error::Contradiction { field: "method", other: "task", why })
        }
        Task::Train => match of_a_server.iter().find(|(_, is_given)| *is_given) {
            Some((field, _)) => {
                let why = "it belongs to task serve or generate, and the task is train";
                Err(Error::Contradiction { field, other: "task", why })
            }
            None => Ok(()),
        },
        Task::Serve { .. } | Task::Generate { .. } => Ok(()),
    }
}

/// Method, precision and format of weights belong together.
fn precision(options: &Options, run: &mut Run, is_training: bool, assumptions: &mut Vec<String>) -> Result<(), Error> {
    let method = word(options.method.as_deref(), "full");
    let default = if is_training { "amp" } else { "bf16" };
    let precision = word(options.precision.as_deref(), default);
    if options.precision.is_none() {
        assumptions.push(format!("precision {default} (not given)"));
    }
    let is_adapter = match method.as_str() {
        "full" => false,
        "lora" | "qlora" => true,
        other => return unknown("method", other, "full, lora, qlora"),
    };
    run.compute = match precision.as_str() {
        "fp32" | "no" | "tf32" => Compute::Fp32,
        "amp" | "amp_bf16" | "amp_fp16" | "autocast" | "mixed" | "fp16" | "bf16-mixed" | "16-mixed" => {
            Compute::Autocast
        }
        "bf16" | "pure_bf16" | "bf16-true" | "half" => Compute::Half,
        "master" | "megatron" | "deepspeed" => Compute::Master,
        other => return unknown("precision", other, "fp32, amp, bf16, master"),
    };
    let stored = match (run.compute, method.as_str()) {
        (_, "qlora") => Format::Nf4,
        // People load a base for adapters in 16 bits, and run it under autocast.
        (Compute::Fp32, _) | (Compute::Autocast, "full") => Format::Fp32,
        _ => Format::Bf16,
    };
    run.weights = match &options.weights {
        Some(word) => Format::parse("weights", word)?,
        None => stored,
    };
    if method == "lora" && run.compute == Compute::Autocast && options.weights.is_none() {
        assumptions.push("the frozen base is stored in 16 bits (say weights fp32 if it is not)".to_owned());
    }
    if method == "qlora" && !run.weights.is_quantised() {
        let why = "QLoRA trains adapters on quantised weights; say method lora for others";
        return Err(Error::Contradiction { field: "weights", other: "method", why });
    }
    if is_adapter {
        run.lora = Some(Lora {
            rank: options.lora_rank.unwrap_or(16),
            targets: match word(options.lora_targets.as_deref(), "attention").as_str() {
                "some" | "q_v" => Targets::Some,
                "attention" => Targets::Attention,
                "all" | "all-linear" | "all_linear" => Targets::All,
                other => return unknown("lora targets", other, "some, attention, all"),
            },
            trains_embeddings: options.lora_embeddings,
            is_fp32: true,
        });
    } else if options.lora_rank.is_some() {
        let why = "a rank belongs to an adapter; say method lora or qlora";
        return Err(Error::Contradiction { field: "lora rank", other: "method", why });
    }
    Ok(())
}

fn optimizer(options: &Options, is_training: bool) -> Result<Optimizer, Error> {
    let word = word(options.optimizer.as_deref(), "adamw");
    if !is_training {
        return match options.optimizer {
            None => Ok(Optimizer::None),
            Some(_) => Err(Error::Contradiction { field: "optimizer", other: "task", why: "nothing is trained" }),
        };
    }
    Ok(match word.as_str() {
        "adamw" | "adam" | "adamw_torch" | "adamw_foreach" => Optimizer::Adam(Step::Foreach),
        "adamw_fused" | "adamw_torch_fused" | "adamw_apex_fused" | "fused_adam" => Optimizer::Adam(Step::Fused),
        "adamw_single" | "adamw_foreach_off" | "adamw_hf" => Optimizer::Adam(Step::Single),
        "adamw_8bit" | "adamw_bnb_8bit" | "paged_adamw_8bit" | "paged_adamw" | "paged_adamw_32bit"
        | "adamw_torch_8bit" => Optimizer::Adam8bit,
        "adafactor" => Optimizer::Adafactor,
        "sgd" => Optimizer::Sgd,
        "sgd_momentum" | "momentum" | "lion" | "lion_32bit" | "rmsprop" => Optimizer::Momentum,
        "muon" => Optimizer::Muon,
        "galore" | "galore_adamw" => Optimizer::Galore(128),
        other => {
            let known = "adamw, adamw_fused, adamw_single, adamw_8bit, paged_adamw_8bit, adafactor, sgd, sgd_momentum, lion, muon, galore";
            return unknown("optimizer", other, known);
        }
    })
}

fn word(given: Option<&str>, default: &str) -> String {
    given.unwrap_or(default).trim().to_lowercase()
}

fn unknown<T>(field: &'static str, value: &str, known: &'static str) -> Result<T, Error> {
    Err(Error::Unknown { field, value: value.chars().take(60).collect(), known })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(change: impl FnOnce(&mut Options)) -> Options {
        let mut options = Options { model: Some("llama3-8b".to_owned()), ..Options::default() };
        change(&mut options);
        options
    }

    #[test]
    fn defaults_are_named_as_assumptions() {
        let job = job(&given(|_| {})).expect("a job");
        assert_eq!(job.assumptions.len(), 3, "{:?}", job.assumptions);
        assert_eq!(job.run.compute, Compute::Autocast);
    }

    #[test]
    fn contradictions_name_both_fields() {
        for (options, field) in [
            (given(|options| options.weights = Some("nf4".to_owned())), "weights"),
            (given(|options| options.lora_rank = Some(8)), "lora rank"),
            (
                given(|options| (options.task, options.optimizer) = (Some("serve".into()), Some("sgd".into()))),
                "optimizer",
            ),
            (given(|options| options.sequence_parallel = true), "sequence parallel"),
            (given(|options| (options.task, options.method) = (Some("serve".into()), Some("lora".into()))), "method"),
            (given(|options| options.utilization = Some(0.5)), "utilization"),
            (given(|options| options.new_tokens = Some(5)), "new tokens"),
            (given(|options| options.kv_cache = Some("fp8".into())), "kv cache"),
            (
                given(|options| (options.precision, options.weights) = (Some("bf16".into()), Some("fp32".into()))),
                "weights",
            ),
        ] {
            let error = job(&options).expect_err("a contradiction").to_string();
            assert!(error.starts_with(field) && error.contains("contradicts"), "{error}");
        }
    }

    #[test]
    fn unknown_words_list_what_would_be_understood() {
        let error = job(&given(|options| options.weights = Some("int3".to_owned()))).expect_err("unknown").to_string();
        assert_eq!(error, format!("weights \"int3\" is not known; use one of: {}", Format::WORDS));
        assert!(job(&given(|options| options.batch = Some(0))).is_err());
        assert!(job(&given(|options| options.sequence = Some(u64::MAX))).is_err());
        assert!(job(&given(|options| options.gpu = Some("H300".to_owned()))).is_err());
        assert!(job(&Options::default()).is_err());
    }

    #[test]
    fn a_job_that_does_not_fit_comes_with_a_plan_that_ends_in_one_that_does() {
        let answer = answer(&given(|options| {
            (options.model, options.gpu) = (Some("llama3.2-3b".to_owned()), Some("A100-40GB".to_owned()));
        }))
        .expect("an answer");
        assert_eq!(answer.verdict, Some(Verdict::DoesNotFit));
        assert_eq!(answer.largest_batch, None);
        assert_eq!(answer.plan.last().map(|remedy| remedy.verdict), Some(Verdict::Fits));
        assert!(answer.fits.iter().any(|fit| fit.verdict == Verdict::Fits));
    }
}
