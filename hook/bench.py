#!/usr/bin/env python3
"""What the hook costs a training loop: the same steps with and without it, alternating, in processes of their own.

    python3 hook/bench.py [--device cuda|stub] [--seconds S] [--rounds N]

`cuda` needs PyTorch and a GPU. `stub` plays a framework with a busy Python thread: the hook's own cost under the
interpreter's lock, for machines without a GPU. Ends with lines of the form `figure NAME VALUE UNIT`; exits with 1 above
the promised half a percent (`cuda` only: a stub's step is whatever one likes).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROMISED_PERCENT = 0.5


def train(device, seconds):
    """Steps of a small transformer-like loop; prints one JSON line: seconds of each step, and what the hook's thread spent."""
    if device == "stub":
        step = stub()
    else:
        step = real()
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    hook = sys.modules.get("gpumem_hook")
    state = getattr(hook, "_state", None)
    print(json.dumps({"steps": times, "hooked": state is not None, "beats": getattr(state, "beat", 0),
                      "thread_seconds": getattr(state, "spent", 0.0), "failures": getattr(state, "failures", 0)}))


def real():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(16, 256, 1024, device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    for _ in range(10):
        step()
    return step


def stub():
    import torch

    torch.cuda.grow(1 << 30)

    def step():
        return sum(i * i for i in range(20000))

    return step


def run(device, seconds, hooked):
    environment = {name: value for name, value in os.environ.items() if name != "GPUMEM_HOOK"}
    path = [HERE]
    if device == "stub":
        path.append(os.path.join(os.path.dirname(HERE), "tests", "hook", "stubs"))
    environment["PYTHONPATH"] = os.pathsep.join(path + [environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment["GPUMEM_HOOK"] = "1" if hooked else "0"
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--device", device, "--seconds", str(seconds), "--run"],
                          env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["hooked"] == hooked, "the hook ran where it should not, or did not where it should"
    return result


def compare(device, seconds, rounds):
    """Mean step of each run, hook off and on in turn; the first pair warms the machine up and is not counted."""
    off, on, spent, failures = [], [], 0.0, 0
    for number in range(rounds + 1):
        for hooked, times in ((False, off), (True, on)):
            result = run(device, seconds, hooked)
            if number == 0:
                continue
            times.append(statistics.fmean(result["steps"]))
            if hooked:
                spent += result["thread_seconds"] / max(sum(result["steps"]), 1e-9) / rounds
                failures += result["failures"]
    overhead = (statistics.median(on) / statistics.median(off) - 1) * 100
    return {"device": device, "step_ms_off": statistics.median(off) * 1e3, "step_ms_on": statistics.median(on) * 1e3,
            "spread_off_percent": (max(off) / min(off) - 1) * 100, "overhead_percent": overhead,
            "thread_percent_of_a_core": spent * 100, "failures": failures, "rounds": rounds, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "stub"), default="cuda")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        train(given.device, given.seconds)
        return 0
    result = compare(given.device, given.seconds, given.rounds)
    for name, unit in (("step_ms_off", "ms"), ("step_ms_on", "ms"), ("spread_off_percent", "percent"),
                       ("overhead_percent", "percent"), ("thread_percent_of_a_core", "percent")):
        print("figure hook_%s_%s %.4f %s" % (given.device, name, result[name], unit))
    return 1 if given.device == "cuda" and result["overhead_percent"] > PROMISED_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main())
