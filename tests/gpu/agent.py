#!/usr/bin/env python3
"""The agent on a real NVIDIA GPU: what it says, against what was allocated, and what it costs.

    python3 tests/gpu/agent.py PATH_OF_GPUMEM [PROCESSES] [SECONDS]

Needs a GPU, NVIDIA's driver, PyTorch, and root (to run the agent as the user 65532 that the chart gives it). Two kinds of pods
are played by a folder of made `/proc/<pid>/cgroup` files over the real processes: the machine's control groups are left alone.
Exits with 1 when a value is wrong; ends with one line per figure, `figure NAME VALUE UNIT`.
"""
import ctypes, os, re, shutil, signal, statistics, subprocess, sys, tempfile, time, urllib.request

GPUMEM = sys.argv[1]
PROCESSES = int(sys.argv[2]) if len(sys.argv) > 2 else 8
SECONDS = int(sys.argv[3]) if len(sys.argv) > 3 else 60
MIB = 1 << 20
TRAINER = """
import sys, time, torch
held = [torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")]
x = torch.randn(1024, 1024, device="cuda")
print("ready", flush=True)
grown = 0
for line in sys.stdin:                        # each line: grow by so many MiB
    held.append(torch.empty(int(line) << 20, dtype=torch.uint8, device="cuda")); torch.cuda.synchronize()
    print("grown", flush=True)
"""
failures = []


def check(holds, text):
    print(("ok    " if holds else "FAIL  ") + text, flush=True)
    if not holds:
        failures.append(text)


def uid(n):
    return f"{n:08x}-1111-2222-3333-444444444444"


def stage(proc, pid, n):
    """/proc as the agent sees it: the real files, but a control group as containerd under cgroup v2 would give."""
    folder = os.path.join(proc, str(pid))
    os.makedirs(folder, exist_ok=True)
    for name in ("stat", "status"):
        shutil.copyfile(f"/proc/{pid}/{name}", os.path.join(folder, name))
    with open(os.path.join(folder, "cgroup"), "w") as out:
        out.write(f"0::/kubepods/besteffort/pod{uid(n)}/{n:064x}\n")
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)


def get(path):
    return urllib.request.urlopen(f"http://127.0.0.1:19400{path}", timeout=5).read().decode()


def metrics():
    found = {}
    for line in get("/metrics").splitlines():
        match = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if match and not line.startswith("#"):
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found


def smi():
    """Bytes by PID as the driver's own tool gives them."""
    text = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                          check=True, capture_output=True, text=True).stdout
    return {int(pid): int(mib) * MIB for pid, mib in (line.split(", ") for line in text.splitlines() if line.strip())}


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) / 1024


def main():
    proc = tempfile.mkdtemp(prefix="gpumem-proc-")
    os.chmod(proc, 0o755)
    for name in ("stat", "uptime", "meminfo"):
        shutil.copyfile(f"/proc/{name}", os.path.join(proc, name))
    trainers = []
    for n in range(PROCESSES):
        trainer = subprocess.Popen([sys.executable, "-c", TRAINER, str(256 * (n + 1))], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        trainers.append(trainer)
    for n, trainer in enumerate(trainers):
        assert trainer.stdout.readline().strip() == "ready", f"trainer {n} did not start"
        stage(proc, trainer.pid, n // 2)      # two processes a pod

    def drop():
        os.setgroups([]); os.setgid(65532); os.setuid(65532)
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no new privileges
    shutil.copyfile(GPUMEM, "/tmp/gpumem-under-test"); os.chmod("/tmp/gpumem-under-test", 0o755)
    agent = subprocess.Popen(["/tmp/gpumem-under-test", "agent", "--node-name", "gpu-node", "--listen", "127.0.0.1:19400",
                              "--usage-listen", "127.0.0.1:19443", "--proc", proc], preexec_fn=drop)
    try:
        for _ in range(100):
            try:
                if get("/readyz"):
                    break
            except OSError:
                time.sleep(0.2)
        time.sleep(3)
        text = get("/metrics")
        print(text)
        found, by_pid = metrics(), smi()
        device = {name: found[f"gpumem_device_memory_{name}_bytes"][0][1] for name in ("total", "used", "free", "unattributed")}
        check(found["gpumem_agent_nvml_up"][0][1] == 1, "uid 65532 without a capability reads NVML")
        check(not any(v for _, v in found.get("gpumem_simulated", [])), "nothing is simulated here")
        expected = {}
        for n, trainer in enumerate(trainers):
            expected[n // 2] = expected.get(n // 2, 0) + by_pid.get(trainer.pid, 0)
        shown = sorted(value for _, value in found.get("gpumem_container_memory_used_bytes", []))
        check([v // MIB for v in shown] == sorted(v // MIB for v in expected.values()),
              f"containers: {[int(v // MIB) for v in shown]} MiB shown, {sorted(v // MIB for v in expected.values())} MiB by nvidia-smi")
        check(device["used"] == sum(shown) + device["unattributed"], "used = sum(containers) + unattributed, to the byte")
        print(f"device: {device}")

        # From a change on the device to its value in /metrics.
        delays = []
        for _ in range(10):
            before = max(value for _, value in metrics()["gpumem_container_memory_used_bytes"])
            begin = time.monotonic()
            trainers[-1].stdin.write("512\n"); trainers[-1].stdin.flush(); trainers[-1].stdout.readline()
            while max(value for _, value in metrics()["gpumem_container_memory_used_bytes"]) == before:
                time.sleep(0.01)
                assert time.monotonic() - begin < 10, "a change is not seen"
            delays.append(time.monotonic() - begin)

        begin, cpu, times = time.monotonic(), cpu_seconds(agent.pid), []
        while time.monotonic() - begin < SECONDS:
            start = time.perf_counter(); get("/metrics"); times.append((time.perf_counter() - start) * 1000)
            time.sleep(1)
        spent = (cpu_seconds(agent.pid) - cpu) / (time.monotonic() - begin) * 100
        # A trainer that dies takes its memory along.
        trainers[0].kill(); trainers[0].wait(); trainers[1].kill(); trainers[1].wait()
        time.sleep(3)
        check(len(metrics().get("gpumem_container_memory_used_bytes", [])) == PROCESSES // 2 - 1, "a dead pod's series is gone")
        agent_rss = rss_mib(agent.pid)
        begin = time.monotonic(); agent.send_signal(signal.SIGTERM); agent.wait(10)
        check(time.monotonic() - begin < 5, f"SIGTERM ends it in {time.monotonic() - begin:.2f} s")
        print(f"figure gpu_agent_rss {agent_rss:.1f} MiB")
        print(f"figure gpu_agent_cpu {spent:.3f} percent")
        print(f"figure gpu_scrape_p50 {statistics.median(times):.2f} ms")
        print(f"figure gpu_scrape_p95 {statistics.quantiles(times, n=20)[18]:.2f} ms")
        print(f"figure gpu_driver_to_metrics_max {max(delays):.2f} s")
    finally:
        for process in [agent, *trainers]:
            if process.poll() is None:
                process.kill()
        shutil.rmtree(proc, ignore_errors=True)
    sys.exit(1 if failures else 0)


main()
