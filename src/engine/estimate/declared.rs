//! What a pod declares of the job it runs, in the annotation `gpumem.dev/workload`. Flows in: the annotation's text, which a
//! tenant wrote. Flows out: [`Options`], and from them the peak to expect, or the key that is wrong.
//!
//! Three forms of the same keys: `model=llama3.1-8b batch=4` on one line, `model: llama3.1-8b` on a line each, or a JSON
//! object. Keys are the flags of `gpumem estimate`, in any of `loraRank`, `lora-rank` and `lora_rank`.

use serde_json::{Map, Number, Value};

use super::advice::{Remedy, advise};
use super::job::{Job, Model, job};
use super::options::Options;
use super::run::Task;
use super::{Error, Interval, estimate, vision};
use crate::quantity::Bytes;

/// Longest text that is read; a pod's annotations are bounded far below.
const MAX_TEXT: usize = 64 * 1024;

/// Keys whose value is a word.
const WORDS: &[&str] = &[
    "model",
    "config",
    "task",
    "method",
    "precision",
    "weights",
    "optimizer",
    "attention",
    "checkpointing",
    "loraTargets",
    "kvCache",
    "gpu",
];
/// Keys whose value is a whole number.
const COUNTS: &[&str] = &[
    "batch",
    "sequence",
    "accumulation",
    "lossChunk",
    "loraRank",
    "dataParallel",
    "zero",
    "tensorParallel",
    "pipelineParallel",
    "contextParallel",
    "expertParallel",
    "newTokens",
    "batchedTokens",
    "sequences",
    "imageSize",
];
/// Keys whose value may have a fraction.
const NUMBERS: &[&str] = &["utilization", "capacityGib"];
/// Keys that are on or off.
const FLAGS: &[&str] = &[
    "loraEmbeddings",
    "sequenceParallel",
    "offloadOptimizer",
    "offloadWeights",
    "compile",
    "varyingLengths",
    "expandableSegments",
    "otherCode",
    "noCache",
];
/// Other names people know keys by, as `gpumem estimate` takes them.
const ALIASES: &[(&str, &str)] = &[
    ("mode", "task"),
    ("seq", "sequence"),
    ("tp", "tensorParallel"),
    ("pp", "pipelineParallel"),
    ("dtype", "precision"),
    ("quantization", "weights"),
    ("gpuMemoryUtilization", "utilization"),
];

/// Why a declaration is not used. Each names the key to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A part that is no key with a value.
    #[error("`{part}` is no key with a value; write model=llama3.1-8b batch=4, or a key on each line")]
    NoPair {
        /// The part, shortened.
        part: String,
    },
    /// A key that stands for nothing.
    #[error("key `{key}` is not known; keys are the flags of `gpumem estimate`")]
    Key {
        /// Which.
        key: String,
    },
    /// A value of another kind than its key's.
    #[error("key `{key}`: `{value}` is not {wanted}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What was given, shortened.
        value: String,
        /// What would be understood.
        wanted: &'static str,
    },
    /// A key that is given twice.
    #[error("key `{key}` is given twice")]
    Twice {
        /// Which.
        key: &'static str,
    },
    /// Braces around something that is no JSON object.
    #[error("the text begins like a JSON object and is none: {why}")]
    Json {
        /// The reader's words.
        why: String,
    },
    /// More text than anybody declares.
    #[error("the text is longer than {MAX_TEXT} bytes")]
    TooLong,
    /// The estimate's word on it, which names the field.
    #[error(transparent)]
    Estimate(#[from] Error),
}

/// What a pod declares of its job.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The job.
    pub job: Job,
    /// Peak to expect on one GPU, as the driver counts it, in bytes. For a server on a card that was not named it says
    /// nothing: such a server takes a share of whatever card it gets.
    pub peak: Option<Interval>,
    /// The least memory of a card with which the job works, in bytes.
    pub needs: Interval,
}

/// Reads and estimates a declaration.
pub fn declared(text: &str) -> Result<Declared, Problem> {
    let job = job(&options(text)?)?;
    let found = match &job.model {
        Model::Text(shape) => estimate(shape, &job.run)?,
        Model::Image(net, size) => vision::estimate(net, *size, &job.run)?,
    };
    let takes_a_share = matches!(job.run.task, Task::Serve { .. }) && job.run.card.is_none();
    Ok(Declared { peak: (!takes_a_share).then_some(found.total), needs: found.needs, job })
}

impl Declared {
    /// The upper end of the declared peak: growth is expected to end below it.
    pub fn end_of_growth(&self) -> Option<Bytes> {
        self.peak.map(|peak| Bytes::from_f64(peak.high))
    }

    /// Does it not fit a device of `usable` bytes even if everything turns out at its lowest?
    pub fn cannot_fit(&self, usable: Bytes) -> bool {
        self.needs.low > usable.as_f64()
    }

    /// Remedies for a device of `usable` bytes, the first to try first; none for image networks.
    pub fn remedies(&self, usable: Bytes) -> Vec<Remedy> {
        match &self.job.model {
            Model::Text(shape) => advise(shape, &self.job.run, usable.as_f64()).unwrap_or_default(),
            Model::Image(..) => Vec::new(),
        }
    }
}

/// Reads the keys and values of a declaration.
pub fn options(text: &str) -> Result<Options, Problem> {
    if text.len() > MAX_TEXT {
        return Err(Problem::TooLong);
    }
    let mut fields = Map::new();
    if text.trim_start().starts_with('{') {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| Problem::Json { why: error.to_string() })?;
        for (key, value) in object {
            // A word in quotes and a number are both written as their text.
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            take(&mut fields, &key, &value)?;
        }
    } else {
        for line in text.lines().map(without_comment) {
            read_line(&mut fields, line)?;
        }
    }
    // Every field was made of the kind that its key has, so this reads back.
    serde_json::from_value(Value::Object(fields)).map_err(|error| Problem::Json { why: error.to_string() })
}

fn without_comment(line: &str) -> &str {
    let line = line.trim();
    let comment = if line.starts_with('#') { Some(0) } else { line.find(" #") };
    comment.and_then(|at| line.get(..at)).unwrap_or(line).trim_end()
}

/// `key: value` with everything behind the colon, or pairs `key=value` with blanks or commas between them.
fn read_line(fields: &mut Map<String, Value>, line: &str) -> Result<(), Problem> {
    let (colon, equals) = (line.find(": ").or_else(|| line.ends_with(':').then(|| line.len() - 1)), line.find('='));
    if let Some(colon) = colon.filter(|colon| equals.is_none_or(|equals| *colon < equals)) {
        let (key, value) = line.split_at(colon);
        return take(fields, key, value.trim_start_matches(':'));
    }
    for part in line.split([' ', '\t', ',', ';']).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| Problem::NoPair { part: short(part) })?;
        take(fields, key, value)?;
    }
    Ok(())
}

fn take(fields: &mut Map<String, Value>, key: &str, value: &str) -> Result<(), Problem> {
    let value = value.trim();
    let value = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(value);
    let camel = camel_case(key);
    let camel = ALIASES.iter().find(|(alias, _)| *alias == camel).map_or(camel.as_str(), |(_, key)| key);
    let among = |keys: &[&'static str]| keys.iter().copied().find(|known| *known == camel);
    let (key, parsed, wanted) = if let Some(key) = among(WORDS) {
        (key, (!value.is_empty()).then(|| Value::String(value.to_owned())), "a word")
    } else if let Some(key) = among(COUNTS) {
        let most = if key == "zero" { u64::from(u8::MAX) } else { u64::MAX };
        let count = value.parse::<u64>().ok().filter(|count| *count <= most);
        (key, count.map(|count| Value::Number(count.into())), "a whole number")
    } else if let Some(key) = among(NUMBERS) {
        (key, value.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number), "a number")
    } else if let Some(key) = among(FLAGS) {
        (key, value.to_ascii_lowercase().parse::<bool>().ok().map(Value::Bool), "true or false")
    } else {
        return Err(Problem::Key { key: short(key.trim()) });
    };
    let parsed = parsed.ok_or_else(|| Problem::Value { key, value: short(value), wanted })?;
    match fields.insert(key.to_owned(), parsed) {
        None => Ok(()),
        Some(_) => Err(Problem::Twice { key }),
    }
}

/// `lora-rank`, `lora_rank` and `loraRank` are one.
fn camel_case(key: &str) -> String {
    let mut name = String::new();
    let mut is_start = false;
    for c in key.trim().trim_start_matches("--").trim_matches(['"', '\'']).chars() {
        match c {
            '-' | '_' => is_start = true,
            _ if is_start => {
                name.extend(c.to_uppercase());
                is_start = false;
            }
            _ => name.push(c),
        }
    }
    name
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_job_is_read_the_same_in_every_form() {
        let line = options("model=llama-3-8b mode=train batch=4 seq=2048 lora-rank=8 offload_optimizer=true").unwrap();
        let lines = options(
            "# the trainer\nmodel: llama-3-8b # the small one\ntask: 'train'\n\nbatch: 4\nsequence: \"2048\"\nloraRank: 8\n\
             offloadOptimizer: true",
        );
        let json = options(
            r#"{"model": "llama-3-8b", "task": "train", "batch": 4, "seq": 2048, "loraRank": "8", "offload-optimizer": true}"#,
        );
        assert_eq!((&lines.unwrap(), &json.unwrap()), (&line, &line));
        assert_eq!((line.batch, line.sequence, line.lora_rank), (Some(4), Some(2048), Some(8)));
        let spaced = options("gpu: H100-80GB MIG 3g.40gb\nmodel: x").unwrap();
        assert_eq!(spaced.gpu.as_deref(), Some("H100-80GB MIG 3g.40gb"));
    }

    #[test]
    fn every_option_has_a_key() {
        let Value::Object(all) = serde_json::to_value(Options::default()).unwrap() else { panic!("an object") };
        let known: Vec<&str> = [WORDS, COUNTS, NUMBERS, FLAGS].concat();
        for key in all.keys() {
            assert!(known.contains(&key.as_str()), "{key}");
        }
        assert_eq!(known.len(), all.len());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_key() {
        let problem = |text: &str| declared(text).expect_err(text).to_string();
        for (text, expected) in [
            ("model=llama-3-8b batchsize=4", "key `batchsize` is not known"),
            ("model=llama-3-8b batch=four", "key `batch`: `four` is not a whole number"),
            ("model=llama-3-8b zero=300", "key `zero`: `300` is not a whole number"),
            ("model=llama-3-8b compile=maybe", "key `compile`: `maybe` is not true or false"),
            ("model=llama-3-8b model=x", "key `model` is given twice"),
            ("llama-3-8b", "`llama-3-8b` is no key with a value"),
            ("{model: x}", "the text begins like a JSON object and is none"),
            ("batch=4", "model is missing"),
            ("model=nothing-known", "model \"nothing-known\" is not known"),
            ("", "model is missing"),
        ] {
            assert!(problem(text).starts_with(expected), "{text}: {}", problem(text));
        }
    }

    #[test]
    fn a_trainer_has_an_end_of_growth_and_a_server_only_on_a_named_card() {
        let trainer = declared("model=llama3.2-1b batch=1 seq=1024 method=lora").unwrap();
        let peak = trainer.peak.unwrap();
        assert!(peak.low > 0.0 && trainer.end_of_growth() == Some(Bytes::from_f64(peak.high)));
        assert!(trainer.cannot_fit(Bytes::gib(1)) && !trainer.cannot_fit(Bytes::gib(80)));
        assert!(!trainer.remedies(Bytes::gib(4)).is_empty());
        let server = "model=llama3.1-8b task=serve";
        assert_eq!(declared(server).unwrap().end_of_growth(), None);
        assert!(declared(&format!("{server} gpu=A100-80GB")).unwrap().end_of_growth() > Some(Bytes::gib(60)));
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in ".{0,200}") {
            let _ = declared(&text);
        }
    }
}
