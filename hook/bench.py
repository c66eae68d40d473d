#!/usr/bin/env python3
"""What the hook costs a training loop: the same steps with and without it, alternating, in processes of their own.

    python3 hook/bench.py [--device cuda|stub] [--seconds S] [--rounds N]      hook off and on, in turn
    python3 hook/bench.py --alternate [--device ..] [--seconds S]              one process whose hook looks and rests in turn

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


def alternate(device, seconds):
    """One hooked process whose hook looks in every other window of two seconds. Two processes differ by more than the hook costs."""
    step = stub() if device == "stub" else real()
    state = sys.modules["gpumem_hook"]._state
    look, times, totals = state.look, {True: [], False: []}, {True: [0, 0.0], False: [0, 0.0]}
    end, looking = time.monotonic() + seconds, False
    while time.monotonic() < end:
        looking = not looking
        state.look = look if looking else (lambda: None)
        window = time.monotonic() + 2.0
        while time.monotonic() < window:
            begin = time.perf_counter()
            step()
            took = time.perf_counter() - begin
            times[looking].append(took)
            totals[looking][0] += 1
            totals[looking][1] += took
    state.look = look
    mean = {key: value[1] / value[0] for key, value in totals.items()}
    print(json.dumps({
        "device": device, "steps": len(times[True]), "step_ms_off": mean[False] * 1e3, "step_ms_on": mean[True] * 1e3,
        "overhead_percent": (mean[True] / mean[False] - 1) * 100, "failures": state.failures, "beats": state.beat,
        "median_overhead_percent": (statistics.median(times[True]) / statistics.median(times[False]) - 1) * 100,
        # What the thread itself used while it looked: the overhead's upper end if it ran against the program all the time.
        "thread_percent_of_a_core": state.spent / (seconds / 2) * 100}))


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


def run(device, seconds, hooked, mode="--run"):
    environment = {name: value for name, value in os.environ.items() if name != "GPUMEM_HOOK"}
    path = [HERE]
    if device == "stub":
        path.append(os.path.join(os.path.dirname(HERE), "tests", "hook", "stubs"))
    environment["PYTHONPATH"] = os.pathsep.join(path + [environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment["GPUMEM_HOOK"] = "1" if hooked else "0"
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--device", device, "--seconds", str(seconds), mode],
                          env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    if mode == "--alternate-here":
        return result
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
    parser.add_argument("--alternate", action="store_true")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--alternate-here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        train(given.device, given.seconds)
        return 0
    if given.alternate_here:
        alternate(given.device, given.seconds)
        return 0
    if given.alternate:
        result = run(given.device, given.seconds, True, "--alternate-here")
    else:
        result = compare(given.device, given.seconds, given.rounds)
    for name, unit in (("step_ms_off", "ms"), ("step_ms_on", "ms"), ("spread_off_percent", "percent"),
                       ("overhead_percent", "percent"), ("thread_percent_of_a_core", "percent")):
        if name in result:
            print("figure hook_%s_%s %.4f %s" % (given.device, name, result[name], unit))
    return 1 if given.device == "cuda" and result["overhead_percent"] > PROMISED_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main())
