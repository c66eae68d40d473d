//! Tests on a real cluster: API server, scheduler, kubelet, containerd, the chart installed by Helm, a simulated driver.
//!
//! `make test-cluster` brings everything up and runs them: first `calm`, then its `kinds`, `milder` and `gentle` with `admission`,
//! `alerts` and what `story` tests of itself, each in a namespace and on GPUs of its own, then `storm` one after the other, because
//! those hurt the cluster itself. The rest is slow or needs more than the others have, and `make test-more` brings each up for itself:
//! `keda`, `adapter` and `kueue` what others run beside the product, `crashes` leaders to kill, `limits` a release that may suspend.

mod adapter;
mod admission;
mod alerts;
mod calm;
mod crashes;
mod keda;
mod kueue;
mod limits;
mod storm;
mod story;
mod support;
