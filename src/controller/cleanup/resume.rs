//! Lets go on what the operator suspended: once it is gone nobody else would.
//!
//! Flows in: the ledger, which says what was suspended and by which action. Flows out: one patch for each workload that still
//! is, and still by us: what its owner took over or let go on is the owner's.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{info, warn};

use super::Error;
use crate::api::names::{ANNOTATION_SUSPENDED, FIELD_MANAGER};
use crate::controller::act::suspend::{Holder, holder};
use crate::controller::intent::Ledger;
use crate::controller::workload::SuspendHandle;

/// Times that somebody else may write the object between our look and our patch.
const TRIES: usize = 5;

/// Lets all of them go on. A workload that we may not touch any more is named in the log and left as it is; everything else
/// that fails is worth another run, with the ledger still there.
pub async fn all(client: &kube::Client, namespace: &str, ledger: &str) -> Result<(), Error> {
    let ledgers: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = match ledgers.get_opt(ledger).await {
        // An older release's clean-up has no right to read it, and nothing to do with it.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            warn!(ledger, "the ledger may not be read: what the operator suspended stays so");
            return Ok(());
        }
        found => found.map_err(Error::Ledger)?,
    };
    let state = match Ledger::of(found).state {
        Ok(state) => state,
        Err(error) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "the ledger is unreadable: look for workloads with the annotation {ANNOTATION_SUSPENDED}, and let them go on"
            );
            return Ok(());
        }
    };
    for deed in &state.deeds {
        if let Some(handle) = deed.suspension() {
            resume(client, handle, &deed.id).await?;
        }
    }
    // A call whose answer was lost may have suspended its workload all the same.
    for intent in &state.intents {
        if let Some(handle) = intent.suspends() {
            resume(client, handle, &intent.id).await?;
        }
    }
    Ok(())
}

async fn resume(client: &kube::Client, handle: &SuspendHandle, id: &str) -> Result<(), Error> {
    let target = &handle.target;
    let (kind, namespace, name) = (&target.kind, &target.namespace, &target.name);
    let failed =
        |source| Error::Resume { kind: kind.clone(), namespace: namespace.clone(), name: name.clone(), source };
    let api = target.api(client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    for attempt in 1.. {
        let tried = async {
            let object = api.get_opt(name).await?;
            let who = holder(handle, object.as_ref(), id);
            if who != Holder::Ours {
                info!(kind, namespace, name, ?who, "left alone: it is not suspended by us any more");
                return Ok(());
            }
            let mut patch = handle.resume_patch();
            patch["metadata"]["annotations"] = json!({ANNOTATION_SUSPENDED: null});
            patch["metadata"]["resourceVersion"] = json!(object.and_then(|object| object.metadata.resource_version));
            api.patch(name, &params, &Patch::Merge(&patch)).await?;
            info!(kind, namespace, name, "goes on: we had suspended it");
            Ok(())
        };
        match tried.await {
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < TRIES => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                warn!(
                    kind,
                    namespace,
                    name,
                    "stays suspended: the operator suspended it, and the clean-up lacks the right to let it go on; set its \
                     suspension back yourself"
                );
                return Ok(());
            }
            // The definition of its kind is gone, and it with that.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            other => return other.map_err(failed),
        }
    }
    Ok(())
}
