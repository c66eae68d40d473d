//! `gpumem estimate`: how much memory a job will need, from flags or from its manifest. Flows in: flags and files. Flows
//! out: text. All thinking is [`gpumem_engine::estimate`]'s.

use std::path::PathBuf;

use gpumem_engine::estimate::cards;
use gpumem_engine::estimate::fit::Verdict;
use gpumem_engine::estimate::job::{Answer, answer};
use gpumem_engine::estimate::known;
use gpumem_engine::estimate::options::Options;
use gpumem_engine::estimate::render;
use gpumem_engine::estimate::vision;
use gpumem_engine::quantity::Bytes;
use serde_json::{Value, json};

use super::{Format, Shown, page, read, units};

mod manifest;

pub use manifest::Found;

/// Estimate how much GPU memory a job needs before it runs.
///
/// Exit codes: 0 it fits (or no card was named), 3 it does not fit, 2 the question makes no sense.
#[derive(Clone, Debug, Default, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    /// A known model, e.g. llama3.1-8b, Qwen/Qwen2.5-7B-Instruct, resnet50.
    #[arg(conflicts_with = "model")]
    pub name: Option<String>,
    /// The same as a flag.
    #[arg(long)]
    pub model: Option<String>,
    /// The model's config.json, where the name is not known.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "model"])]
    pub config: Option<PathBuf>,
    /// A manifest (Pod, Deployment, Job, PyTorchJob, … ; several documents too); flags go before it. - for standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// Only this container of the manifest.
    #[arg(long, requires = "filename")]
    pub container: Option<String>,
    /// train, generate or serve [default: train].
    #[arg(long)]
    pub task: Option<String>,
    /// full, lora or qlora [default: full].
    #[arg(long)]
    pub method: Option<String>,
    /// fp32, amp, bf16 or master [default: amp for training].
    #[arg(long, alias = "dtype")]
    pub precision: Option<String>,
    /// Format of the stored weights: fp32, bf16, fp8, int8, gptq, awq, nf4, q4_k, ….
    #[arg(long, alias = "quantization")]
    pub weights: Option<String>,
    /// adamw, adamw_8bit, adafactor, sgd, lion, muon, … [default: adamw].
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Samples of one forward pass on one GPU [default: 1].
    #[arg(long)]
    pub batch: Option<u64>,
    /// Tokens of one sample.
    #[arg(long, alias = "seq")]
    pub sequence: Option<u64>,
    /// Forward passes per optimizer step [default: 1].
    #[arg(long)]
    pub accumulation: Option<u64>,
    /// eager, sdpa or flash [default: sdpa].
    #[arg(long)]
    pub attention: Option<String>,
    /// none, selective or full [default: none].
    #[arg(long)]
    pub checkpointing: Option<String>,
    /// Tokens whose logits exist at once.
    #[arg(long)]
    pub loss_chunk: Option<u64>,
    /// Rank of adapters [default: 16].
    #[arg(long)]
    pub lora_rank: Option<u64>,
    /// attention, all or some [default: attention].
    #[arg(long)]
    pub lora_targets: Option<String>,
    /// GPUs that hold copies or shards of the model [default: 1].
    #[arg(long)]
    pub data_parallel: Option<u64>,
    /// ZeRO stage 0 to 3; FSDP is 3 [default: 0].
    #[arg(long)]
    pub zero: Option<u8>,
    /// Tensor-parallel degree [default: 1].
    #[arg(long, alias = "tp")]
    pub tensor_parallel: Option<u64>,
    /// Sequence parallelism beside tensor parallelism.
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Pipeline stages [default: 1].
    #[arg(long, alias = "pp")]
    pub pipeline_parallel: Option<u64>,
    /// Context-parallel degree [default: 1].
    #[arg(long)]
    pub context_parallel: Option<u64>,
    /// Expert-parallel degree [default: 1].
    #[arg(long)]
    pub expert_parallel: Option<u64>,
    /// Optimizer states in host memory.
    #[arg(long)]
    pub offload_optimizer: bool,
    /// Weights in host memory too.
    #[arg(long)]
    pub offload_weights: bool,
    /// The model is compiled.
    #[arg(long)]
    pub compile: bool,
    /// Samples differ in length and are not packed.
    #[arg(long)]
    pub varying_lengths: bool,
    /// PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    #[arg(long)]
    pub expandable_segments: bool,
    /// Tokens written after the prompt.
    #[arg(long)]
    pub new_tokens: Option<u64>,
    /// Share of the card a server takes [default: 0.9].
    #[arg(long, alias = "gpu-memory-utilization")]
    pub utilization: Option<f64>,
    /// Tokens of one pass of a server [default: 8192].
    #[arg(long)]
    pub batched_tokens: Option<u64>,
    /// Sequences at once in a server [default: 256].
    #[arg(long)]
    pub sequences: Option<u64>,
    /// Format of keys and values: bf16 or fp8 [default: bf16].
    #[arg(long)]
    pub kv_cache: Option<String>,
    /// Side of images in pixels.
    #[arg(long)]
    pub image_size: Option<u64>,
    /// The card, e.g. H200, A100-80GB, "H100-80GB MIG 3g.40gb".
    #[arg(long)]
    pub gpu: Option<String>,
    /// What the job may take where it is not the card's, e.g. 24GiB.
    #[arg(long, value_parser = units::size)]
    pub capacity: Option<Bytes>,
    /// Exit with 3 also where it may not fit.
    #[arg(long)]
    pub strict: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value = "table", help_heading = super::OUTPUT)]
    pub output: Format,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// Nothing to estimate from.
    #[error("name a model (gpumem estimate llama3.1-8b --gpu H100-80GB), give --config, or a manifest with -f")]
    NoModel,
    /// A manifest without anything that runs on a GPU.
    #[error(
        "{file}: no container in it asks for a GPU or runs a program that is known; name one with --container and say \
         what runs with flags"
    )]
    NoContainer {
        /// Which file.
        file: String,
    },
    /// No container of the name that was given.
    #[error("{file}: no container is named {name}; leave --container out to read all that ask for a GPU")]
    NoSuchContainer {
        /// Which file.
        file: String,
        /// Which name.
        name: String,
    },
    /// An annotation that is not what it should be.
    #[error("{place}: annotation {}: {problem}", manifest::ANNOTATION)]
    Annotation {
        /// Whose.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The engine's word on a question of flags.
    #[error("{0}{names}", names = names(.0))]
    Estimate(#[from] gpumem_engine::estimate::Error),
    /// The engine's word on a container of a manifest.
    #[error("{place}: {source}{}{}", hint(unread), names(source))]
    Container {
        /// Which container.
        place: String,
        /// Why not.
        source: gpumem_engine::estimate::Error,
        /// What its command line did not tell.
        unread: Vec<String>,
    },
}

fn hint(unread: &[String]) -> String {
    if unread.is_empty() { String::new() } else { format!("; not read: {}", unread.join("; ")) }
}

/// The table that a message speaks of, where a name is not in it.
fn names(error: &gpumem_engine::estimate::Error) -> String {
    let gpumem_engine::estimate::Error::Unknown { field, .. } = error else { return String::new() };
    let all: Vec<&str> = match *field {
        "gpu" => cards::CARDS.iter().map(|card| card.name).collect(),
        "model" => known::names().chain(vision::NETS.iter().map(|net| net.name)).collect(),
        _ => return String::new(),
    };
    let mut lines = vec!["The table:".to_owned()];
    for name in all {
        match lines.last_mut().filter(|line| line.starts_with(' ') && line.len() + name.len() < 76) {
            Some(line) => line.extend([", ", name]),
            None => lines.push(format!("  {name}")),
        }
    }
    format!("\n{}", lines.join("\n"))
}

/// Runs the command; lines are broken for a terminal of so many columns.
pub fn run(args: &Args, terminal: Option<usize>) -> Result<Shown, Error> {
    let table = |answer: &Answer| page::fit(&render::text(answer), args.output.width(terminal));
    let flags = options(args)?;
    let Some(file) = &args.filename else {
        if flags.model.is_none() && flags.config.is_none() {
            return Err(Error::NoModel);
        }
        let answer = answer(&flags)?;
        let text = match args.output {
            Format::Table | Format::Wide => table(&answer),
            Format::Json => pretty(&render::json(&answer)),
        };
        return Ok(Shown { text, notes: Vec::new(), code: code(&answer, args.strict) });
    };
    let found = manifest::containers(&read::documents(file)?, args.container.as_deref())?;
    if let (true, Some(name)) = (found.is_empty(), &args.container) {
        return Err(Error::NoSuchContainer { file: file.display().to_string(), name: name.clone() });
    }
    if found.is_empty() {
        return Err(Error::NoContainer { file: file.display().to_string() });
    }
    let mut shown = Shown::fine(String::new());
    let mut objects = Vec::new();
    for Found { place, options, program, unread } in found {
        let options = over(&options, &flags);
        let answer = answer(&options).map_err(|source| Error::Container {
            place: place.clone(),
            source,
            unread: unread.clone(),
        })?;
        shown.code = shown.code.max(code(&answer, args.strict));
        match args.output {
            Format::Table | Format::Wide => {
                let program = program.map(|program| format!(" ({program})")).unwrap_or_default();
                let gap = if shown.text.is_empty() { "" } else { "\n" };
                shown.text.extend([gap, &place, &program, "\n", &table(&answer)]);
                if !unread.is_empty() {
                    let lines = format!("  - {}\n", unread.join("\n  - "));
                    shown.text += "\nNot read from the manifest:\n";
                    shown.text += &page::fit(&lines, args.output.width(terminal));
                }
            }
            Format::Json => objects.push(json!({
                "container": place, "program": program, "notRead": unread, "estimate": render::json(&answer),
            })),
        }
    }
    if args.output == Format::Json {
        shown.text = pretty(&json!({ "containers": objects }));
    }
    Ok(shown)
}

fn options(args: &Args) -> Result<Options, Error> {
    let args = args.clone();
    Ok(Options {
        model: args.name.or(args.model),
        config: args.config.as_deref().map(read::text).transpose()?,
        task: args.task,
        method: args.method,
        precision: args.precision,
        weights: args.weights,
        optimizer: args.optimizer,
        batch: args.batch,
        sequence: args.sequence,
        accumulation: args.accumulation,
        attention: args.attention,
        checkpointing: args.checkpointing,
        loss_chunk: args.loss_chunk,
        lora_rank: args.lora_rank,
        lora_targets: args.lora_targets,
        data_parallel: args.data_parallel,
        zero: args.zero,
        tensor_parallel: args.tensor_parallel,
        sequence_parallel: args.sequence_parallel,
        pipeline_parallel: args.pipeline_parallel,
        context_parallel: args.context_parallel,
        expert_parallel: args.expert_parallel,
        offload_optimizer: args.offload_optimizer,
        offload_weights: args.offload_weights,
        compile: args.compile,
        varying_lengths: args.varying_lengths,
        expandable_segments: args.expandable_segments,
        new_tokens: args.new_tokens,
        utilization: args.utilization,
        batched_tokens: args.batched_tokens,
        sequences: args.sequences,
        kv_cache: args.kv_cache,
        image_size: args.image_size,
        gpu: args.gpu,
        capacity_gib: args.capacity.map(|capacity| capacity.as_f64() / 1_073_741_824.0),
        ..Options::default()
    })
}

/// `base`, with whatever `top` says in its place. A flag that is off says nothing.
pub(super) fn over(base: &Options, top: &Options) -> Options {
    let object = |options: &Options| match serde_json::to_value(options) {
        Ok(Value::Object(object)) => object,
        _ => serde_json::Map::new(),
    };
    let mut merged = object(base);
    merged.extend(object(top).into_iter().filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false))));
    // Both came from the same type, so this reads back.
    serde_json::from_value(Value::Object(merged)).unwrap_or_else(|_| top.clone())
}

fn code(answer: &Answer, strict: bool) -> u8 {
    match answer.verdict {
        Some(Verdict::DoesNotFit) => super::NO,
        Some(Verdict::Unsure) if strict => super::NO,
        Some(Verdict::Fits | Verdict::Unsure) | None => super::FINE,
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
