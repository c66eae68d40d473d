//! What a process takes beside its tensors: CUDA context, libraries' workspaces, communication, and what the caching
//! allocator holds but does not use. Flows in: run and bytes in use. Flows out: terms. Measured, not derived: sources are
//! our recordings on an H200 (torch 2.11, CUDA 13) and the published figures named at each number.

use super::cards::Generation;
use super::run::{Run, Task};
use super::{Interval, Term};

/// CUDA context and loaded kernels: outside the allocator.
pub const CONTEXT: &str = "CUDA context";
/// NCCL's buffers: outside the allocator.
pub const NCCL: &str = "NCCL";
/// Held by the allocator and not in use.
pub const SLACK: &str = "allocator slack";

/// Terms that the allocator does not count.
pub const OUTSIDE: &[&str] = &[CONTEXT, NCCL];

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;

/// The context of a process that computes: driver state, kernels of PyTorch and cuBLAS as they are loaded.
///
/// 610 MiB for a process that only holds tensors, 758 to 832 MiB for training on an H200 (our recordings); 1,343 MiB on a
/// V100 before kernels were loaded lazily (Transformers' guide on training on one GPU).
pub fn context(run: &Run) -> Term {
    let bytes = match run.card.map(|card| card.generation) {
        Some(Generation::Hopper | Generation::Blackwell) => Interval::new(610.0 * MIB, 785.0 * MIB, 880.0 * MIB),
        Some(Generation::Volta) => Interval::new(400.0 * MIB, 1_200.0 * MIB, 1_400.0 * MIB),
        Some(Generation::Turing | Generation::Ampere | Generation::Ada) | None => {
            Interval::new(300.0 * MIB, 560.0 * MIB, 900.0 * MIB)
        }
    };
    Term { name: CONTEXT, bytes }
}

/// cuBLAS and cuBLASLt workspaces, which PyTorch takes from its own allocator: two of 32 MiB on Hopper, about 8 MiB
/// before (`CUBLAS_WORKSPACE_CONFIG`'s defaults).
pub fn workspace(run: &Run) -> Term {
    let bytes = match run.card.map(|card| card.generation) {
        Some(Generation::Hopper | Generation::Blackwell) => Interval::new(32.0 * MIB, 66.0 * MIB, 80.0 * MIB),
        _ => Interval::new(8.0 * MIB, 20.0 * MIB, 70.0 * MIB),
    };
    Term { name: "workspaces", bytes }
}

/// NCCL's communicators: about 0.5 GiB as a rough rule (Okoge-kaz' memory calculator), and less on few GPUs.
pub fn nccl(run: &Run) -> Term {
    let bytes = if run.parallel.is_split() { Interval::new(0.1 * GIB, 0.5 * GIB, 1.6 * GIB) } else { Interval::ZERO };
    Term { name: NCCL, bytes }
}

/// What the allocator has handed out over a step, in bytes, by how it behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Weights: taken once, in order.
    pub weights: f64,
    /// Optimizer states: taken in the first step, from blocks that activations had before.
    pub optimizer: f64,
    /// Gradients: taken while activations are given back.
    pub gradients: f64,
    /// Activations and temporaries.
    pub activations: f64,
    /// One fp32 copy of the logits, the largest single block.
    pub logits: f64,
    /// 16-bit copies of weights, taken between activations.
    pub casts: f64,
    /// Temporaries of the optimizer's step.
    pub step: f64,
}

/// What the allocator holds by the second step, beside the workspaces: at least this.
///
/// The optimizer's states are made in the first step, from blocks that the loss has just left, and stay: a block of logits
/// with a state in it is never whole again, so that the second step takes new ones. (PyTorch's caching allocator joins a freed
/// block with its neighbours only where they are free too, and gives no segment back by itself: its notes on memory
/// management.) Nothing of it with segments that grow, or where adapters have the only states.
pub fn settled(run: &Run, held: &Held) -> f64 {
    if run.task != Task::Train || run.lora.is_some() || run.expandable {
        return 0.0;
    }
    let Held { weights, optimizer, gradients, activations, logits, casts: _, step } = *held;
    let end = optimizer + gradients + step;
    weights + end.max(activations + 3.0 * logits) + optimizer.min(3.0 * logits)
}

/// Blocks that the caching allocator holds and cannot use at the peak.
///
/// Fitted on 187 training runs on an H200 (leave one model out: median 2 %, nine in ten within 6 % of what is
/// allocated): optimizer states and gradients settle in blocks that activations left, and a step's logits are so large
/// that no freed block fits them. Samples that differ in length make it far worse (PyTorch's notes on
/// `expandable_segments`, which cures it). `least` is what is known to be held in vain for another reason.
pub fn slack(run: &Run, held: &Held, least: f64) -> Term {
    let Held { weights, optimizer, gradients, activations, logits, casts, step: _ } = *held;
    let all = weights + optimizer + gradients + activations + 3.0 * logits;
    let moves = activations + 3.0 * logits;
    let median =
        0.03 * weights + 0.06 * optimizer + 0.08 * gradients + 0.005 * activations + 0.62 * logits + 0.25 * casts;
    let median = median.max(least);
    let bytes = match run.task {
        // 63 training runs: half keep less than 1.3 %, one in twenty more than 14 %, most of it for logits.
        _ if run.expandable => Interval::new(0.0, 0.01 * all + 0.1 * logits, 0.13 * all + 0.3 * logits),
        // Each token makes every tensor a little larger, and no freed block fits.
        Task::Generate { new_tokens, .. } if new_tokens > 0 => {
            Interval::new(0.001 * weights, 0.012 * weights + moves, 0.03 * weights + 4.0 * moves)
        }
        _ if run.varies => Interval::new(0.3 * median, median + 0.9 * moves, median + 2.8 * moves),
        Task::Train if run.is_foreign => Interval::new(0.2 * median, median, median + 0.18 * all),
        Task::Train => Interval::new(0.15 * median, median, median + 0.18 * all),
        _ => Interval::new(0.0, 0.012 * weights + 0.05 * moves, 0.04 * weights + 0.3 * moves),
    };
    Term { name: SLACK, bytes }
}
