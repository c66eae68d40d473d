//! The controller: pulls every agent, keeps the series, forecasts; the leader decides and acts.
//!
//! Flows in: flags, the API, the agents. Flows out: metrics, statuses, actions. This file wires the tasks; one that ends
//! before it was told to ends the process, with the reason in the termination log.

use std::process::ExitCode;

// Reading order.
pub mod at_once;

pub mod context;

pub mod args;

pub mod pki;

pub mod leader;

pub mod pull;

pub mod peer;

pub mod fleet;

pub mod metrics;

pub mod view;

pub mod now;

pub mod granted;

pub mod admin;

pub mod reconcile;

pub mod observe;

pub mod workload;

pub mod intent;

pub mod stock;

pub mod act;

pub mod limits;

pub mod profile;

pub mod hook;

pub mod report;

pub mod truth;

pub mod cleanup;

pub mod health;

mod clients;

mod run;

pub use args::Args;

/// Runs until a signal.
pub fn main(args: Args) -> ExitCode {
    let termination_log = args.termination_log.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run::run(args)),
        Err(source) => Err(run::Error::Runtime(source)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let reason = crate::text::chain(&error);
            tracing::error!(error = reason, "controller ended");
            // Kubernetes shows this file's text as the container's last state; elsewhere it may not exist.
            if termination_log.exists() {
                let _ = std::fs::write(&termination_log, &reason);
            }
            ExitCode::FAILURE
        }
    }
}
