//! The Lease: one leader, none while the API is away, and no theft by a wrong clock.

use std::time::{Duration, Instant};

use gpumem::controller::leader::{Candidate, Leadership, Terms, run};
use kube::Api as Typed;
use tokio::sync::{oneshot, watch};

use super::api::Api;
use crate::support::eventually;

const TERMS: Terms = Terms {
    duration: Duration::from_millis(1500),
    renew_within: Duration::from_secs(1),
    retry: Duration::from_millis(200),
};

struct Replica {
    leadership: watch::Receiver<Leadership>,
    stop: oneshot::Sender<()>,
}

fn replica(api: &Api, identity: &str) -> Replica {
    let candidate = Candidate {
        leases: Typed::namespaced(api.client(), "gpumem"),
        name: "gpumem-controller".into(),
        identity: identity.into(),
        terms: TERMS,
    };
    let (publish, leadership) = watch::channel(Leadership::follower(identity, Instant::now()));
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(run(candidate, publish, async {
        let _ = stopped.await;
    }));
    Replica { leadership, stop }
}

impl Replica {
    fn leads(&self) -> bool {
        self.leadership.borrow().is_leader
    }

    async fn until(&self, leads: bool) {
        self.leadership.clone().wait_for(|known| known.is_leader == leads).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_leads_and_another_takes_over_at_once_when_it_stops() {
    let api = Api::default();
    let one = replica(&api, "one");
    one.until(true).await;
    let other = replica(&api, "other");
    tokio::time::sleep(2 * TERMS.duration).await;
    assert!(one.leads() && !other.leads());
    let stopped = Instant::now();
    one.stop.send(()).unwrap();
    other.until(true).await;
    assert!(stopped.elapsed() < TERMS.duration, "the Lease was not given up: {:?}", stopped.elapsed());
    assert_eq!(api.object("gpumem-controller")["spec"]["leaseTransitions"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_api_is_away_stops_leading_before_another_may_start() {
    let api = Api::default();
    let one = replica(&api, "one");
    one.until(true).await;
    api.hang(true);
    let began = Instant::now();
    one.until(false).await;
    assert!(began.elapsed() <= TERMS.renew_within + TERMS.retry, "{:?}", began.elapsed());
    api.hang(false);
    one.until(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_wall_clock_neither_steals_nor_keeps_a_lease() {
    let api = Api::default();
    let one = replica(&api, "one");
    one.until(true).await;
    let other = replica(&api, "other");
    // As if the leader's clock were years behind: its renewals still change, and that is what counts.
    let began = Instant::now();
    while began.elapsed() < 2 * TERMS.duration {
        tokio::time::sleep(TERMS.retry / 2).await;
        api.change("gpumem-controller", |lease| {
            let second = began.elapsed().as_millis() % 60;
            lease["spec"]["renewTime"] = format!("2001-01-01T00:00:{second:02}.000000Z").into();
        });
        assert!(!other.leads());
    }
    // A dead leader whose clock was years ahead is replaced all the same.
    drop(one.stop);
    let text = || api.object("gpumem-controller")["spec"]["holderIdentity"].clone();
    eventually("the other leads", async || (text() == "other").then_some(())).await;
    api.change("gpumem-controller", |lease| {
        lease["spec"]["holderIdentity"] = "dead".into();
        lease["spec"]["renewTime"] = "2100-01-01T00:00:00.000000Z".into();
    });
    other.until(false).await;
    other.until(true).await;
}
