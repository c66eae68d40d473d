#!/usr/bin/env python3
"""The cooperative hook with real frameworks on a real NVIDIA GPU: its figures, its three commands, its cost.

    python3 tests/gpu/hook.py

Needs a GPU and PyTorch; JAX is tried too where it is installed. Takes less than four minutes. Prints one JSON line for
each thing looked at, with `ok` true or false, and exits with 1 when one is false.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOOK = os.path.join(ROOT, "hook")
sys.path.insert(0, HOOK)

MIB = 1 << 20
failed = []


def say(what, ok, **values):
    print(json.dumps({"what": what, "ok": bool(ok), **values}), flush=True)
    if not ok:
        failed.append(what)


# Runs inside the hooked process; every answer is a JSON line.
COMMON = """
import json, os, sys, time
folder = os.environ["GPUMEM_HOOK_DIR"]
def hook():
    import gpumem_hook
    return gpumem_hook._state
def rounds(count=2):
    wanted = hook().beat + count
    sys.modules["gpumem_hook.publish"].FILE_SECONDS = 0.0  # the file of each look
    while hook().beat < wanted: time.sleep(0.02)
def told():
    with open(os.path.join(folder, "%d.json" % os.getpid())) as file: return json.load(file)
def command(text):
    with open(os.path.join(folder, "command.new"), "w") as out: out.write(text)
    os.replace(out.name, os.path.join(folder, "command"))
    identity = text.split()[0]
    while not hook().commands.done.get(identity, "").startswith(("done", "refused", "failed", "asked")): time.sleep(0.02)
    rounds(1)
    return hook().commands.done[identity]
def beacons():
    found = []
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/comm" % task) as comm: name = comm.read().rstrip("\\n")
        if name.startswith("gm1"):
            import base64
            bits = int.from_bytes(base64.urlsafe_b64decode(name[3:]), "big")
            found.append({"allocated": (bits >> 48) << 17, "reserved": (bits >> 24 & 0xFFFFFF) << 17, "uuid": "%04x" % (bits >> 8 & 0xFFFF)})
    return found
def say(**values): print(json.dumps(values), flush=True)
"""

TORCH = COMMON + """
import torch
say(at="before", live=sorted(hook().live), failures=hook().failures)
held = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (512, 1024, 2048, 4096)]
x = torch.randn(2048, 2048, device="cuda"); y = x @ x; del y
torch.cuda.synchronize(); rounds()
def figures(at):
    device, = told()["devices"]
    say(at=at, told=device, own={"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(), "uuid": str(torch.cuda.get_device_properties(0).uuid)}, beacons=beacons())
figures("grown")
del held[2:]; rounds()
free_before = torch.cuda.mem_get_info()[0]
figures("freed")
reserved_before = torch.cuda.memory_reserved()
outcome = command("t1 trim")
say(at="trimmed", outcome=outcome, reserved_before=reserved_before, reserved=torch.cuda.memory_reserved(),
    driver_gained=torch.cuda.mem_get_info()[0] - free_before)
total = torch.cuda.get_device_properties(0).total_memory
outcome = command("f1 fraction 0.10")
try:
    more = torch.empty(int(total * 0.10), dtype=torch.uint8, device="cuda"); held_back = False
except torch.OutOfMemoryError as error:
    held_back = True
small = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
rounds()
say(at="capped", outcome=outcome, held_back=held_back, ooms=told()["devices"][0]["ooms"], own=torch.cuda.memory_stats()["num_ooms"],
    below=command("f2 fraction 0.0001"))
command("f3 fraction 1.0")
try:
    more = torch.empty(int(total * 0.2), dtype=torch.uint8, device="cuda"); raised = True; del more
except torch.OutOfMemoryError:
    raised = False
say(at="raised", ok=raised)
# A trim that comes while a graph is captured waits for the capture's end.
graph = torch.cuda.CUDAGraph(); out = torch.zeros(1024, device="cuda")
side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3): out.add_(1)
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph):
    out.add_(1)
    with open(os.path.join(folder, "command.new"), "w") as file: file.write("g1 trim")
    os.replace(file.name, os.path.join(folder, "command"))
    while "g1" not in hook().commands.done: time.sleep(0.02)
    during = hook().commands.done["g1"]
before = float(out[0]); graph.replay(); torch.cuda.synchronize()
rounds(3)
say(at="graph", during=during, after=hook().commands.done["g1"], replayed=float(out[0]) - before)
say(at="end", failures=hook().failures, beats=hook().beat, thread_seconds=hook().spent)
torch.empty(int(total * 2), dtype=torch.uint8, device="cuda")
"""

JAX = COMMON + """
import jax, jax.numpy as jnp
say(at="before", live=sorted(hook().live), failures=hook().failures)
held = jnp.ones((1024, 1024, 256), dtype=jnp.float32); held.block_until_ready(); rounds()
stats = jax.local_devices()[0].memory_stats()
device, = [device for device in told()["devices"] if device["framework"] == "jax"]
say(at="grown", told=device, own=stats, beacons=beacons(), failures=hook().failures, trim=command("t1 trim"))
"""


def hooked(code, folder, seconds=90, **more):
    environment = dict(os.environ, PYTHONPATH=HOOK + os.pathsep + os.environ.get("PYTHONPATH", ""), GPUMEM_HOOK="1",
                       GPUMEM_HOOK_DIR=folder, **more)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=seconds)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["at"]: line for line in lines}, done


def torch_is_told():
    with tempfile.TemporaryDirectory(prefix="gpumem-hook-") as folder:
        seen, done = hooked(TORCH, os.path.join(folder, "torch"))
        if "end" not in seen:
            say("torch: the program ran through", False, seen=sorted(seen), error=done.stderr[-2000:])
            return
        say("torch: nothing is asked before CUDA is used", seen["before"]["live"] == [] and seen["before"]["failures"] == 0)
        for at in ("grown", "freed"):
            told, own = seen[at]["told"], seen[at]["own"]
            say("torch: figures equal the framework's own, " + at,
                all(told[name] == own[name] for name in ("allocated", "reserved", "peak", "uuid")), told=told, own=own)
            beacon = seen[at]["beacons"]
            say("torch: the thread's name says the same within 64 KiB, " + at,
                len(beacon) == 1 and all(abs(beacon[0][n] - own[n]) <= 1 << 16 for n in ("allocated", "reserved"))
                and beacon[0]["uuid"] == own["uuid"][:4], beacons=beacon)
        trim = seen["trimmed"]
        freed = trim["reserved_before"] - trim["reserved"]
        say("torch: trim frees what it says", freed >= 6000 * MIB and trim["outcome"] == "done: %d bytes given back" % freed
            and abs(trim["driver_gained"] - freed) <= 64 * MIB, **{key: trim[key] for key in trim if key != "at"})
        capped = seen["capped"]
        say("torch: a live fraction holds and refuses to go below what is live", capped["held_back"]
            and capped["outcome"] == "done" and capped["below"].startswith("refused"), **capped)
        say("torch: a survived failure is counted", capped["ooms"] == capped["own"] >= 1, ooms=capped["ooms"])
        say("torch: a raised fraction holds too", seen["raised"]["ok"])
        graph = seen["graph"]
        say("torch: a trim waits for a graph capture and the graph works",
            graph["during"].startswith("waiting") and graph["after"].startswith("done") and graph["replayed"] == 1, **graph)
        say("torch: nothing failed inside the hook", seen["end"]["failures"] == 0, **seen["end"])
        kept = [name for name in os.listdir(os.path.join(folder, "torch")) if name.endswith(".oom.json")]
        event = json.load(open(os.path.join(folder, "torch", kept[0]))) if kept else {}
        say("torch: an uncaught failure leaves its summary", done.returncode == 1 and "PyTorch CUDA memory summary" in
            event.get("summary", "") and "gpumem: out of GPU memory" in done.stderr and "OutOfMemoryError" in done.stderr,
            code=done.returncode, message=event.get("message", "")[:200], stderr=done.stderr[-300:])


def jax_is_told():
    if importlib.util.find_spec("jax") is None:
        print(json.dumps({"what": "jax", "skipped": "not installed"}), flush=True)
        return
    for preallocate in ("false", "true"):
        with tempfile.TemporaryDirectory(prefix="gpumem-hook-") as folder:
            seen, done = hooked(JAX, folder, XLA_PYTHON_CLIENT_PREALLOCATE=preallocate)
            label = "jax, preallocate %s: " % preallocate
            if "grown" not in seen:
                say(label + "the program ran through", False, seen=sorted(seen), error=done.stderr[-2000:])
                continue
            told, own = seen["grown"]["told"], seen["grown"]["own"]
            say(label + "figures equal the framework's own", told["allocated"] == own["bytes_in_use"]
                and told["peak"] == own["peak_bytes_in_use"] and told["allocated"] >= 1 << 30
                and told["reserved"] == own.get("pool_bytes"), told=told, own=own)
            say(label + "nothing is asked too early, nothing failed, trim says no",
                seen["before"]["live"] == [] and seen["grown"]["failures"] == 0
                and seen["grown"]["trim"].startswith("refused"), beacons=seen["grown"]["beacons"], trim=seen["grown"]["trim"])


def overhead():
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "overhead.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200)
    say("a look costs a training step less than half a percent", done.returncode == 0, figures=done.stdout.splitlines(), error=done.stderr[-500:])


def main():
    import_time = time.monotonic()
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    version = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    print(json.dumps({"what": "machine", "gpu": smi.stdout.strip(), "torch": version.stdout.strip(), "python": sys.version.split()[0]}))
    torch_is_told()
    jax_is_told()
    overhead()
    print(json.dumps({"what": "all", "failed": failed, "seconds": round(time.monotonic() - import_time, 1)}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
