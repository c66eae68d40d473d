#!/usr/bin/env python3
"""What the hook costs a training step on a real GPU, told apart from what steps differ by anyhow.

    python3 tests/gpu/overhead.py [--seconds S] [--json FILE]        beside torch; S seconds of measuring in all (84)

Whole runs, and windows of seconds, differ by more than the hook costs. So two other measures are taken, within one process
each, for three models (a step bound by Python, a small one, a large one):

    amplified    the hook looks twenty times a second in every other block of a quarter second or six steps (in the order off, on, on, off).
                 The difference of the blocks, divided by the looks in them, is the cost of one look.
    in place     the hook looks once a second, as it does. Steps in which a look fell, against the median of the steps around
                 them; the same at moments without a look shows what that would be by chance.

Both are told as percent of the time (one look a second), with the 95 % interval of a bootstrap over pairs of blocks, or looks.
Ends with lines of the form `figure NAME VALUE UNIT`; exits with 1 where the lower end of an interval is above half a percent.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.join(os.path.dirname(os.path.dirname(HERE)), "hook")
MODELS = {"python_bound": (256, 4, 4, 8, 64), "small": (1024, 16, 4, 16, 256), "large": (4096, 32, 8, 8, 512)}
FAST, BLOCK, STEPS_A_BLOCK = 0.05, 0.25, 6
PROMISED_PERCENT = 0.5
AROUND = 12  # steps before and after a look that it is compared to


def training(name, device):
    import torch

    torch.manual_seed(0)
    width, heads, layers, batch, length = MODELS[name]
    with torch.device(device):  # the large one would take half a minute on the CPU
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(batch, length, width, device=device)

    def step():
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    for _ in range(15):
        step()
    return step


def busy():
    """For a try without a GPU: the stub's framework and a step of pure Python."""
    import torch

    torch.cuda.grow(1 << 30)
    return lambda: sum(i * i for i in range(60_000))


def interval(values, judge, rounds=2000):
    """The judge's value, and the 95 % interval of a bootstrap."""
    draw = random.Random(1)
    judged = sorted(judge(draw.choices(values, k=len(values))) for _ in range(rounds))
    return [judge(values), judged[int(rounds * 0.025)], judged[int(rounds * 0.975)]]


def block(step, seconds):
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        step()
        count += 1
    return (time.perf_counter() - begin) / count


def amplified(step, state, publish, seconds):
    """Pairs of blocks: percent that the looks added to a step's time, scaled to one look a second."""
    look, pairs, looks = state.look, [], []
    publish.INTERVAL_SECONDS = FAST
    end = time.monotonic() + seconds
    usual = block(step, 1.2)  # meanwhile the thread leaves its last long pause
    length = max(BLOCK, STEPS_A_BLOCK * usual)
    while time.monotonic() < end or len(pairs) < 4:
        found = {True: [], False: []}
        for on in (False, True, True, False):
            state.look = look if on else (lambda: None)
            before = state.beat
            found[on].append(block(step, length))
            if on:
                looks.append(state.beat - before)
        pairs.append((statistics.fmean(found[True]), statistics.fmean(found[False])))
    state.look, publish.INTERVAL_SECONDS = look, 1.0
    each_second = max(statistics.fmean(looks) / length, 1.0)
    ratio = lambda some: (statistics.fmean(on / off for on, off in some) - 1) * 100
    middle = lambda some: (statistics.median(on / off for on, off in some) - 1) * 100
    scaled = lambda values: [value / each_second for value in values]
    return {"blocks": 4 * len(pairs), "looks_per_second": each_second, "step_ms": statistics.fmean(off for _, off in pairs) * 1e3,
            "raw_percent": interval(pairs, ratio), "percent": scaled(interval(pairs, ratio)),
            "median_percent": scaled(interval(pairs, middle))}


def in_place(step, state, seconds):
    """Milliseconds that a look adds to the steps it falls in, at its own pace; and the same at moments without one."""
    look, looks, steps = state.look, [], []

    def watched():
        begin = time.perf_counter()
        look()
        looks.append((begin, time.perf_counter()))

    state.look = watched
    end = time.monotonic() + seconds
    while time.monotonic() < end or (len(looks) < 5 and time.monotonic() < end + 10):
        begin = time.perf_counter()
        step()
        steps.append((begin, time.perf_counter()))
    state.look = look

    def excess(begin, end):
        inside = [number for number, (first, last) in enumerate(steps) if last > begin and first < end]
        if not inside or inside[0] < AROUND or inside[-1] + AROUND >= len(steps):
            return None
        around = [last - first for first, last in steps[inside[0] - AROUND:inside[0]] + steps[inside[-1] + 1:inside[-1] + 1 + AROUND]]
        usual = statistics.median(around)
        return sum(steps[number][1] - steps[number][0] - usual for number in inside) * 1e3

    at_looks = [value for value in (excess(*one) for one in looks) if value is not None]
    # Half a second after each look there is none.
    chance = [value for value in (excess(begin + 0.5, last + 0.5) for begin, last in looks) if value is not None]
    if len(at_looks) < 4 or len(chance) < 4:
        return {"looks": len(at_looks), "skipped": "too few steps"}
    return {"looks": len(at_looks), "step_ms": statistics.median(last - first for first, last in steps) * 1e3,
            "look_wall_ms": statistics.median(last - first for first, last in looks) * 1e3,
            "percent": [value / 10 for value in interval(at_looks, statistics.fmean)],
            "by_chance_percent": [value / 10 for value in interval(chance, statistics.fmean)],
            "median_percent": [value / 10 for value in interval(at_looks, statistics.median)]}


def measure(name, device, seconds):
    """Runs in a process with the hook; prints one line of JSON."""
    step = training(name, device) if device == "cuda" else busy()
    hook = sys.modules["gpumem_hook"]
    state, publish = hook._state, sys.modules["gpumem_hook.publish"]
    spent, beats = state.spent, state.beat
    result = {"model": name, "device": device, "in_place": in_place(step, state, seconds * 0.55)}
    result["thread_ms_per_look"] = (state.spent - spent) / max(state.beat - beats, 1) * 1e3
    result["amplified"] = amplified(step, state, publish, seconds * 0.45)
    # The same with a file at each look, as it was before.
    if hasattr(publish, "FILE_SECONDS"):
        publish.FILE_SECONDS = 0.0
        result["amplified_with_a_file_each_look"] = amplified(step, state, publish, 4.0)
    result["failures"] = state.failures
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=84.0)
    parser.add_argument("--json")
    parser.add_argument("--device", choices=("cuda", "stub"), default="cuda")
    parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.device, given.seconds)
        return 0
    path = [HOOK] + ([os.path.join(os.path.dirname(HERE), "hook", "stubs")] if given.device == "stub" else [])
    environment = dict(os.environ, GPUMEM_HOOK="1", PYTHONPATH=os.pathsep.join(path))
    share, results, over = max(given.seconds / len(MODELS) - 11, 2.0), [], 0  # starting, warming up and the last part take the rest
    for name in MODELS:
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--measure", name, "--device", given.device, "--seconds", str(share)],
                              env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            print("FAIL  %s: %s" % (name, done.stderr[-1500:]), flush=True)
            results.append({"model": name, "error": done.stderr[-1500:]})
            over += 1
            continue
        results.append(json.loads(done.stdout.splitlines()[-1]))
        for way in ("amplified", "in_place"):
            found = results[-1][way]
            for key in ("percent", "by_chance_percent"):
                if key in found:
                    print("figure hook_%s_%s_%s %.4f percent (95 %%: %.4f to %.4f), step of %.2f ms"
                          % ((name, way, key) + tuple(found[key]) + (found["step_ms"],)), flush=True)
            over += found.get("percent", [0, 0, 0])[1] > PROMISED_PERCENT
        if given.json:
            with open(given.json, "w") as out:
                json.dump(results, out, indent=1)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
