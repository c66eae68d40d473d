//! The public benchmark of the forecast. `cargo bench -p gpumem-engine --bench forecast`.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, missing_docs, dead_code)]

mod corpus;
mod feed;

use corpus::families::ALL;

fn main() {
    for family in ALL {
        let (mut ooms, mut seconds, runs) = (0, 0, 20);
        for seed in corpus::TRAIN.take(runs) {
            let run = corpus::run(family, seed);
            ooms += usize::from(!run.ooms.is_empty());
            seconds += run.seconds();
        }
        println!(
            "{:4} {:20} ooms {:3}/{runs} mean hours {:.1}",
            family.number,
            family.name,
            ooms,
            seconds as f64 / 3600.0 / runs as f64
        );
    }
}
