//! Events that are written once, whoever writes them and however often: their names follow from what they tell of.
//!
//! Flows in: a key, which names what happened, and an Event. Flows out: one object for each thing that it is about. What was
//! there before, written by this process or by a leader that died since, is left as it is.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::events::{Event, EventType};
use tracing::warn;

use crate::api::names::REPORTER;
use crate::controller::context::Context;
use crate::controller::profile::hash;

/// Readable part of a name; the whole may have 253 characters.
const MAX_READABLE: usize = 200;

/// Writes an Event about an object, unless it is there. False where it has to be tried again.
pub async fn publish(ctx: &Context, key: &str, event: &Event, regarding: &ObjectReference) -> bool {
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let api: Api<Object> = Api::namespaced(ctx.act.clone(), &namespace);
    let now = MicroTime(k8s_openapi::jiff::Timestamp::now());
    let object = Object {
        metadata: ObjectMeta {
            name: Some(name(key, event, regarding)),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        action: Some(event.action.clone()),
        event_time: Some(now),
        note: event.note.clone(),
        reason: Some(event.reason.clone()),
        regarding: Some(regarding.clone()),
        related: event.secondary.clone(),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(ctx.identity.clone()),
        type_: Some(match event.type_ {
            EventType::Normal => "Normal".to_owned(),
            EventType::Warning => "Warning".to_owned(),
        }),
        ..Object::default()
    };
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => true,
        // It is there, or it may not be written: its object is going, its namespace is, or the server finds fault with it.
        Err(kube::Error::Api(status)) if status.code == 409 => true,
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
            warn!(object = regarding.name, error = status.message, "event refused");
            true
        }
        Err(error) => {
            warn!(object = regarding.name, %error, "event not written, trying again");
            false
        }
    }
}

/// The same for the same happening, reason and object.
fn name(key: &str, event: &Event, regarding: &ObjectReference) -> String {
    let kind = regarding.kind.as_deref().unwrap_or_default();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let readable: String = regarding.name.as_deref().unwrap_or_default().chars().take(MAX_READABLE).collect();
    // Each part on a line of its own, so that no two of them can be mistaken for another pair.
    format!(
        "{}.{:016x}",
        readable.trim_end_matches(['.', '-']),
        hash(&format!("{key}\n{}\n{kind}\n{uid}", event.reason))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_same_for_the_same_and_another_for_anything_else() {
        let event = |reason: &str| Event {
            type_: EventType::Warning,
            reason: reason.into(),
            note: None,
            action: "Evict".into(),
            secondary: None,
        };
        let regarding = |uid: &str| ObjectReference {
            name: Some("train-0".into()),
            kind: Some("Pod".into()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        let first = name("id-1", &event("A"), &regarding("u1"));
        assert_eq!(first, name("id-1", &event("A"), &regarding("u1")));
        assert!(first.starts_with("train-0.") && first.len() < 253, "{first}");
        for other in [
            name("id-2", &event("A"), &regarding("u1")),
            name("id-1", &event("B"), &regarding("u1")),
            name("id-1", &event("A"), &regarding("u2")),
        ] {
            assert_ne!(first, other);
        }
    }
}
