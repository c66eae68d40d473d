//! Everything the plugin asks of a cluster. I/O only: what is found goes out as it is, and what could not be seen as an
//! [`Error`] that says what to do about it.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::policy::GpuMemoryPolicy;
use crate::api::profile::GpuMemoryProfile;
use crate::api::view::{ContainerList, NodeList};
use crate::text::chain;

/// Labels of every pod of the operator; the chart sets them whatever its values are.
pub const PART_OF: &str = "app.kubernetes.io/part-of=gpu-memory-operator";
/// Label that tells agents and controllers apart.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Namespaces that the documentation installs into, tried where pods of all namespaces may not be listed.
const USUAL: [&str; 2] = ["gpumem-system", "gpu-memory-operator"];
/// Objects of a page: the API server answers large lists in parts.
const PAGE: u32 = 500;

/// What could not be seen, and why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kubeconfig, or none that can be used.
    #[error("no way to a cluster: {0}")]
    Config(String),
    /// The API server says no.
    #[error("{what}: not permitted")]
    Forbidden {
        /// What was tried.
        what: String,
        /// The right that is missing, as `kubectl auth can-i` takes it.
        right: String,
    },
    /// The API server does not know who asks.
    #[error("{what}: the API server does not accept your credentials")]
    Unauthenticated {
        /// What was tried.
        what: String,
    },
    /// The object or the kind is not there.
    #[error("{what}: not found")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// Anything else.
    #[error("{what}: {problem}")]
    Api {
        /// What was tried.
        what: String,
        /// How it failed.
        problem: String,
    },
    /// Nothing answers where the API server should be.
    #[error("{what}: {problem}")]
    Unreachable {
        /// What was tried.
        what: String,
        /// How it failed.
        problem: String,
    },
    /// The operator is not where it was looked for.
    #[error("no controller of gpu-memory-operator in {place}")]
    NoController {
        /// Where.
        place: String,
    },
    /// It may be there, and what would show it cannot be read.
    #[error("{what}: cannot be seen, and no status names it\n   {}", why.join("\n   "))]
    Unseen {
        /// What was looked for.
        what: String,
        /// What could not be read, each with what to do about it.
        why: Vec<String>,
    },
    /// The command has no such form: bad input, as where it is misspelt.
    #[error("{what} has no form csv: it takes -o {takes}")]
    Form {
        /// Which command.
        what: &'static str,
        /// What it takes.
        takes: &'static str,
    },
    /// The operator is there, and none of its controllers runs.
    #[error("the controller's Deployment {namespace}/{name} has no ready replica")]
    NoReplica {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Replicas that it asks for.
        wanted: i32,
    },
    /// An answer that is not understood.
    #[error("{what}: the answer is not understood ({problem})")]
    Foreign {
        /// Whose.
        what: String,
        /// Why.
        problem: String,
    },
}

impl Error {
    /// What to do about it.
    pub fn fix(&self) -> String {
        match self {
            Self::Config(_) => "set KUBECONFIG or --kubeconfig, and look at `kubectl config get-contexts`".to_owned(),
            Self::Unauthenticated { .. } => "log in again, or renew the token in your kubeconfig".to_owned(),
            Self::Forbidden { right, .. } => format!("ask for the right to {right}"),
            Self::NotFound { what } if what.contains("gpumem.dev") => {
                "the operator's CRDs are not installed in this cluster, or not in the version of this plugin: install the chart, \
                 or look at your context; `kubectl gpumem doctor` says more"
                    .to_owned()
            }
            Self::NotFound { .. } => "check its name and the namespace (-n)".to_owned(),
            Self::Api { what, .. } | Self::Unreachable { what, .. } if what.starts_with("live data") => {
                "is that controller Ready, and may the API server reach its metrics port (NetworkPolicy)?".to_owned()
            }
            Self::Api { .. } | Self::Unreachable { .. } => {
                "try `kubectl get --raw /readyz`; if that works, run `kubectl gpumem doctor`".to_owned()
            }
            Self::NoController { .. } => {
                "name its namespace with --operator-namespace, or install the chart; is this the right context?"
                    .to_owned()
            }
            Self::Unseen { .. } => {
                "get what is missing, or see what statuses tell with `kubectl gpumem top pods`; it may well be there".to_owned()
            }
            Self::Form { .. } => "use -o json, or -o csv with `kubectl gpumem top`".to_owned(),
            Self::NoReplica { namespace, name, wanted: 0 } => {
                format!("it asks for none: kubectl -n {namespace} scale deployment {name} --replicas=1")
            }
            Self::NoReplica { namespace, name, .. } => format!("kubectl -n {namespace} describe deployment {name}"),
            Self::Foreign { .. } => "plugin and controller differ in version: see `kubectl gpumem version`".to_owned(),
        }
    }

    /// In one line, with what to do.
    pub fn line(&self) -> String {
        format!("{self}; {}", self.fix())
    }

    pub(super) fn of(what: impl Into<String>, right: impl Into<String>, error: kube::Error) -> Self {
        let what = what.into();
        match error {
            kube::Error::Api(status) if status.code == 401 => Self::Unauthenticated { what },
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden { what, right: right.into() },
            kube::Error::Api(status) if status.code == 404 => Self::NotFound { what },
            kube::Error::Api(status) => Self::Api { what, problem: status.message.clone() },
            other => Self::Unreachable { what, problem: chain(&other) },
        }
    }
}

/// A cluster as one person sees it.
#[derive(Clone)]
pub struct Cluster {
    /// To its API.
    pub client: Client,
    /// The namespace to look into; `None` for all.
    pub namespace: Option<String>,
    /// Where the operator is, where that was said.
    pub operator: Option<String>,
    /// The time of day: what a status says is as old as the status.
    pub clock: fn() -> Timestamp,
    /// Address and context of the API server, in words.
    pub server: String,
}

/// The operator in a cluster.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Its namespace.
    pub namespace: String,
    /// Its controllers, the leader first, then Ready ones.
    pub controllers: Vec<Pod>,
    /// Holder of the Lease, and when it was last renewed; `None` where it may not be read.
    pub lease: Option<Lease>,
}

impl Cluster {
    /// The policies of the namespaces that are looked at. One that cannot be read is left out, and `notes` says so.
    pub async fn policies(&self, notes: &mut Vec<String>) -> Result<Vec<GpuMemoryPolicy>, Error> {
        self.custom("gpumemorypolicies.gpumem.dev", notes).await
    }

    /// The profiles of the namespaces that are looked at, in the same way.
    pub async fn profiles(&self, notes: &mut Vec<String>) -> Result<Vec<GpuMemoryProfile>, Error> {
        self.custom("gpumemoryprofiles.gpumem.dev", notes).await
    }

    /// Objects are read one by one: a CRD of another version may hold some that this plugin does not understand.
    async fn custom<K>(&self, kind: &str, notes: &mut Vec<String>) -> Result<Vec<K>, Error>
    where
        K: kube::Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let place = self.place();
        let listed = list(api, ListParams::default()).await;
        let listed = listed
            .map_err(|error| Error::of(format!("{kind} of {place}"), format!("list {kind} in {place}"), error))?;
        let mut found = Vec::new();
        for object in listed {
            let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
            match object.try_parse::<K>() {
                Ok(object) => found.push(object),
                Err(error) => {
                    let note = format!(
                        "{kind} {name} is left out, it is not understood ({}): CRD and plugin differ in version; \
                         `kubectl gpumem doctor` says more",
                        chain(&error)
                    );
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whether a namespace exists, as far as can be seen.
    pub async fn has(&self, namespace: &str) -> bool {
        let api: Api<Namespace> = Api::all(self.client.clone());
        !matches!(api.get_opt(namespace).await, Ok(None))
    }

    /// The namespaces that are looked at, in words.
    pub fn place(&self) -> String {
        self.namespace.as_ref().map_or_else(|| "all namespaces".to_owned(), |name| format!("namespace {name}"))
    }

    /// The operator's pods of a component.
    pub async fn pods(&self, component: &str) -> Result<Vec<Pod>, Error> {
        let params = ListParams::default().labels(&format!("{PART_OF},{COMPONENT}={component}"));
        let wrong = |place: &str, error| Error::of(format!("pods of {place}"), format!("list pods in {place}"), error);
        if let Some(namespace) = &self.operator {
            let api = Api::namespaced(self.client.clone(), namespace);
            return list(api, params).await.map_err(|error| wrong(&format!("namespace {namespace}"), error));
        }
        match list(Api::all(self.client.clone()), params.clone()).await {
            Ok(pods) => Ok(pods),
            Err(everywhere) => {
                for namespace in USUAL {
                    match list(Api::namespaced(self.client.clone(), namespace), params.clone()).await {
                        Ok(pods) if !pods.is_empty() => return Ok(pods),
                        Ok(_) | Err(_) => {}
                    }
                }
                Err(wrong("all namespaces", everywhere))
            }
        }
    }

    /// The operator.
    pub async fn operator(&self) -> Result<Operator, Error> {
        let mut controllers = self.pods("controller").await?;
        let Some(namespace) = controllers.first().and_then(ResourceExt::namespace) else {
            return Err(self.nobody().await);
        };
        controllers.retain(|pod| pod.metadata.namespace.as_deref() == Some(&namespace));
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &namespace);
        let lease = match controllers.first().and_then(|pod| argument(pod, "--lease")) {
            Some(name) => leases.get(&name).await.ok(),
            None => None,
        };
        let leader = lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
        controllers.sort_by_key(|pod| (leader.as_deref() != Some(&pod.name_any()), !is_ready(pod), pod.name_any()));
        Ok(Operator { namespace, controllers, lease })
    }

    /// Why there is no pod of a controller. Whoever may not see Deployments is told no more than that.
    async fn nobody(&self) -> Error {
        let params = ListParams::default().labels(&format!("{PART_OF},{COMPONENT}=controller"));
        let api: Api<Deployment> = match &self.operator {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let found = list(api, params).await.unwrap_or_default();
        if let Some(deployment) = found.first() {
            return Error::NoReplica {
                namespace: deployment.namespace().unwrap_or_default(),
                name: deployment.name_any(),
                wanted: deployment.spec.replicas.unwrap_or(1),
            };
        }
        let place = self.operator.as_ref().map_or("any namespace".to_owned(), |name| format!("namespace {name}"));
        Error::NoController { place }
    }

    /// Containers, from the first controller that answers.
    pub async fn containers(&self, operator: &Operator, query: &str) -> Result<ContainerList, Error> {
        self.ask(operator, &format!("{}{query}", crate::api::view::CONTAINERS)).await
    }

    /// Nodes, from the first controller that answers.
    pub async fn nodes(&self, operator: &Operator) -> Result<NodeList, Error> {
        self.ask(operator, crate::api::view::NODES).await
    }

    /// Through the API server's proxy to pods, so that a kubeconfig is all that is needed.
    async fn ask<T: DeserializeOwned>(&self, operator: &Operator, path: &str) -> Result<T, Error> {
        let Operator { namespace, controllers, .. } = operator;
        let mut first = None;
        for pod in controllers {
            let (name, port) = (pod.name_any(), metrics_port(pod));
            let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}");
            let what = format!("live data of controller {name}");
            let request = hyper::Request::get(uri).body(Vec::new());
            let request = request.map_err(|error| Error::Foreign { what: what.clone(), problem: error.to_string() })?;
            match self.client.request_text(request).await {
                Ok(text) => {
                    return serde_json::from_str(&text)
                        .map_err(|error| Error::Foreign { what, problem: error.to_string() });
                }
                Err(error) => {
                    let error = Error::of(what, format!("get pods/proxy in namespace {namespace}"), error);
                    // What is not permitted for one is not permitted for the next either.
                    if matches!(error, Error::Forbidden { .. } | Error::Unauthenticated { .. }) {
                        return Err(error);
                    }
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or(Error::NoController { place: format!("namespace {namespace}") }))
    }
}

async fn list<K>(api: Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Whether a pod is Ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What stands after a flag in the arguments of a pod's containers.
pub fn argument(pod: &Pod, flag: &str) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    let args: Vec<&String> = containers.iter().flat_map(|container| container.args.iter().flatten()).collect();
    let at = args.iter().position(|arg| *arg == flag)?;
    args.get(at + 1).map(|value| (*value).clone())
}

fn metrics_port(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_deref() == Some("metrics")).map_or(9401, |port| port.container_port)
}
