#!/usr/bin/env python3
"""A real Kubernetes node with a real GPU: the chart's agent against nvidia-smi, and SuspendToHost through policy, controller and agent.

    python3 tests/gpu/node.py          as root, on a driver of 570 or later, beside torch; about two minutes

Needs what `tests/cluster/cluster build` and `cargo build --bins --lib` made (CLUSTER_BIN and TARGET name other places), helm among
it. Two PyTorch pods: `train` of uid 1000 and 16 GiB, which grows until its policy freezes it, and `calm`, the same program
undisturbed. A runtime handler whose specification lists the device nodes plays NVIDIA's runtime class. Files of the machine stay
as they are; what it starts ends with it. Exits with 1 when something is not as it should be.
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("TARGET") or ROOT + "/target/debug"
CHART = ROOT + "/charts/gpu-memory-operator"
STATE = tempfile.mkdtemp(prefix="gm")
GM = STATE + "/gm"
CLUSTER = ROOT + "/tests/cluster/gpu-node-cluster"  # beside the script that it is made of, and removed at the end
BIN = os.environ.get("CLUSTER_BIN") or ROOT + "/.build/cluster/bin"
ENVIRONMENT = dict(os.environ, CLUSTER_STATE=STATE, CLUSTER_NAME="gpu-node", CLUSTER_BIN=BIN, PATH=BIN + ":" + os.environ["PATH"])
failures = []


def check(holds, text):
    print(("ok    " if holds else "FAIL  ") + text, flush=True)
    if not holds:
        failures.append(text)


def figure(name, value, unit):
    print("figure gpu_node_%s %s %s" % (name, value, unit), flush=True)


def run(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, env=ENVIRONMENT, timeout=180).stdout.strip()


def kubectl(*arguments, text=None):
    return run(CLUSTER, "kubectl", *arguments, text=text)


def objects(*arguments):
    return json.loads(kubectl("get", *arguments, "-o", "json") or "{}").get("items", [])


def until(what, seconds, look, pause=0.25):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        found = look()
        if found:
            return round(time.monotonic() - begin, 1)
        time.sleep(pause)
    raise TimeoutError("waited %d s in vain for %s" % (seconds, what))


def driver_folder():
    known = run("ldconfig", "-p") + "\n=> /usr/local/nvidia/lib64/libcuda.so.1"
    folders = [match[1] for match in re.finditer(r"=> (/\S*/)libcuda\.so\.1$", known, re.M)]
    return next(os.path.realpath(folder) for folder in folders if os.path.exists(folder + "libnvidia-ml.so.1"))


def start_cluster():
    ctr = json.loads(run("ctr", "oci", "spec"))
    rules = ctr["linux"].setdefault("resources", {}).setdefault("devices", [{"allow": False, "access": "rwm"}])
    for path in glob.glob("/dev/nvidia*"):
        about = os.stat(path)
        if os.path.isdir(path):
            continue
        device = {"type": "c", "major": os.major(about.st_rdev), "minor": os.minor(about.st_rdev)}
        ctr["linux"].setdefault("devices", []).append({"path": path, "fileMode": 0o666, "uid": 0, "gid": 0, **device})
        rules.append({"allow": True, "access": "rwm", **device})
    with open(STATE + "/spec.json", "w") as out:
        json.dump(ctr, out)
    text = open(ROOT + "/tests/cluster/cluster").read()
    anchor, table = 'Root = "$run/runc"\nK\n', '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia'
    assert anchor in text, "the cluster's script has changed"
    text = text.replace(anchor, 'Root = "$run/runc"\n%s]\nruntime_type = "io.containerd.runc.v2"\n'
                        'runtime_path = "$(command -v containerd-shim-runc-v2)"\nbase_runtime_spec = "%s/spec.json"\n%s.options]\n'
                        'BinaryName = "$(command -v runc)"\nRoot = "$run/runc"\nK\n' % (table, STATE, table))
    with open(CLUSTER, "w") as out:
        out.write(text)
    os.chmod(CLUSTER, 0o755)
    subprocess.run([CLUSTER, "up"], check=True, env=ENVIRONMENT)
    subprocess.run([CLUSTER, "image", "docker.io/local/gpumem:dev", TARGET + "/gpumem", TARGET + "/libgpumem_sim.so"], check=True, env=ENVIRONMENT)
    kubectl("create", "namespace", "train")
    kubectl("apply", "-f", "-", text="apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n")


def install(suspend):
    values = {"image": {"registry": "docker.io/local", "repository": "gpumem", "tag": "dev"},
              "controller": {"maxMode": "Enforce", "replicas": 1, "pullInterval": "2s", "breaker": {"enabled": False}},
              "agent": {"suspend": {"enabled": suspend}, "extraArgs": ["--hook"],
                        "extraVolumes": [{"name": "driver-libraries", "hostPath": {"path": driver_folder()}}],
                        "extraVolumeMounts": [{"name": "driver-libraries", "mountPath": "/usr/local/nvidia/lib64", "readOnly": True}]}}
    with open(STATE + "/values.json", "w") as out:
        json.dump(values, out)
    run(CLUSTER, "helm", "upgrade", "--install", "gpumem", CHART, "--namespace", "gpumem-system", "--create-namespace",
        "--values", STATE + "/values.json", "--wait", "--timeout", "2m")


def trainer(name, gib, uid, hook):
    mounts = {GM: "/gm", "/etc/ld.so.cache": "/etc/ld.so.cache", ROOT + "/hook": "/gpumem-hook"}
    for top in ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64"):  # the host's Python
        if os.path.exists(top):
            mounts[os.path.realpath(top)] = mounts.get(os.path.realpath(top), top)
    tops = [(path, "/lib64" if path == "/usr/lib64" else at) for path, at in mounts.items()]
    env = {"HOME": "/tmp", "USER": "someone", "LD_LIBRARY_PATH": driver_folder(), "GPUMEM_HOOK": str(hook), "PYTHONPATH": "/gpumem-hook"}
    container = {"name": "main", "image": "docker.io/local/pause:1", "imagePullPolicy": "IfNotPresent",
                 "command": [sys.executable, "/gm/node_trainer.py", name, str(gib)], "securityContext": {"runAsUser": uid, "runAsGroup": uid},
                 "env": [{"name": key, "value": value} for key, value in env.items()],
                 "volumeMounts": [{"name": "v%d" % n, "mountPath": at, "readOnly": at != "/gm"} for n, (_, at) in enumerate(tops)]
                 + [{"name": "tmp", "mountPath": "/tmp"}]}
    spec = {"runtimeClassName": "nvidia", "terminationGracePeriodSeconds": 1, "containers": [container],
            "volumes": [{"name": "v%d" % n, "hostPath": {"path": path}} for n, (path, _) in enumerate(tops)] + [{"name": "tmp", "emptyDir": {}}]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "train"}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": spec}}}


def agent():
    """The pod and the process of the agent that is ready."""
    for pod in objects("pods", "-n", "gpumem-system", "-l", "app.kubernetes.io/component=agent"):
        states = pod.get("status", {}).get("containerStatuses", [])
        if not pod["metadata"].get("deletionTimestamp") and states and states[0].get("ready"):
            pid = pid_of(pod["metadata"]["uid"], b"agent")
            if pid:
                return pod, pid
    return None


def pid_of(uid, word):
    """The process of a pod that has this word in its command line, as the host numbers it."""
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            if uid in open(folder + "/cgroup").read() and word in open(folder + "/cmdline", "rb").read():
                return int(folder[6:])
        except OSError:
            continue
    return None


def trainer_pid(name):
    pods = objects("pods", "-n", "train", "-l", "app=" + name)
    return pid_of(pods[0]["metadata"]["uid"], b"node_trainer")


def rights(pid):
    text = open("/proc/%d/status" % pid).read()
    return tuple(re.search(key + r":\s+(\S+)", text)[1] for key in ("Uid", "CapEff", "VmRSS"))


def metrics():
    read = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
    text = run(CLUSTER, "run", sys.executable, "-c", read, "http://%s:9400/metrics" % agent()[0]["status"]["podIP"])
    found = {}
    for match in re.finditer(r'^(\w+)\{.*pod="([a-z]+).*\} (\S+)$', text, re.M):
        found.setdefault(match[1], {})[match[2]] = float(match[3])
    return found


def smi():
    lines = run("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").splitlines()
    return {int(pid): int(mib) for pid, mib in (line.split(", ") for line in lines if line)}


def losses(name):
    return open("%s/%s.losses" % (GM, name)).read().split()


def order(name):
    with open("%s/train.%s" % (GM, name), "w"):
        os.chmod("%s/train.%s" % (GM, name), 0o666)


def phases():
    return [entry["state"] for node in objects("gpumemorynodes") for entry in node.get("status", {}).get("limits", [])]


def attribution():
    until("both trainers", 90, lambda: all(os.path.exists("%s/%s.ready" % (GM, name)) for name in ("train", "calm")))
    time.sleep(3)  # a sample, and the hook's first look
    uid, held, _ = rights(agent()[1])
    check((uid, int(held, 16)) == ("65532", 0), "the agent is uid %s and holds capabilities %s" % (uid, held))
    told, real = metrics(), smi()
    for name in ("train", "calm"):
        mine, theirs = told["gpumem_container_memory_used_bytes"][name] / 2**20, real[trainer_pid(name)]
        check(abs(mine / theirs - 1) < 0.01, "%s: %.0f MiB, and %d by nvidia-smi" % (name, mine, theirs))
    check("calm" in told.get("gpumem_container_allocator_allocated_bytes", {}), "the hook of calm is heard")


def freeze():
    policy = {"mode": "Enforce", "target": {"podSelector": {"matchLabels": {"app": "train"}}},
              "memory": {"budget": "Declared", "declared": "30Gi", "headroom": "256Mi"},
              "prediction": {"horizonSeconds": 300, "act": {"probabilityPercent": 80, "forSeconds": 3},
                             "clear": {"probabilityPercent": 40, "forSeconds": 5}, "minSamples": 5, "maxSampleAgeSeconds": 15, "warmUpSeconds": 0},
              "actions": [{"type": "Notify"}, {"type": "SuspendToHost"}],
              "disruption": {"maxConcurrent": 1, "maxPerHour": 10, "minAvailable": 0, "requireBudget": False, "cooldownSeconds": 900, "maxAttempts": 3}}
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryPolicy",
                                                 "metadata": {"name": "guard", "namespace": "train"}, "spec": policy}))
    order("sum")
    order("grow")
    until("the order to freeze", 100, phases)
    figure("freeze", until("the freeze, read back", 60, lambda: "Frozen" in phases()), "s")
    pid, count, calm = trainer_pid("train"), len(losses("train")), len(losses("calm"))
    check(pid not in smi(), "nvidia-smi does not list the frozen trainer")
    time.sleep(2)
    check(len(losses("train")) == count and len(losses("calm")) > calm, "it stands still, and its neighbour trains on")
    uid, held, resident = rights(agent()[1])
    check((uid, int(held, 16)) == ("0", 0x80002), "the agent is uid %s with capabilities %s and holds %s kB" % (uid, held, resident))


def ends_of_the_agent():
    pod, pid = agent()
    count = len(losses("train"))
    os.kill(pid, signal.SIGKILL)
    until("the next agent", 60, lambda: (agent() or (0, pid))[1] != pid)
    time.sleep(6)  # several pulls: what the status says now is the new agent's word
    check(phases() == ["Frozen"] and len(losses("train")) == count, "the agent after kill -9 finds it frozen and keeps it so")
    subprocess.Popen([CLUSTER, "kubectl", "delete", "pod", "-n", "gpumem-system", pod["metadata"]["name"], "--wait=false"],
                     env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    figure("resume_by_sigterm", until("a step after SIGTERM", 60, lambda: len(losses("train")) > count, 0.1), "s")
    trained = trainer_pid("train")
    until("the next agent to freeze it again, as the policy still asks", 60, lambda: trained not in smi())
    os.unlink(GM + "/train.grow")
    count = len(losses("train"))
    kubectl("delete", "gmp", "guard", "-n", "train", "--wait=false")
    figure("resume_by_deletion", until("twenty steps after the policy is gone", 60, lambda: len(losses("train")) > count + 20, 0.1), "s")


def unchanged():
    order("sum")
    until("the second sum", 30, lambda: len(open(GM + "/train.sums").read().split()) == 2)
    one, other = open(GM + "/train.sums").read().split()
    check(one == other, "all 16 GiB are what they were")
    mine, theirs = losses("train"), losses("calm")
    both = min(len(mine), len(theirs))
    check(both > 50 and mine[:both] == theirs[:both], "all %d losses are those of the undisturbed pod, to the last bit" % both)


def main():
    os.makedirs(GM)
    os.chmod(GM, 0o777)
    os.chmod(STATE, 0o755)
    shutil.copy(HERE + "/node_trainer.py", GM)
    print(run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"), flush=True)
    try:
        start_cluster()
        install(False)
        for pod in (trainer("train", 16, 1000, 0), trainer("calm", 4, 0, 1)):
            kubectl("apply", "-f", "-", text=json.dumps(pod))
        attribution()
        install(True)
        freeze()
        ends_of_the_agent()
        unchanged()
    except Exception as error:  # noqa: BLE001  whatever it is, the cluster goes
        check(False, "%s: %s" % (type(error).__name__, error))
    finally:
        subprocess.run([CLUSTER, "down"], env=ENVIRONMENT)
        os.path.exists(CLUSTER) and os.unlink(CLUSTER)
        shutil.rmtree(STATE, ignore_errors=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
