//! `pause` and `resume`: the administrator's brake over every policy, a key of the ledger that the controller reads right
//! before each act. A pause over a pause keeps the reason that somebody gave, unless a new one is given. No restart, no Helm: it holds within seconds, and for actions already recorded too.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::cluster::{Cluster, Error, argument};
use super::table::Style;
use crate::cli::Shown;
use crate::cli::page::fit;

/// Key of the pause in the ledger, as `controller::intent` reads it.
const PAUSE: &str = "pause";
/// Who wrote it.
const MANAGER: &str = "kubectl-gpumem";

/// What is written where no reason is given.
const NO_REASON: &str = "paused with kubectl gpumem";

/// What to do with the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<'a> {
    /// Pause, for a reason where one is given.
    Pause(Option<&'a str>),
    /// End the pause.
    Resume,
}

/// Pauses, or ends the pause.
pub async fn set(cluster: &Cluster, turn: Turn<'_>, style: Style) -> Result<Shown, Error> {
    let operator = cluster.operator().await?;
    let namespace = operator.namespace;
    let name = operator.controllers.iter().find_map(|pod| argument(pod, "--ledger")).ok_or_else(|| {
        Error::NotFound { what: format!("the argument --ledger of a controller in namespace {namespace}") }
    })?;
    let what = format!("ConfigMap {namespace}/{name}");
    let right = |verb: &str| format!("{verb} configmaps in namespace {namespace}");
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(|error| Error::of(&what, right("get"), error))?;
    let before = found.as_ref().and_then(|ledger| ledger.data.as_ref()?.get(PAUSE).cloned()).unwrap_or_default();
    let old = before.trim();
    let reason = match turn {
        Turn::Resume => None,
        Turn::Pause(None) if !old.is_empty() => {
            let said = format!(
                "paused already, and it stays so until `kubectl gpumem resume` (ledger {namespace}/{name}, reason: {old})\n"
            );
            return Ok(Shown::fine(fit(&said, style.page())));
        }
        Turn::Pause(given) => Some(given.unwrap_or(NO_REASON)),
    };
    let text = match (reason, found) {
        (None, _) if old.is_empty() => {
            return Ok(Shown::fine(format!("nothing is paused (ledger {namespace}/{name})\n")));
        }
        (Some(reason), None) => {
            let ledger = ConfigMap {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                data: Some([(PAUSE.to_owned(), reason.to_owned())].into()),
                ..ConfigMap::default()
            };
            let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            let created = api.create(&params, &ledger).await;
            created.map_err(|error| Error::of(&what, right("create"), error))?.name_any()
        }
        (_, Some(_)) | (None, None) => {
            // A merge patch of one key: whatever the controller writes meanwhile stays, and its own write, made on the old
            // version, meets a conflict and reads the pause.
            let patch = json!({ "data": { (PAUSE): reason } });
            let params = PatchParams::apply(MANAGER);
            let patched = api.patch(&name, &PatchParams { force: false, ..params }, &Patch::Merge(&patch)).await;
            patched.map_err(|error| Error::of(&what, right("patch"), error))?.name_any()
        }
    };
    let said = match reason {
        Some(reason) if !old.is_empty() => format!(
            "paused already (reason: {old}); the reason is now: {reason} (ledger {namespace}/{text})\nIt holds until \
             `kubectl gpumem resume`.\n"
        ),
        Some(reason) => format!(
            "paused: no policy of this cluster acts until `kubectl gpumem resume` (ledger {namespace}/{text}, \
             reason: {reason})\nForecasts, statuses and alerts go on.\n"
        ),
        None => format!("resumed: policies act again as their modes allow (was paused: {old})\n"),
    };
    Ok(Shown::fine(fit(&said, style.page())))
}
