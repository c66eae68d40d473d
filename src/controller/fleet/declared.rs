//! What a pod declares of the job it runs, read once for each text. Flows in: the annotation that its owner wrote. Flows
//! out: where its growth should end, and a sentence for the forecast's reason where that is not as declared.

use gpumem_engine::estimate::declared::{Declared, Problem, declared};
use gpumem_engine::quantity::Bytes;

use crate::api::names::ANNOTATION_WORKLOAD;

/// A declaration, or what is wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// The annotation.
    pub text: String,
    /// What it says.
    pub read: Result<Declared, Problem>,
}

/// A peak up to this much above the declared one is within what an estimate may err by; the engine's forecast uses the same.
const TOLERANCE: f64 = 1.05;

impl Declaration {
    /// Reads an annotation.
    pub fn read(text: &str) -> Self {
        Self { text: text.to_owned(), read: declared(text) }
    }

    /// Where growth should end.
    pub fn end_of_growth(&self) -> Option<Bytes> {
        self.read.as_ref().ok()?.end_of_growth()
    }

    /// What to add to the reason of a container whose memory reached `peak`.
    pub fn remark(&self, peak: Bytes) -> Option<String> {
        match &self.read {
            Err(problem) => Some(format!("annotation {ANNOTATION_WORKLOAD} is not used: {problem}")),
            Ok(declared) => {
                let expected = declared.peak?;
                let exceeds = peak.as_f64() > TOLERANCE * expected.high;
                exceeds.then(|| format!("exceeds what was declared: {peak} where {expected} was expected at most"))
            }
        }
    }
}
