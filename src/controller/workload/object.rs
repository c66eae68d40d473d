//! Reading one owner, of whatever kind, and only if it is the one that was referred to.

use gpumem_engine::decision::Workload;
use kube::Api;
use kube::core::DynamicObject;

use super::Error;
use super::handle::Target;
use super::kind::Kind;

/// Where an owner is.
pub struct Located(pub Target);

impl Located {
    /// By the version that the reference to it names.
    pub fn of(kind: Kind, workload: &Workload, namespace: &str) -> Self {
        Self(Target {
            api_version: workload.api_version.clone(),
            kind: workload.kind.clone(),
            plural: kind.plural().to_owned(),
            namespace: namespace.to_owned(),
            name: workload.name.clone(),
            uid: workload.uid.0.clone(),
        })
    }

    /// Its API.
    pub fn api(&self, client: &kube::Client) -> Api<DynamicObject> {
        self.0.api(client.clone())
    }

    /// Reads it; `None` when it is gone, or another one has its name by now.
    pub async fn read(&self, client: &kube::Client) -> Result<Option<DynamicObject>, Error> {
        let Target { kind, name, .. } = &self.0;
        let found = self.api(client).get_opt(name).await.map_err(|source| Error::Owner {
            kind: kind.clone(),
            name: name.clone(),
            source,
        })?;
        Ok(found.filter(|object| self.0.is(object)))
    }
}

/// Reads an object by name that must have this controller: what a status names is believed no further than that.
pub async fn read_child(
    client: &kube::Client,
    child: &Target,
    owner_uid: &str,
) -> Result<Option<DynamicObject>, Error> {
    let Target { kind, name, .. } = child;
    let found = child.api(client.clone()).get_opt(name).await.map_err(|source| Error::Owner {
        kind: kind.clone(),
        name: name.clone(),
        source,
    })?;
    let is_owned = |object: &DynamicObject| {
        let references = object.metadata.owner_references.as_deref().unwrap_or_default();
        references.iter().any(|reference| reference.uid == owner_uid)
    };
    Ok(found.filter(is_owned))
}
