//! The authority in its Secrets, and its rotation.

use gpumem::api::names::{AGENT_TLS_NAME, TLS_AGENT_CERT, TLS_CA};
use gpumem::controller::pki::authority::Step;
use gpumem::controller::pki::{AUTHORITY_SUFFIX, Bundle, Keeper};
use gpumem::tls;
use hyper::StatusCode;
use kube::Api as Typed;

use super::api::Api;
use super::played::{agent_material, controller_material, play};
use super::pulls::now;
use crate::support::http::Connection;

const DAY: u64 = 86_400;

fn keeper(api: &Api) -> Keeper {
    Keeper { secrets: Typed::namespaced(api.client(), "gpumem"), name: "gpumem-tls".into() }
}

#[tokio::test]
async fn replicas_that_start_together_agree_on_one_authority() {
    let api = Api::default();
    let (one, other) = (keeper(&api), keeper(&api));
    let (one, other) = tokio::join!(one.keep(now(), false), other.keep(now(), false));
    assert_eq!(one.unwrap(), other.unwrap());
    let mut writes = api.writes();
    writes.sort();
    assert_eq!(writes, ["POST gpumem-tls", "POST gpumem-tls-authority"]);
}

#[tokio::test]
async fn agents_get_no_key_but_their_own() {
    let api = Api::default();
    let bundle = keeper(&api).keep(now(), false).await.unwrap();
    let given = api.object("gpumem-tls")["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(given, ["agent.crt", "agent.key", "ca.crt"]);
    assert!(bundle.to_secret().contains_key("ca.key"));
}

#[tokio::test]
async fn only_the_leader_renews_and_mends() {
    let api = Api::default();
    let first = keeper(&api).keep(now(), false).await.unwrap();
    api.change("gpumem-tls", |secret| secret["data"][TLS_CA] = "Z29uZQ==".into());
    let later = now() + 70 * DAY;
    assert_eq!(keeper(&api).keep(later, false).await.unwrap(), first);
    assert_eq!(api.writes().len(), 2);
    let renewed = keeper(&api).keep(later, true).await.unwrap();
    assert_ne!(renewed.agent, first.agent);
    assert_eq!(api.writes()[2..], [format!("PUT gpumem-tls{AUTHORITY_SUFFIX}"), "PUT gpumem-tls".to_owned()]);
    assert_eq!(keeper(&api).keep(later, true).await.unwrap(), renewed);
    assert_eq!(api.writes().len(), 4);
    assert!(api.object("gpumem-tls")["data"][TLS_AGENT_CERT].is_string());
}

/// At every step of a rotation, a controller that has the step reaches agents that have it and agents that still have the
/// one before, and one that has not seen it yet reaches both.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_of_the_authority_keeps_old_agents_reachable() {
    // Backwards in time, so that everything is valid now: an authority made long ago, due today.
    let year = 365 * DAY;
    let start = now() - 4 * year;
    let mut bundle = Bundle::new(start).unwrap();
    let (mut steps, mut stages) = (Vec::new(), Vec::new());
    let mut at = now() - 2 * DAY;
    while at < now() {
        while let Some((renewed, step)) = bundle.renewed(at).unwrap() {
            bundle = renewed;
            steps.push(step);
            stages.push(bundle.clone());
            if step == Step::Announced || step == Step::Promoted {
                break;
            }
        }
        at += 1800;
    }
    assert_eq!(steps, [Step::Announced, Step::Leaves, Step::Promoted, Step::Retired]);
    // The first stage still carries certificates that have run out; from the second on everything is valid.
    for pair in stages[1..].windows(2) {
        for (agent, controller) in [(&pair[0], &pair[1]), (&pair[1], &pair[0]), (&pair[1], &pair[1])] {
            let served = play(&agent_material(agent), Box::new(|_| (StatusCode::OK, b"{}".to_vec()))).await;
            let client = tls::client(&controller_material(controller)).unwrap();
            let mut connection = Connection::tls(served.address, client, AGENT_TLS_NAME).await.unwrap();
            assert_eq!(connection.get("/v1/usage").await.unwrap().0, 200);
        }
    }
}
