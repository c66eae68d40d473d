//! The text PyTorch prints when the driver refuses memory, in the form of its 2.5 and later releases. Pure.

use std::fmt::Write;

use crate::protocol::OutOfMemory;

/// What a PyTorch program writes to stderr before it exits with 1.
pub fn message(refusal: &OutOfMemory) -> String {
    let OutOfMemory { device, requested, total, free, pid, context, held, ref processes } = *refusal;
    let mut text = format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU {device} has a total capacity of {} of \
         which {} is free.",
        size(requested),
        size(total),
        size(free)
    );
    for (other, bytes) in processes.iter().filter(|(other, _)| *other != pid) {
        let _ = write!(text, " Process {other} has {} memory in use.", size(*bytes));
    }
    // Nothing is unallocated here: the simulated workload has no cache of its own.
    let _ = write!(
        text,
        " Including non-PyTorch memory, this process has {} memory in use. Of the allocated memory {} is allocated by \
         PyTorch, and {} is reserved by PyTorch but unallocated.",
        size(context + held),
        size(held),
        size(0)
    );
    text
}

/// As PyTorch writes sizes: two decimals in the largest unit that fits, bytes below a KiB.
fn size(bytes: u64) -> String {
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        0x401..=0x10_0000 => format!("{:.2} KiB", bytes as f64 / 1024.0),
        0x10_0001..=0x4000_0000 => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_capacity_neighbours_and_own_memory() {
        let refusal = OutOfMemory {
            device: 0,
            requested: 38 << 20,
            total: 24 << 30,
            free: 1 << 20 | 1 << 19,
            pid: 31_044,
            context: 512 << 20,
            held: 3 << 29,
            processes: vec![(31_001, 7 << 28), (31_044, 1 << 31)],
        };
        assert_eq!(
            message(&refusal),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 38.00 MiB. GPU 0 has a total capacity of \
             24.00 GiB of which 1.50 MiB is free. Process 31001 has 1.75 GiB memory in use. Including non-PyTorch \
             memory, this process has 2.00 GiB memory in use. Of the allocated memory 1.50 GiB is allocated by PyTorch, \
             and 0 bytes is reserved by PyTorch but unallocated."
        );
    }
}
