//! The cluster the tests run in, as the environment describes it.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What `make test-cluster` prepared.
pub struct World {
    /// Client with the administrator's rights.
    pub client: kube::Client,
    /// Image of the product.
    pub image: String,
    /// The script that runs the cluster.
    script: String,
    /// Name of the cluster, which the control groups of its pods are under.
    name: String,
}

impl World {
    /// The prepared cluster, or how to get it.
    pub async fn find() -> Result<Self> {
        let missing = "these tests need a prepared cluster: run `make test-cluster`";
        let image = std::env::var("GPUMEM_TEST_IMAGE").context(missing)?;
        let script = std::env::var("GPUMEM_TEST_CLUSTER").context(missing)?;
        let name = std::env::var("CLUSTER_NAME").context(missing)?;
        let client = kube::Client::try_default().await.context(missing)?;
        Ok(Self { client, image, script, name })
    }

    /// Runs the cluster script with these arguments and gives its output.
    pub fn cluster(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.script)
            .args(arguments)
            .output()
            .with_context(|| format!("running {} {arguments:?}", self.script))?;
        ensure!(
            output.status.success(),
            "{} {arguments:?}: {}{}",
            self.script,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Kills every process of the product that plays `role` with SIGKILL, and says how many there were.
    pub fn kill(&self, role: &str) -> Result<usize> {
        self.signal(role, None, "-9")
    }

    /// Sends a signal, as kill(1) writes it, to every process of the product that plays `role`, in the pod with this UID or
    /// in any, and says how many there were.
    pub fn signal(&self, role: &str, pod_uid: Option<&str>, signal: &str) -> Result<usize> {
        let mut found = 0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(command) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let words: Vec<_> = command.split(|byte| *byte == 0).collect();
            // In this cluster's pods only: another instance of the product on the machine, that of another checkout's tests
            // for one, is not ours to end.
            let group = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let is_of_pod = pod_uid.is_none_or(|uid| group.contains(uid) || group.contains(&uid.replace('-', "_")));
            if group.contains(&format!("/{}/", self.name))
                && is_of_pod
                && words.first().is_some_and(|word| word.ends_with(b"gpumem"))
                && words.get(1) == Some(&role.as_bytes())
            {
                ensure!(Command::new("kill").args([signal, &pid.to_string()]).status()?.success(), "signalling {pid}");
                found += 1;
            }
        }
        Ok(found)
    }
}
