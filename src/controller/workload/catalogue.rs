//! What the API server serves beyond Kubernetes' own kinds, asked for rarely: CRDs come and go, but not by the second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpumem_engine::pacing::Stamp;

use super::Error;

/// Answers are this old at most.
const AGE: Duration = Duration::from_mins(5);

/// See the module. Failures are not remembered. Two that ask for the same at once may both ask the server.
#[derive(Debug, Default)]
pub struct Catalogue(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    groups: Option<(Stamp, HashMap<String, String>)>,
    scales: HashMap<String, (Stamp, Vec<String>)>,
}

impl Catalogue {
    /// The preferred `group/version` of a group; `None` when the group is not served.
    pub async fn preferred(&self, client: &kube::Client, now: Stamp, group: &str) -> Result<Option<String>, Error> {
        if let Some((at, groups)) = &self.answers().groups
            && is_fresh(*at, now)
        {
            return Ok(groups.get(group).cloned());
        }
        let listed =
            client.list_api_groups().await.map_err(|source| Error::Discovery { of: "API groups".into(), source })?;
        let preferred = |group: &k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup| {
            group.preferred_version.as_ref().or(group.versions.first()).map(|version| version.group_version.clone())
        };
        let groups: HashMap<String, String> = listed
            .groups
            .into_iter()
            .filter_map(|group| preferred(&group).map(|version| (group.name, version)))
            .collect();
        let found = groups.get(group).cloned();
        self.answers().groups = Some((now, groups));
        Ok(found)
    }

    /// Whether this resource of this `group/version` has `/scale`.
    pub async fn has_scale(
        &self,
        client: &kube::Client,
        now: Stamp,
        api_version: &str,
        plural: &str,
    ) -> Result<bool, Error> {
        let scale = format!("{plural}/scale");
        if let Some((at, scales)) = self.answers().scales.get(api_version)
            && is_fresh(*at, now)
        {
            return Ok(scales.contains(&scale));
        }
        let listed = match client.list_api_group_resources(api_version).await {
            Ok(listed) => listed.resources.into_iter().map(|resource| resource.name).collect(),
            Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
            Err(source) => return Err(Error::Discovery { of: api_version.to_owned(), source }),
        };
        let scales: Vec<String> = listed.into_iter().filter(|name: &String| name.ends_with("/scale")).collect();
        let found = scales.contains(&scale);
        self.answers().scales.insert(api_version.to_owned(), (now, scales));
        Ok(found)
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A clock that was set back makes an answer old, not young.
fn is_fresh(at: Stamp, now: Stamp) -> bool {
    now >= at && now.since(at) < AGE
}
