#!/usr/bin/env python3
"""Suspends a training process on a real GPU to host memory and resumes it: its losses must be those of an undisturbed run.

    python3 tests/gpu/suspend.py [GIB]        as root, beside torch, on a driver of 570 or later; ends within four minutes

Does with ctypes what the agent does in src/agent/suspend (lock with a timeout, checkpoint, verify by nvidia-smi, restore,
unlock), and prints how long each step took, then one line of JSON. Exit 0 when all held.
"""
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

GIB = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 20
STEPS, AFTER = 12, 5
LIMIT_SECONDS = 230
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}

TRAINER = r'''
import os, sys
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
gib = int(sys.argv[1])
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
gpu = torch.device("cuda:0")
# Most of the memory: random bits whose sum is exact, so that a single flipped bit shows.
ballast = [torch.randint(-2**31, 2**31 - 1, (2**28,), dtype=torch.int32, device=gpu) for _ in range(gib)]
model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1024)).to(gpu)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "step":
        data = torch.randn(64, 1024, device=gpu)
        loss = torch.nn.functional.mse_loss(model(data), data)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print("loss", loss.item().hex(), flush=True)
    elif line.strip() == "sum":
        print("sum", sum(int(chunk.sum(dtype=torch.int64)) for chunk in ballast), flush=True)
'''

failures, children = [], []


def check(holds, what):
    print(("ok    " if holds else "FAIL  ") + what, flush=True)
    if not holds:
        failures.append(what)
    return holds


class Trainer:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", TRAINER, str(GIB)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        children.append(self.process)
        assert self.process.stdout.readline().strip() == "ready", "the trainer does not start"

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ask(self, word):
        self.say(word)
        return self.process.stdout.readline().split(maxsplit=1)[1].strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def memory(pid):
    """MiB by process, and used on the device, as nvidia-smi says."""
    query = lambda *what: subprocess.run(["nvidia-smi", *what, "--format=csv,noheader,nounits"], text=True,
                                         capture_output=True, check=True).stdout.strip().splitlines()
    apps = dict(line.split(", ") for line in query("--query-compute-apps=pid,used_memory") if line)
    return int(apps.get(str(pid), 0)), int(query("--query-gpu=memory.used")[0])


class Cuda:
    """The checkpoint calls; every argument struct is 64 bytes, of which only the lock's timeout is not zero."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        code = self.library.cuInit(0)
        assert code == 0, f"cuInit: {code}"
        assert hasattr(self.library, "cuCheckpointProcessLock"), "this driver has no checkpoint calls (needs 570)"

    def state(self, pid):
        state = ctypes.c_uint(99)
        code = self.library.cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state))
        return STATES.get(state.value, state.value) if code == 0 else f"error {code}"

    def step(self, name, pid, timeout_ms=0):
        arguments = (ctypes.c_uint64 * 8)(timeout_ms)
        begin = time.monotonic()
        code = getattr(self.library, f"cuCheckpointProcess{name}")(ctypes.c_int(pid), arguments)
        seconds = time.monotonic() - begin
        print(f"{name}: code {code}, {seconds:.2f} s, state {self.state(pid)}", flush=True)
        return code, round(seconds, 3)


def main():
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"not done in {LIMIT_SECONDS} s")))
    signal.alarm(LIMIT_SECONDS)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"], text=True,
                            capture_output=True, check=True).stdout.strip().splitlines()[0]
    print(f"driver and GPU: {driver}; {GIB} GiB", flush=True)

    undisturbed = Trainer()
    expected = [undisturbed.ask("step") for _ in range(STEPS)]
    expected_sum = undisturbed.ask("sum")
    undisturbed.end()

    cuda, trainer = Cuda(), Trainer()
    pid = trainer.process.pid
    losses = [trainer.ask("step") for _ in range(AFTER)]
    before, device_before = memory(pid)
    check(before > GIB * 1024, f"the trainer holds {before} MiB")
    check(cuda.state(pid) == "running", "its state is running")

    seconds = {}
    code, seconds["lock"] = cuda.step("Lock", pid, 10_000)
    check(code == 0 and cuda.state(pid) == "locked", "locked")
    code, seconds["checkpoint"] = cuda.step("Checkpoint", pid)
    check(code == 0 and cuda.state(pid) == "checkpointed", "checkpointed")
    during, device_during = memory(pid)
    check(during == 0, f"nvidia-smi shows {during} MiB of it")
    check(device_before - device_during >= GIB * 1024 * 0.95, f"the device went from {device_before} to {device_during} MiB")

    # It asks for a step meanwhile: the call waits, and is done after it has gone on.
    trainer.say("step")
    time.sleep(2)
    check(trainer.process.poll() is None, "the frozen process lives")
    with open(f"/proc/{pid}/status") as status:
        resident = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS:"))
    check(resident >= GIB * 1024 * 0.9, f"its memory is in the host's: {resident} MiB resident")

    code, seconds["restore"] = cuda.step("Restore", pid)
    check(code == 0, "restored")
    code, seconds["unlock"] = cuda.step("Unlock", pid)
    check(code == 0 and cuda.state(pid) == "running", "it runs again")
    losses.append(trainer.process.stdout.readline().split(maxsplit=1)[1].strip())
    losses += [trainer.ask("step") for _ in range(STEPS - AFTER - 1)]
    after, _ = memory(pid)
    check(abs(after - before) < 512, f"it holds {after} MiB again")
    check(losses == expected, f"all {STEPS} losses are those of the undisturbed run, to the last bit")
    check(trainer.ask("sum") == expected_sum, f"all {GIB} GiB are what they were")

    # A lock that is taken back without a checkpoint leaves the process running.
    code, _ = cuda.step("Lock", pid, 10_000)
    code, _ = cuda.step("Unlock", pid)
    check(code == 0 and cuda.state(pid) == "running", "lock and unlock alone change nothing")
    trainer.ask("step")
    trainer.end()
    print(f"figure gpu_suspend_{GIB}gib {seconds['lock'] + seconds['checkpoint']:.2f} s")
    print(f"figure gpu_resume_{GIB}gib {seconds['restore'] + seconds['unlock']:.2f} s")
    print(json.dumps({"driver": driver, "gib": GIB, "seconds": seconds, "mib": {"before": before, "during": during, "after": after},
                      "losses": len(losses), "identical": losses == expected, "failures": failures}))


try:
    main()
except BaseException as error:  # noqa: BLE001  whatever it is, no process is left behind
    check(False, f"{type(error).__name__}: {error}")
finally:
    signal.alarm(0)
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
sys.exit(1 if failures else 0)
