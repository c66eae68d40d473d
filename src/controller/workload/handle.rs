//! What it takes to pull a lever of a workload, as plain data that survives a restart: which object, what to write, and how
//! to read back what became of it. Nothing in here calls the API.

use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One object of any kind, named so that it cannot be mistaken for its successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// API version that is served and whose fields we know, for example `batch/v1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Its plural, as it stands in the API's paths.
    pub plural: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl Target {
    /// As kube names a kind.
    pub fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
    }

    /// Its API.
    pub fn api(&self, client: kube::Client) -> Api<DynamicObject> {
        Api::namespaced_with(client, &self.namespace, &self.resource())
    }

    /// Whether a live object is this one.
    pub fn is(&self, object: &DynamicObject) -> bool {
        object.metadata.uid.as_deref() == Some(&self.uid)
    }
}

/// How to suspend a workload and let it go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendHandle {
    /// The object that holds the lever: never one whose manager, higher up, would write it back.
    pub target: Target,
    /// Path of the boolean below the object, for example `["spec", "suspend"]`.
    pub field: Vec<String>,
    /// What the field is when the workload is suspended: `true` for `suspend`, `false` for Kueue's `active`.
    pub suspended: bool,
    /// Pods that stop by it.
    pub blast: u32,
}

/// Whether a workload is suspended, by its spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendState {
    /// It is suspended. Its pods may still be ending.
    Suspended,
    /// It may run.
    Running,
    /// The object is another one than the handle's: nothing may be written to it.
    Replaced,
}

impl SuspendHandle {
    /// JSON merge patch that suspends. It carries the UID: the API server refuses it for a successor of the same name, with
    /// 422 as a field that cannot change (seen on a real one), or with 409 where a resourceVersion was added too.
    pub fn suspend_patch(&self) -> Value {
        self.patch(self.suspended)
    }

    /// JSON merge patch that lets it go on; the UID as above.
    pub fn resume_patch(&self) -> Value {
        self.patch(!self.suspended)
    }

    /// Reads back where the live object stands. An absent field means running: that is every kind's default.
    pub fn state(&self, object: &DynamicObject) -> SuspendState {
        if !self.target.is(object) {
            return SuspendState::Replaced;
        }
        let value = self.field.iter().try_fold(&object.data, |value, key| value.get(key)).and_then(Value::as_bool);
        if value == Some(self.suspended) { SuspendState::Suspended } else { SuspendState::Running }
    }

    fn patch(&self, value: bool) -> Value {
        let mut patch = self.field.iter().rev().fold(json!(value), |inner, key| json!({ key.as_str(): inner }));
        patch["metadata"] = json!({"uid": self.target.uid});
        patch
    }
}

/// How to change the number of a workload's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleHandle {
    /// The object that holds the number.
    pub target: Target,
    /// Where the number is written.
    pub write: ScaleWrite,
    /// What the spec says now.
    pub replicas: u32,
}

/// See [`ScaleHandle::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScaleWrite {
    /// By merge patch on `/scale`. Not by server-side apply: seen on a real server, the first apply to a `/scale` that
    /// nobody wrote is a conflict with `before-first-apply` even where nobody owns the number, and would need force. That
    /// nobody owns it is read from the managed fields instead, and the resourceVersion in the patch ties the write to what
    /// was read.
    Subresource,
    /// A Job's `parallelism`, by merge patch.
    Parallelism,
    /// An elastic Indexed Job's `parallelism` and `completions`, which the API server lets change only together.
    ParallelismAndCompletions,
}

impl ScaleHandle {
    /// Subresource to write to, if not the object itself.
    pub const fn subresource(&self) -> Option<&'static str> {
        match self.write {
            ScaleWrite::Subresource => Some("scale"),
            ScaleWrite::Parallelism | ScaleWrite::ParallelismAndCompletions => None,
        }
    }

    /// JSON merge patch that asks for `replicas` of the object in this `resource_version`: the one in which nobody else was
    /// found to own the number. Whatever was written since is answered with 409. The UID in it is checked for Kubernetes'
    /// own kinds, but not by the `/scale` of a CRD.
    pub fn patch(&self, replicas: u32, resource_version: &str) -> Value {
        let spec = match self.write {
            ScaleWrite::Subresource => json!({"replicas": replicas}),
            ScaleWrite::Parallelism => json!({"parallelism": replicas}),
            ScaleWrite::ParallelismAndCompletions => json!({"parallelism": replicas, "completions": replicas}),
        };
        json!({"metadata": {"uid": self.target.uid, "resourceVersion": resource_version}, "spec": spec})
    }

    /// Who else owns the number, by the live object's own record of its managers.
    pub fn owned_by(&self, object: &DynamicObject) -> Option<String> {
        super::replicas::manager(object, self.write)
    }

    /// Reads the number back from the live object (not from its Scale); `None` for another object of the name. A number
    /// that is absent is 1, every kind's default; one that is no count is 0.
    pub fn replicas_of(&self, object: &DynamicObject) -> Option<u32> {
        if !self.target.is(object) {
            return None;
        }
        let field = match self.write {
            ScaleWrite::Subresource => "replicas",
            ScaleWrite::Parallelism | ScaleWrite::ParallelismAndCompletions => "parallelism",
        };
        Some(super::number::or(&object.data["spec"][field], 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            api_version: "batch/v1".to_owned(),
            kind: "Job".to_owned(),
            plural: "jobs".to_owned(),
            namespace: "ml".to_owned(),
            name: "train".to_owned(),
            uid: "u1".to_owned(),
        }
    }

    fn object(uid: &str, spec: Value) -> DynamicObject {
        let object =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": uid}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_suspension_is_written_with_the_uid_and_read_back_from_the_spec() {
        let nested = SuspendHandle {
            target: target(),
            field: vec!["spec".into(), "runPolicy".into(), "suspend".into()],
            suspended: true,
            blast: 4,
        };
        assert_eq!(
            nested.suspend_patch(),
            json!({"metadata": {"uid": "u1"}, "spec": {"runPolicy": {"suspend": true}}})
        );
        assert_eq!(
            nested.resume_patch(),
            json!({"metadata": {"uid": "u1"}, "spec": {"runPolicy": {"suspend": false}}})
        );
        let active = SuspendHandle { field: vec!["spec".into(), "active".into()], suspended: false, ..nested.clone() };
        assert_eq!(active.suspend_patch(), json!({"metadata": {"uid": "u1"}, "spec": {"active": false}}));
        for (handle, spec, state) in [
            (&nested, json!({}), SuspendState::Running),
            (&nested, json!({"runPolicy": {"suspend": "yes"}}), SuspendState::Running),
            (&nested, json!({"runPolicy": {"suspend": true}}), SuspendState::Suspended),
            (&active, json!({}), SuspendState::Running),
            (&active, json!({"active": true}), SuspendState::Running),
            (&active, json!({"active": false}), SuspendState::Suspended),
        ] {
            assert_eq!(handle.state(&object("u1", spec.clone())), state, "{spec}");
        }
        assert_eq!(active.state(&object("u2", json!({"active": false}))), SuspendState::Replaced);
    }

    #[test]
    fn a_handle_reads_back_from_the_record_it_was_written_to() {
        let handle = ScaleHandle { target: target(), write: ScaleWrite::ParallelismAndCompletions, replicas: 3 };
        let read: ScaleHandle = serde_json::from_str(&serde_json::to_string(&handle).unwrap()).unwrap();
        assert_eq!(read, handle);
        let spec = json!({"parallelism": 4, "completions": 4});
        assert_eq!(handle.patch(4, "7"), json!({"metadata": {"uid": "u1", "resourceVersion": "7"}, "spec": spec}));
    }

    #[test]
    fn a_number_that_is_no_count_is_none_and_an_absent_one_is_the_default() {
        let handle = ScaleHandle { target: target(), write: ScaleWrite::Subresource, replicas: 3 };
        for (spec, replicas) in [
            (json!({}), Some(1)),
            (json!({"replicas": null}), Some(1)),
            (json!({"replicas": 3}), Some(3)),
            (json!({"replicas": -3}), Some(0)),
            (json!({"replicas": 1.5}), Some(0)),
            (json!({"replicas": "3"}), Some(0)),
            (json!({"replicas": 99_999_999_999_u64}), Some(u32::MAX)),
        ] {
            assert_eq!(handle.replicas_of(&object("u1", spec.clone())), replicas, "{spec}");
        }
        assert_eq!(handle.replicas_of(&object("u2", json!({}))), None);
    }
}
