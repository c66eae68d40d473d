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

/// Blocks that the caching allocator holds and cannot use at the peak, for `stays` bytes that live through all steps and
/// `moves` bytes that come and go.
///
/// From our recordings: what stays hardly fragments; what comes and goes leaves 2 to 12 %, more where a step's
/// temporaries are large. Samples that differ in length make blocks that rarely fit again (PyTorch's notes on
/// `expandable_segments`, which cures it).
pub fn slack(run: &Run, stays: f64, moves: f64) -> Term {
    let (low, median, high) = match run.task {
        _ if run.expandable => (0.0, 0.01, 0.04),
        // Each token makes every tensor a little larger, and no freed block fits.
        Task::Generate { new_tokens, .. } if new_tokens > 0 => (0.05, 1.0, 4.0),
        _ if run.varies => (0.02, 0.45, 1.1),
        _ => (0.0, 0.05, 0.16),
    };
    let bytes = Interval::new(0.001 * stays + low * moves, 0.012 * stays + median * moves, 0.05 * stays + high * moves);
    Term { name: SLACK, bytes }
}
