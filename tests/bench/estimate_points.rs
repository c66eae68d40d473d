// Reads the committed points into shapes and runs. What a source leaves open is set here, once for each source and for
// the reason given, never for a single point.

use gpumem_engine::estimate::job::answer;
use gpumem_engine::estimate::options::Options;
use gpumem_engine::estimate::run::{
    Attention, Checkpointing, Compute, Format, Lora, Offload, Optimizer, Parallel, Run, Step, Targets, Task,
};
use gpumem_engine::estimate::shape::Shape;
use gpumem_engine::estimate::{Interval, cards, estimate, known, states, vision};
use serde_json::Value;

/// One measured job beside its estimate, in bytes.
pub struct Point {
    pub set: &'static str,
    pub kind: &'static str,
    pub model: String,
    pub label: String,
    pub actual: f64,
    pub estimate: Interval,
    /// Live tensors: estimated and measured, where the source has them.
    pub allocated: Option<(f64, f64)>,
    pub params: f64,
    pub weight_width: f64,
    pub shards: f64,
    pub zero: u8,
    settings: Vec<(&'static str, String)>,
}

/// Pairs that differ in one setting: its name, the value that saves, the value it is compared with.
pub const PAIRS: &[(&str, (&str, &str), &str)] = &[
    ("checkpointing", ("checkpointing", "true"), "false"),
    ("bf16", ("precision", "bf16"), "fp32"),
    ("expandable_segments", ("expandable", "true"), "null"),
    ("attention_kernel", ("attn", "sdpa"), "eager"),
    ("flash_attention", ("flash", "true"), "false"),
];

impl Point {
    pub fn error(&self, estimate: f64) -> f64 {
        (estimate / self.actual - 1.0).abs()
    }

    pub fn setting(&self, name: &str) -> &str {
        self.settings.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    pub fn differs_only_in(&self, other: &Self, name: &str) -> bool {
        let same = |(key, value): &(&str, String)| *key == name || other.setting(key) == value;
        self.set == other.set && self.settings.iter().all(same)
    }
}

const PUBLISHED: &str = include_str!("../data/estimator_points.json");
const H200: &str = include_str!("../data/estimator_points_h200.json");
const MORE: &str = include_str!("../data/estimator_points_h200_more.json");
const GIB: f64 = 1_073_741_824.0;

/// Sets that were predicted before they were measured: name, what was said, what came.
pub const ASIDE: [(&str, &str, &str); 2] = [
    (
        "aside",
        include_str!("../data/estimate_h200_predicted.json"),
        include_str!("../data/estimate_h200_measured.jsonl"),
    ),
    (
        "second_aside",
        include_str!("../data/estimate_h200_second_predicted.json"),
        include_str!("../data/estimate_h200_second_measured.jsonl"),
    ),
];

/// A job that was predicted before it was measured, in bytes.
pub struct Aside {
    pub name: String,
    /// What the driver counted for the process.
    pub actual: f64,
    /// What was said before.
    pub then: Interval,
    /// What is said now.
    pub now: Interval,
    /// Live tensors: said then, said now, measured.
    pub live: (f64, f64, f64),
}

/// The jobs of a set that could be measured.
pub fn aside(predicted: &str, measured: &str) -> Vec<Aside> {
    let predicted: Value = serde_json::from_str(predicted).expect("committed data is JSON");
    let measured: Vec<Value> = measured.lines().map(|line| serde_json::from_str(line).expect("committed data is JSON")).collect();
    let bytes = |value: &Value| value.as_f64().expect("a committed number");
    let points = predicted["points"].as_array().expect("a list of points");
    points
        .iter()
        .filter_map(|point| {
            // What failed on the machine has no peak.
            let found = measured.iter().find(|found| found["name"] == point["name"] && found["error"].is_null())?;
            let mut options: Options = serde_json::from_value(point["options"].clone()).expect("committed options");
            options.gpu = predicted["gpu"].as_str().map(str::to_owned);
            options.config = point["shape"].is_object().then(|| point["shape"].to_string());
            // Measured with `use_cache=False`, which the prediction was not told.
            options.no_cache |= options.new_tokens == Some(0);
            let now = answer(&options).expect("a job that can be").estimate;
            let said = &point["predicted"]["totalBytes"];
            Some(Aside {
                name: text(point, "name").to_owned(),
                actual: bytes(&found["usedByProcessBytes"]),
                then: Interval::new(bytes(&said["low"]), bytes(&said["median"]), bytes(&said["high"])),
                now: now.total,
                live: (
                    bytes(&point["predicted"]["allocatedBytes"]["median"]),
                    now.allocated.median,
                    bytes(&found["peakAllocatedBytes"]),
                ),
            })
        })
        .collect()
}

pub fn load() -> Vec<Point> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("committed data is JSON");
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let more = parse(MORE);
    let first = list(&parse(H200), "points").iter().filter_map(|point| own("set h200", point)).collect::<Vec<_>>();
    let second = list(&more, "points").iter().filter_map(|point| own("set h200 more", point)).collect::<Vec<_>>();
    // Measured after the constants were fixed: what we said before the figure was known.
    let pairs = list(&more, "pairs").iter().filter_map(|point| own("set h200 pairs", point)).collect::<Vec<_>>();
    let nets = list(&more, "vision").iter().filter_map(net).collect::<Vec<_>>();
    let mut skipped = Vec::new();
    let mut rest = Vec::new();
    for point in list(&parse(PUBLISHED), "points") {
        match published(&point) {
            Ok(found) => rest.push(found),
            Err(why) => skipped.push(format!("{} {}: {why}", point["id"].as_str().unwrap_or(""), point["model"].as_str().unwrap_or(""))),
        }
    }
    println!("{} published points left out, because they do not say enough:", skipped.len());
    for line in skipped {
        println!("  {line}");
    }
    first.into_iter().chain(second).chain(pairs).chain(nets).chain(rest).collect()
}

fn text<'a>(point: &'a Value, key: &str) -> &'a str {
    point[key].as_str().unwrap_or("")
}

fn whole(point: &Value, key: &str, default: u64) -> u64 {
    point[key].as_u64().unwrap_or(default)
}

fn settings(point: &Value, keys: &[&'static str]) -> Vec<(&'static str, String)> {
    keys.iter().map(|key| (*key, point[*key].to_string().trim_matches('"').to_owned())).collect()
}

/// A job that we measured ourselves on an H200.
fn own(set: &'static str, point: &Value) -> Option<Point> {
    let shape = known::shape(text(point, "model")).expect("a known model");
    let mut run = Run::train();
    run.card = cards::find("H200");
    run.expandable = point["expandable"] == true;
    // The measuring script builds models with random weights on the GPU.
    run.is_made_on_device = true;
    (run.batch, run.sequence, run.accumulation) = (whole(point, "batch", 1), whole(point, "seq", 1), whole(point, "accum", 1));
    if point["checkpointing"] == true {
        run.checkpointing = Checkpointing::Full;
    }
    if text(point, "attn") == "eager" {
        run.attention = Attention::Eager;
    }
    (run.compute, run.weights) = match text(point, "precision") {
        "bf16" => (Compute::Half, Format::Bf16),
        "fp32" => (Compute::Fp32, Format::Fp32),
        _ => (Compute::Autocast, Format::Fp32),
    };
    run.optimizer = match text(point, "optimizer") {
        "adamw" => Optimizer::Adam(Step::Foreach),
        "adamw_fused" => Optimizer::Adam(Step::Fused),
        "adamw_foreach_off" => Optimizer::Adam(Step::Single),
        "sgd" => Optimizer::Sgd,
        "sgd_momentum" => Optimizer::Momentum,
        _ => Optimizer::None,
    };
    let mut kind = "full training";
    if whole(point, "lora_r", 0) > 0 {
        kind = "LoRA";
        let targets = if shape.name.starts_with("pythia") { Targets::Some } else { Targets::Attention };
        run.lora = Some(Lora { rank: whole(point, "lora_r", 8), targets, trains_embeddings: false, is_fp32: true });
    }
    if text(point, "mode") == "generate" {
        kind = "inference";
        // The first set was generated without a cache; replaying its points with and without one showed that.
        run.task = Task::Generate { new_tokens: whole(point, "new_tokens", 0), keeps_cache: point["kv_cache"] == true };
    }
    let found = estimate(&shape, &run).expect("a run that can be");
    let actual = |key: &str| point[key].as_f64();
    let keys = &["model", "mode", "precision", "optimizer", "batch", "seq", "checkpointing", "attn", "lora_r", "accum", "expandable"];
    let settings = settings(point, keys);
    Some(Point {
        set,
        kind,
        model: shape.name.clone(),
        label: settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ") + " " + &found.phase.to_string(),
        actual: actual("nvml_used")?,
        estimate: found.total,
        allocated: Some((found.allocated.median, actual("peak_allocated")?)),
        params: shape.params(),
        weight_width: states::bytes_per_weight(run.weights),
        shards: 1.0,
        zero: 0,
        settings,
    })
}

/// An image network that we measured ourselves.
fn net(point: &Value) -> Option<Point> {
    let net = vision::find(text(point, "model"))?;
    let mut run = Run::train();
    run.card = cards::find("H200");
    run.batch = whole(point, "batch", 1);
    (run.compute, run.weights) =
        if text(point, "precision") == "fp32" { (Compute::Fp32, Format::Fp32) } else { (Compute::Autocast, Format::Fp32) };
    run.optimizer = if text(point, "optimizer") == "adam" { Optimizer::Adam(Step::Foreach) } else { Optimizer::Momentum };
    if text(point, "mode") == "infer" {
        run.task = Task::Generate { new_tokens: 0, keeps_cache: false };
        run.optimizer = Optimizer::None;
    }
    let found = vision::estimate(net, whole(point, "size", 224), &run).expect("a run that can be");
    let settings = settings(point, &["model", "mode", "precision", "optimizer", "batch", "size"]);
    Some(Point {
        set: "set h200 vision",
        kind: "CNN",
        model: net.name.to_owned(),
        label: settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" "),
        actual: point["nvml_used"].as_f64()?,
        estimate: found.total,
        allocated: Some((found.allocated.median, point["peak_allocated"].as_f64()?)),
        params: 0.0,
        weight_width: 4.0,
        shards: 1.0,
        zero: 0,
        settings,
    })
}

/// A job from somebody's page.
fn published(point: &Value) -> Result<Point, &'static str> {
    let source = text(point, "source");
    let metric = text(point, "metric");
    let model = text(point, "model");
    let method = text(point, "method");
    let task = text(point, "task");
    if point["oom"] == true || point["measured_gib"].is_null() {
        return Err("ran out of memory: no peak");
    }
    if text(point, "note").contains("cached pool, not need") {
        // Its own page has less for twice the sequence: the reading is of what the allocator held by then.
        return Err("the source contradicts itself: less for twice the sequence");
    }
    let mut shape: Shape = known::shape(model).ok_or("no known shape")?;
    if source.contains("litgpt") {
        // Its own model code has PyTorch's GELU in one kernel.
        shape.composed_gelu = false;
    }
    let gpus = whole(point, "gpus", 1);
    let mut run = Run::train();
    run.card = cards::find(text(point, "gpu"));
    // The tools printed decimal gigabytes where they say so and their code is known.
    let mut actual = point["measured_gib"].as_f64().ok_or("no number")? * GIB;
    if let Some(each) = point["per_gpu_gib"].as_f64() {
        actual = each * GIB;
    }
    run.batch = whole(point, "batch", 1);
    run.accumulation = whole(point, "grad_accum", 1);
    if task != "load only" && task != "inference" || point["seq"].is_u64() {
        run.sequence = point["seq"].as_u64().ok_or("no sequence length")?;
    }
    let stored = match text(point, "weights_dtype") {
        "fp16 mixed" | "" => Format::Fp32,
        "int4" => Format::Int4,
        word => Format::parse("weights", word).map_err(|_| "no known weights")?,
    };
    let is_framework_metric = metric.contains("torch max") || metric.contains("framework peak");
    let kind;
    match task {
        "inference" | "load only" => {
            kind = "inference";
            if method.contains("vLLM") || method.contains("SGLang") || method.contains("llama.cpp") || method.contains("pool") {
                return Err("not the peak of one plain process");
            }
            run.task = Task::Generate { new_tokens: if task == "inference" { 50 } else { 0 }, keeps_cache: true };
            (run.optimizer, run.compute) = (Optimizer::None, if stored == Format::Fp32 { Compute::Fp32 } else { Compute::Half });
            (run.weights, run.sequence) = (stored, if task == "load only" { 1 } else { 16 });
        }
        "train" => {
            if point["grad_checkpointing"] == true {
                run.checkpointing = Checkpointing::Full;
            }
            let flash = &point["flash_attention"];
            run.attention = if *flash == false { Attention::Eager } else { Attention::Flash };
            if source.contains("litgpt") {
                // Its own model code; attention through PyTorch's kernel.
                run.attention = Attention::Sdpa;
            }
            if source.contains("perf_train_gpu_one") {
                // Transformers of 2022: attention written out, its own AdamW that walks over single tensors.
                run.attention = Attention::Eager;
            }
            if source.contains("torchtune") {
                // Its recipes' defaults: checkpointing on, the loss in eight chunks.
                (run.checkpointing, run.loss_chunk) = (Checkpointing::Full, run.batch * run.sequence / 8);
            }
            run.compiled = point["compile"] == true;
            let is_adapter = method.contains("lora") || method == "adapter";
            kind = if is_adapter { "LoRA" } else { "full training" };
            if !is_adapter && method != "full" {
                return Err("a method without a formula here");
            }
            run.optimizer = match text(point, "optimizer") {
                "Adafactor" => Optimizer::Adafactor,
                "AdamW 8-bit" => Optimizer::Adam8bit,
                _ if source.contains("perf_train_gpu_one") => Optimizer::Adam(Step::Single),
                _ => Optimizer::Adam(Step::Foreach),
            };
            if is_adapter {
                run.weights = stored;
                // Adapters of peft are fp32; Trainer runs them under autocast. litgpt's are 16 bits as its base.
                let is_peft = !source.contains("litgpt") && !source.contains("torchtune");
                run.compute = if is_peft { Compute::Autocast } else { Compute::Half };
                let targets = match text(point, "lora_targets") {
                    "all linear" => Targets::All,
                    "" if source.contains("QwenLM") => Targets::All,
                    _ => Targets::Some,
                };
                run.lora = Some(Lora {
                    rank: whole(point, "lora_rank", 8),
                    targets,
                    trains_embeddings: point["lora_trains_embeddings"] == true,
                    is_fp32: is_peft,
                });
            } else if stored == Format::Bf16 {
                (run.weights, run.compute) = (Format::Bf16, if source.contains("QwenLM") { Compute::Master } else { Compute::Half });
            } else {
                run.compute = if text(point, "weights_dtype") == "fp32" { Compute::Fp32 } else { Compute::Autocast };
            }
            if text(point, "note").contains("optimizer step inside backward") {
                // Paged: the driver keeps its states in host memory and they count nowhere.
                (run.steps_in_backward, run.optimizer) = (true, Optimizer::Adam8bit);
                run.offload.optimizer = true;
            }
        }
        _ => return Err("neither training nor plain inference"),
    }
    run.parallel.data = if gpus > 1 { gpus } else { 1 };
    run.parallel.zero = u8::try_from(whole(point, "zero_stage", 0)).unwrap_or(0);
    match text(point, "parallelism") {
        "FSDP" | "FSDP2" => {
            run.parallel.zero = 3;
            // litgpt makes the model whole on each GPU before FSDP divides it.
            run.loads_whole = source.contains("litgpt");
        }
        "layers split over GPUs" => {
            run.parallel = Parallel { pipeline: gpus, ..Parallel::ONE };
            let parts = point["per_gpu_parts_gib"].as_array().ok_or("no part for each GPU")?;
            actual = parts.iter().filter_map(Value::as_f64).fold(0.0, f64::max) * GIB;
        }
        "" if gpus > 1 && run.parallel.zero == 0 => return Err("several GPUs, no split given"),
        _ => {}
    }
    if text(point, "note").contains("CPU offload") {
        run.offload = Offload { optimizer: true, weights: true };
    }
    run.varies = text(point, "seq_note").contains("shorter ones exist");
    // None of these ran today's Hugging Face code, which is what the tensors are counted from.
    run.is_foreign = task == "train";
    let found = estimate(&shape, &run).map_err(|_| "the run contradicts itself")?;
    let settings = settings(point, &["model", "method", "weights_dtype", "optimizer", "batch", "seq", "grad_accum", "grad_checkpointing", "flash_attention", "gpus", "lora_rank", "lora_targets", "note"]);
    let settings = settings.into_iter().map(|(key, value)| match key {
        "grad_checkpointing" => ("checkpointing", value),
        "flash_attention" => ("flash", value),
        "weights_dtype" => ("precision", value),
        _ => (key, value),
    });
    let settings: Vec<_> = settings.collect();
    let host = source.split('/').nth(4).unwrap_or("");
    Ok(Point {
        set: "set published",
        kind,
        model: shape.name.clone(),
        label: format!("{} {host} {} {}", text(point, "id"), settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" "), found.phase),
        actual,
        estimate: if is_framework_metric { found.allocated } else { found.total },
        allocated: None,
        params: shape.params(),
        weight_width: states::bytes_per_weight(stored),
        shards: gpus as f64,
        zero: run.parallel.zero,
        settings,
    })
}
