//! Shapes as text: `name:key=value,key=value`, and back.
//!
//! Flows in: text from a flag, an environment variable or a scenario. Flows out: a shape, or an error that names the key.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Curve, Options, Shape};
use crate::units::{Rate, format_duration, format_size, parse_duration, parse_size};

pub(super) const SHAPES: &str = "plateau, leak, stairs, saw, pool, load, spike, crash";
const COMMON_KEYS: [&str; 10] =
    ["start", "until", "stop", "drift", "chunk", "jitter", "seed", "context", "exit", "crash"];

/// Why a text is not a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ShapeError {
    #[error("`{name}` is not a shape; known are {SHAPES}")]
    UnknownShape { name: String },
    #[error("`{text}` is not of the form key=value")]
    NotAPair { text: String },
    #[error("`{key}` is given twice")]
    Repeated { key: String },
    #[error("{shape} needs `{key}`")]
    Missing { shape: &'static str, key: &'static str },
    #[error("{shape} has no key `{key}`; known are {known}")]
    UnknownKey { shape: &'static str, key: String, known: String },
    #[error("`{key}`: {why}")]
    BadValue { key: &'static str, why: String },
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let (name, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let shape = match name {
            "plateau" => "plateau",
            "leak" => "leak",
            "stairs" => "stairs",
            "saw" => "saw",
            "pool" => "pool",
            "load" => "load",
            "spike" => "spike",
            "crash" => "crash",
            _ => return Err(ShapeError::UnknownShape { name: name.to_owned() }),
        };
        let mut fields = Fields::split(shape, rest)?;
        let curve = match shape {
            "plateau" => Curve::Plateau { at: fields.need("at", parse_size)? },
            "leak" => Curve::Leak { from: fields.size_or_zero("from")?, rate: fields.need("rate", Rate::from_str)? },
            "stairs" => Curve::Stairs {
                from: fields.size_or_zero("from")?,
                step: fields.need("step", parse_size)?,
                every: fields.need("every", parse_interval)?,
            },
            "saw" => Curve::Saw {
                from: fields.size_or_zero("from")?,
                to: fields.need("to", parse_size)?,
                period: fields.need("period", parse_interval)?,
            },
            "pool" => Curve::Pool {
                at: fields.need("at", parse_size)?,
                weights: fields.size_or_zero("weights")?,
                load: fields.take("load", parse_duration)?.unwrap_or_default(),
            },
            "load" => Curve::Load {
                from: fields.size_or_zero("from")?,
                to: fields.need("to", parse_size)?,
                over: fields.need("over", parse_duration)?,
            },
            "spike" => Curve::Spike {
                from: fields.size_or_zero("from")?,
                to: fields.need("to", parse_size)?,
                every: fields.need("every", parse_interval)?,
                lasting: fields.take("for", parse_duration)?.unwrap_or(Duration::from_secs(1)),
            },
            _ => Curve::Crash {
                from: fields.size_or_zero("from")?,
                to: fields.need("to", parse_size)?,
                over: fields.need("over", parse_duration)?,
                code: fields.take("code", parse_number)?.unwrap_or(1),
            },
        };
        let defaults = Options::default();
        let options = Options {
            start: fields.take("start", parse_duration)?.unwrap_or_default(),
            until: fields.take("until", parse_duration)?,
            stop: fields.take("stop", parse_size)?,
            drift: fields.take("drift", Rate::from_str)?.unwrap_or_default(),
            chunk: fields.take("chunk", parse_size)?.unwrap_or(defaults.chunk),
            jitter: fields.take("jitter", parse_size)?.unwrap_or_default(),
            seed: fields.take("seed", parse_number)?.unwrap_or_default(),
            context: fields.take("context", parse_size)?,
            exit: fields.take("exit", parse_duration)?,
            crash: fields.take("crash", parse_duration)?,
        };
        fields.finish()?;
        Ok(Self { curve, options })
    }
}

impl fmt::Display for Shape {
    /// Text that parses back to the same shape; options at their default are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, time) = (format_size, format_duration);
        match self.curve {
            Curve::Plateau { at } => write!(f, "plateau:at={}", size(at)),
            Curve::Leak { from, rate } => write!(f, "leak:from={},rate={rate}", size(from)),
            Curve::Stairs { from, step, every } => {
                write!(f, "stairs:from={},step={},every={}", size(from), size(step), time(every))
            }
            Curve::Saw { from, to, period } => {
                write!(f, "saw:from={},to={},period={}", size(from), size(to), time(period))
            }
            Curve::Pool { at, weights, load } => {
                write!(f, "pool:at={},weights={},load={}", size(at), size(weights), time(load))
            }
            Curve::Load { from, to, over } => write!(f, "load:from={},to={},over={}", size(from), size(to), time(over)),
            Curve::Spike { from, to, every, lasting } => {
                write!(f, "spike:from={},to={},every={},for={}", size(from), size(to), time(every), time(lasting))
            }
            Curve::Crash { from, to, over, code } => {
                write!(f, "crash:from={},to={},over={},code={code}", size(from), size(to), time(over))
            }
        }?;
        let Options { start, until, stop, drift, chunk, jitter, seed, context, exit, crash } = self.options.clone();
        let defaults = Options::default();
        let mut option = |key: &str, value: Option<String>| value.map_or(Ok(()), |v| write!(f, ",{key}={v}"));
        option("start", (start != defaults.start).then(|| time(start)))?;
        option("until", until.map(time))?;
        option("stop", stop.map(size))?;
        option("drift", (drift != defaults.drift).then(|| drift.to_string()))?;
        option("chunk", (chunk != defaults.chunk).then(|| size(chunk)))?;
        option("jitter", (jitter != defaults.jitter).then(|| size(jitter)))?;
        option("seed", (seed != defaults.seed).then(|| seed.to_string()))?;
        option("context", context.map(size))?;
        option("exit", exit.map(time))?;
        option("crash", crash.map(time))
    }
}

/// The pairs of one text, taken out one by one; what is left over at the end was a mistake.
struct Fields<'a> {
    shape: &'static str,
    pairs: BTreeMap<&'a str, &'a str>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn split(shape: &'static str, text: &'a str) -> Result<Self, ShapeError> {
        let mut pairs = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| ShapeError::NotAPair { text: pair.to_owned() })?;
            if pairs.insert(key.trim(), value.trim()).is_some() {
                return Err(ShapeError::Repeated { key: key.trim().to_owned() });
            }
        }
        Ok(Self { shape, pairs, known: Vec::new() })
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ShapeError> {
        if !COMMON_KEYS.contains(&key) {
            self.known.push(key);
        }
        self.pairs.remove(key).map(|value| parse(value).map_err(|why| ShapeError::BadValue { key, why })).transpose()
    }

    fn need<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, ShapeError> {
        let shape = self.shape;
        self.take(key, parse)?.ok_or(ShapeError::Missing { shape, key })
    }

    fn size_or_zero(&mut self, key: &'static str) -> Result<u64, ShapeError> {
        Ok(self.take(key, parse_size)?.unwrap_or_default())
    }

    fn finish(mut self) -> Result<(), ShapeError> {
        match self.pairs.pop_first() {
            None => Ok(()),
            Some((key, _)) => {
                self.known.extend(COMMON_KEYS);
                Err(ShapeError::UnknownKey { shape: self.shape, key: key.to_owned(), known: self.known.join(", ") })
            }
        }
    }
}

/// A duration that is divided by, so not zero.
fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        interval => Ok(interval),
    }
}

fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in range"))
}
