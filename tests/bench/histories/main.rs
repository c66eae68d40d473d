//! A million histories: `cargo bench -p gpumem-engine --bench histories [-- --histories N --from SEED]`.
//!
//! Each is a random interleaving of risks, answers, refusals, crashes and two controllers, see `model.rs`. The first broken
//! promise ends the run with its seed. The first ten thousand are part of the engine's unit tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_types, clippy::disallowed_methods, missing_docs)]

mod model;

fn main() {
    let value = |name: &str| {
        let mut words = std::env::args().skip_while(|word| word != name);
        words.nth(1).map(|text| text.parse::<u64>().expect("a number"))
    };
    let (histories, from) = (value("--histories").unwrap_or(1_000_000), value("--from").unwrap_or(0));
    let began = std::time::Instant::now();
    let mut total = model::Tally::default();
    for seed in from..from + histories {
        match model::play(seed) {
            Ok(tally) => total.add(tally),
            Err(broken) => {
                eprintln!("history {seed}: {broken}");
                std::process::exit(1);
            }
        }
    }
    println!("{total:?}");
    println!("figure histories_without_a_broken_promise {histories} histories");
    println!("figure histories_disruptions {} actions", total.disruptions);
    println!("figure histories_crashes {} crashes", total.crashes);
    println!("figure histories_seconds {:.1} s", began.elapsed().as_secs_f64());
}
