//! What the administrator allows, whatever policies say: budgets, namespaces and the breaker's switch.
//!
//! Flows in: one ConfigMap that the chart makes, read anew each round and again before each call, so that an edit holds
//! within seconds. Flows out: [`Limits`]. One that is missing, cannot be read or says anything that we do not know stops
//! every action: a limit that was mistyped is a wish to limit.

use gpumem_engine::decision::Hold;
use gpumem_engine::pacing::{AdminBudgets, Allowance};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde::Deserialize;
use serde_json::Value;

use super::context::Context;

/// Its one key.
const KEY: &str = "limits.json";

/// Why there are no limits to go by.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("reading ConfigMap {name}")]
    Read {
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// It is not there, or lacks its key.
    #[error("ConfigMap {name} with key {KEY} does not exist")]
    Missing {
        /// Its name.
        name: String,
    },
    /// It says something that we do not know.
    #[error("ConfigMap {name}, key {KEY}: {problem}")]
    Malformed {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "limits_read",
            Self::Missing { .. } => "limits_missing",
            Self::Malformed { .. } => "limits_malformed",
        }
    }
}

/// What the administrator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Namespaces whose pods may be acted on; empty means all.
    #[serde(default)]
    pub allowed_namespaces: Vec<String>,
    /// Budgets above all policies.
    #[serde(default)]
    pub budgets: Budgets,
    /// The breaker.
    #[serde(default)]
    pub breaker: Breaker,
}

/// Budgets above all policies, in pods that stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Budgets {
    /// Of the cluster.
    #[serde(default)]
    pub cluster: ClusterBudget,
    /// Of each namespace.
    #[serde(default)]
    pub namespace: Budget,
    /// Of each node.
    #[serde(default)]
    pub node: Budget,
}

/// One budget; what is absent does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Budget {
    /// Pods in disruption at once.
    pub max_concurrent: Option<u32>,
    /// Pods disrupted within any hour.
    pub max_per_hour: Option<u32>,
}

/// The cluster's budget; what is absent does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterBudget {
    /// Pods in disruption at once.
    pub max_concurrent: Option<u32>,
    /// Pods disrupted within any hour.
    pub max_per_hour: Option<u32>,
    /// Percent of the pods that hold GPU memory in disruption at once; at least one pod may.
    pub max_percent: Option<u32>,
}

/// The breaker's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Breaker {
    /// Whether it may open.
    pub enabled: bool,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Limits {
    /// As decisions see them.
    pub fn budgets(&self) -> AdminBudgets {
        let of = |budget: Budget| Allowance { concurrent: budget.max_concurrent, per_hour: budget.max_per_hour };
        let ClusterBudget { max_concurrent, max_per_hour, max_percent } = self.budgets.cluster;
        AdminBudgets {
            cluster: Allowance { concurrent: max_concurrent, per_hour: max_per_hour },
            percent: max_percent,
            namespace: of(self.budgets.namespace),
            node: of(self.budgets.node),
            ..AdminBudgets::default()
        }
    }

    /// Whether pods of this namespace may be acted on.
    pub fn allow(&self, namespace: &str) -> Result<(), Hold> {
        if self.allowed_namespaces.is_empty() || self.allowed_namespaces.iter().any(|allowed| allowed == namespace) {
            Ok(())
        } else {
            Err(Hold::NamespaceNotAllowed { namespace: namespace.to_owned() })
        }
    }

    fn of(name: &str, object: Option<ConfigMap>) -> Result<Self, Error> {
        let text = object.and_then(|object| object.data).and_then(|mut data| data.remove(KEY));
        let text = text.ok_or_else(|| Error::Missing { name: name.to_owned() })?;
        let malformed = |problem: String| Error::Malformed { name: name.to_owned(), problem };
        let value: Value = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        // serde takes a list of values for a struct: `[]` would be read as no limit at all.
        let budgets = value.get("budgets");
        let scopes = budgets.and_then(Value::as_object).into_iter().flat_map(|scopes| scopes.values());
        let objects = [Some(&value), budgets, value.get("breaker")].into_iter().flatten().chain(scopes);
        if !objects.into_iter().all(Value::is_object) {
            return Err(malformed("a list stands where an object should".to_owned()));
        }
        serde_json::from_value(value).map_err(|error| malformed(error.to_string()))
    }
}

/// Reads the limits. A controller that was given no name for them has none.
pub async fn read(ctx: &Context) -> Result<Limits, Error> {
    let Some(name) = &ctx.admin else { return Ok(Limits::default()) };
    let api: Api<ConfigMap> = Api::namespaced(ctx.act.clone(), &ctx.namespace);
    let failed = |source| Error::Read { name: name.clone(), source: Box::new(source) };
    Limits::of(name, api.get_opt(name).await.map_err(failed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Result<Limits, Error> {
        let data = [(KEY.to_owned(), text.to_owned())].into();
        Limits::of("limits", Some(ConfigMap { data: Some(data), ..ConfigMap::default() }))
    }

    #[test]
    fn what_the_chart_writes_is_read() {
        let text = r#"{"allowedNamespaces":["team-a"],"breaker":{"enabled":false},
            "budgets":{"cluster":{"maxConcurrent":2,"maxPerHour":6,"maxPercent":5},"node":{"maxPerHour":0}}}"#;
        let read = limits(text).unwrap();
        assert_eq!(read.budgets().cluster, Allowance { concurrent: Some(2), per_hour: Some(6) });
        assert_eq!(read.budgets().percent, Some(5));
        assert_eq!(read.budgets().namespace, Allowance::default(), "what is absent does not limit");
        assert_eq!(read.budgets().node.per_hour, Some(0));
        assert!(!read.breaker.enabled);
        assert!(read.allow("team-a").is_ok() && read.allow("team-b").is_err());
        assert!(limits("{}").unwrap().breaker.enabled && limits("{}").unwrap().allow("any").is_ok());
    }

    #[test]
    fn what_we_do_not_know_is_no_limit_to_go_by() {
        for text in ["", "{", "[]", "null", r#"{"budget":{}}"#, r#"{"budgets":{"cluster":{"maxConcurent":1}}}"#] {
            assert_eq!(limits(text).unwrap_err().kind(), "limits_malformed", "{text}");
        }
        for text in [r#"{"budgets":[]}"#, r#"{"budgets":{"node":[]}}"#, r#"{"breaker":[true]}"#] {
            assert_eq!(limits(text).unwrap_err().kind(), "limits_malformed", "{text}");
        }
        for text in [r#"{"budgets":{"node":{"maxPerHour":-1}}}"#, r#"{"budgets":{"node":{"maxPercent":5}}}"#] {
            assert_eq!(limits(text).unwrap_err().kind(), "limits_malformed", "{text}");
        }
        assert_eq!(Limits::of("limits", None).unwrap_err().kind(), "limits_missing");
    }
}
