//! Writes the Grafana dashboards: `cargo run --example dashboards`.
//!
//! What flows in: metric names and the boards below. What flows out: `deploy/dashboards/*.json`, and the same files where the
//! chart finds them. Never edit the JSON: `tests/it/boards.rs` compares it with what this program writes.

use std::path::Path;

mod boards;
mod panel;

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["deploy/dashboards", "charts/gpu-memory-operator/files/dashboards"] {
        std::fs::create_dir_all(root.join(folder))?;
        for (file, text) in boards::all() {
            std::fs::write(root.join(folder).join(file), text)?;
        }
    }
    Ok(())
}
