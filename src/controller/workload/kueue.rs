//! Whether Kueue admits a workload, and by which Workload object. What Kueue admits is left to its lever: an eviction past
//! it would fight its quota.

use std::collections::BTreeMap;

use gpumem_engine::decision::{Hold, Workload};
use gpumem_engine::pacing::Stamp;
use kube::Api;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};

use super::Error;
use super::catalogue::Catalogue;
use super::handle::Target;
use super::kind::Kind;

const GROUP: &str = "kueue.x-k8s.io";
/// Labels of a pod or an owner that Kueue admits.
const MARKS: [&str; 3] = ["kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed", "kueue.x-k8s.io/podset"];
/// Label of a Workload with the UID of the Job it admits.
const JOB_UID: &str = "kueue.x-k8s.io/job-uid";

/// What Kueue has to do with a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing.
    None,
    /// It admits it, by this Workload, which is active or not.
    By(Box<Target>, bool),
    /// It admits it, and the Workload is not to be found or not the only one.
    Somehow,
}

/// Looks for the Workload that admits one of these owners. Kueue may manage Jobs that bear none of its marks, so where it
/// is installed the Workloads are asked for in any case.
pub async fn admission(
    client: &kube::Client,
    catalogue: &Catalogue,
    now: Stamp,
    namespace: &str,
    owners: &[Workload],
    is_marked: bool,
) -> Result<Admission, Hold> {
    // A mark alone does nothing where Kueue is not installed.
    let served = catalogue.preferred(client, now, GROUP).await.map_err(Error::into_hold)?;
    let Some(api_version) = served else { return Ok(Admission::None) };
    let version = api_version.rsplit_once('/').map_or("", |(_, version)| version);
    let plural = Kind::KueueWorkload.plural();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, version, "Workload"), plural);
    let uids: Vec<&str> = owners.iter().map(|owner| owner.uid.0.as_str()).collect();
    let selector = format!("{JOB_UID} in ({})", uids.join(","));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let listed = match api.list(&ListParams::default().labels(&selector)).await {
        Ok(listed) => listed.items,
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Admission::None),
        Err(source) => {
            let namespace = namespace.to_owned();
            return Err(Error::Listing { what: "Kueue's Workloads", namespace, source }.into_hold());
        }
    };
    // The label is anybody's to write; the owner is not.
    let admits = |object: &&DynamicObject| {
        let references = object.metadata.owner_references.as_deref().unwrap_or_default();
        references.iter().any(|reference| uids.contains(&reference.uid.as_str())) && !is_finished(object)
    };
    let found: Vec<&DynamicObject> = listed.iter().filter(admits).collect();
    Ok(match found.as_slice() {
        [] if is_marked => Admission::Somehow,
        [] => Admission::None,
        [one] => {
            let target = Target {
                api_version,
                kind: "Workload".to_owned(),
                plural: plural.to_owned(),
                namespace: namespace.to_owned(),
                name: one.metadata.name.clone().unwrap_or_default(),
                uid: one.metadata.uid.clone().unwrap_or_default(),
            };
            Admission::By(Box::new(target), one.data["spec"]["active"] != false)
        }
        [..] => Admission::Somehow,
    })
}

/// Whether labels say that Kueue admits their object.
pub fn is_marked(labels: &BTreeMap<String, String>) -> bool {
    MARKS.iter().any(|mark| labels.contains_key(*mark))
}

fn is_finished(workload: &DynamicObject) -> bool {
    let conditions = workload.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Finished" && condition["status"] == "True")
}
