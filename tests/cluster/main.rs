//! Tests on a real cluster: API server, scheduler, kubelet, containerd, the chart installed by Helm, a simulated driver.
//!
//! `make test-cluster` brings everything up and runs them: first `calm`, then its `kinds`, `milder` and `gentle` with `admission`,
//! `alerts` and what `story` tests of itself, each in a namespace and on GPUs of its own, then `storm` one after the other, because
//! those hurt the cluster itself. `keda` and `kueue` need what others run beside the product: `make test-more` brings each up for
//! itself.

mod admission;
mod alerts;
mod calm;
mod keda;
mod kueue;
mod storm;
mod story;
mod support;
