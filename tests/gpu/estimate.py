#!/usr/bin/env python3
"""How far off `gpumem estimate` is on jobs whose peak nobody knew when it was asked.

    python3 tests/gpu/estimate.py predict SET PATH_OF_GPUMEM > PREDICTED.json     # needs no GPU; SET: first, second
    python3 tests/gpu/estimate.py measure PREDICTED.json [NAME ...] > MEASURED.jsonl    # needs a GPU

`predict` asks the program about every job of a set (`estimate_jobs.py`). The file is committed before anything is measured,
and `measure` runs exactly what stands in it: each job in a process of its own, as many at a time as the card holds, so that
nothing of one counts into another. The driver is asked for what it counts for that process alone (NVML, by process id).
Needs an NVIDIA GPU, PyTorch, transformers, torchvision, peft and nvidia-ml-py; each is named where it is missing.
Every model is built from its configuration with random weights, so nothing is downloaded.
"""
import gc, json, os, subprocess, sys, tempfile, time, traceback

GPU = "H200"
GIB = 1 << 30
# A job starts only while what runs and what it may need stay below the room, and is ended after its time.
ROOM, AT_ONCE, POINT_S = 126 * GIB, 8, 100
# No job starts after the first, and none runs on after the second.
START_UNTIL_S, END_AT_S = 215, 262


def predict(jobs, gpumem):
    """What the program says about each job, through the annotation that a pod template may carry."""
    points = []
    for found in jobs:
        options = dict(found["options"], gpu=GPU)
        if found["shape"]:
            options["config"] = json.dumps(found["shape"])
        pod = dict(kind="Pod", metadata=dict(name="job", annotations={"gpumem.dev/workload": json.dumps(options)}),
                   spec=dict(containers=[dict(name="job", resources=dict(limits={"nvidia.com/gpu": "1"}))]))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as out:
            json.dump(pod, out)
            out.flush()
            answer = subprocess.run([gpumem, "estimate", "-o", "json", "-f", out.name], capture_output=True, text=True)
        if answer.returncode not in (0, 3):
            sys.exit(f"{found['name']}: {answer.stderr}")
        estimate = json.loads(answer.stdout)["containers"][0]["estimate"]
        keys = ("allocatedBytes", "reservedBytes", "totalBytes", "phase", "terms")
        points.append(dict(name=found["name"], options=found["options"], shape=found["shape"],
                           predicted={key: estimate[key] for key in keys}))
    def said(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    # The commit is that of the working tree, whose program this is.
    commit = said("git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "HEAD")
    json.dump(dict(program=said(gpumem, "--version"), commit=commit, gpu=GPU, points=points), sys.stdout, indent=1)
    print()


# Everything below runs on the machine with the GPU.


def word(name):
    """A configuration's optimizer as PyTorch's."""
    import torch
    return {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5),
        "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
        "adamw_single": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-5),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-5, momentum=0.9),
        "adamw_8bit": adamw_8bit,
        "adafactor": adafactor,
    }[name]


def adamw_8bit(parameters):
    import bitsandbytes
    return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)


def adafactor(parameters):
    # What `--optim adafactor` of the Hugging Face Trainer uses.
    from transformers.optimization import Adafactor
    return Adafactor(parameters, lr=1e-5, scale_parameter=False, relative_step=False)


def build(shape, options):
    """The model on the GPU, its weights as a fresh process would hold them: made on the host, then moved."""
    import torch
    if shape is None:
        import torchvision
        return getattr(torchvision.models, options["model"])(weights=None).cuda()
    import transformers
    from transformers.initialization import no_init_weights
    values = dict(shape)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = options.get("task") == "generate"
    both, masked = transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForMaskedLM
    kind = {"t5": both, "mt5": both, "bert": masked, "roberta": masked, "xlm-roberta": masked, "distilbert": masked,
            "deberta-v2": masked}
    # Frozen bases of adapters lie in 16 bits; autocast over a full model starts from fp32.
    is_16_bit = options["precision"] == "bf16" or options.get("method") == "lora" and options.get("weights") != "fp32"
    # Where a configuration names no kind of attention, the library's own choice stands.
    attention = {"attn_implementation": options["attention"]} if "attention" in options else {}
    with no_init_weights():
        model = kind.get(shape["model_type"], transformers.AutoModelForCausalLM).from_config(
            config, dtype=torch.bfloat16 if is_16_bit else torch.float32, **attention)
    model.tie_weights()
    model = model.to("cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    if options.get("checkpointing") == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.get("method") == "lora":
        import peft
        targets = dict(some=["q_proj", "v_proj"], attention=["q_proj", "k_proj", "v_proj", "o_proj"], all="all-linear")
        targets = targets[options["loraTargets"]]
        model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=options["loraRank"], target_modules=targets,
                                                           task_type="CAUSAL_LM"))
    return model


def loss_of(model, shape, options):
    """A function that makes one forward pass and gives its loss."""
    import torch
    from torch.nn.functional import cross_entropy
    batch = options["batch"]
    if shape is None:
        size = options.get("imageSize", 224)
        images = torch.randn(batch, 3, size, size, device="cuda")
        labels = torch.randint(0, 1000, (batch,), device="cuda")
        return lambda: cross_entropy(model(images), labels)
    tokens = torch.randint(5, shape["vocab_size"], (batch, options["sequence"]), device="cuda")
    chunk = options.get("lossChunk", 0)
    if not chunk:
        return lambda: model(input_ids=tokens, labels=tokens).loss
    from torch.utils.checkpoint import checkpoint

    def part(hidden, labels):
        return cross_entropy(model.lm_head(hidden).float(), labels, reduction="sum")

    def chunked():
        hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1].flatten(0, 1)
        labels = tokens[:, 1:].flatten()
        parts = [checkpoint(part, h, l, use_reentrant=False) for h, l in zip(hidden.split(chunk), labels.split(chunk))]
        return sum(parts) / labels.numel()
    return chunked


def used_by_this_process():
    """What the driver counts for this process, and for the device."""
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    mine = [one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid == os.getpid()]
    return (mine[0] if mine else None), pynvml.nvmlDeviceGetMemoryInfo(handle).used


def run(point):
    """Runs one job in this process and gives what it took."""
    shape, options = point["shape"], point["options"]
    import torch
    torch.manual_seed(7)
    began = time.monotonic()
    model = build(shape, options)
    if options.get("task") == "generate":
        model.eval()
        with torch.inference_mode():
            if shape is None:
                size = options.get("imageSize", 224)
                images = torch.randn(options["batch"], 3, size, size, device="cuda")
                for _ in range(3):
                    model(images)
            else:
                tokens = torch.randint(5, shape["vocab_size"], (options["batch"], options["sequence"]), device="cuda")
                for _ in range(2):
                    if options["newTokens"]:
                        model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                                       min_new_tokens=options["newTokens"], max_new_tokens=options["newTokens"],
                                       pad_token_id=0)
                    else:
                        model(input_ids=tokens, use_cache=False)
    else:
        model.train()
        runs = torch.compile(model) if options.get("compile") else model
        forward = loss_of(runs, shape, options)
        optimizer = word(options["optimizer"])([p for p in model.parameters() if p.requires_grad])
        is_amp = options["precision"] == "amp"
        for _ in range(4):
            for _ in range(options.get("accumulation", 1)):
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_amp):
                    loss = forward()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    process, device = used_by_this_process()
    return dict(
        name=point["name"], options=options, params=sum(p.numel() for p in model.parameters()),
        peakAllocatedBytes=torch.cuda.max_memory_allocated(), peakReservedBytes=torch.cuda.max_memory_reserved(),
        usedByProcessBytes=process, usedOfDeviceBytes=device,
        # What the driver counts and the allocator does not hold: the context.
        outsideBytes=process - torch.cuda.memory_reserved() if process else None,
        # The allocator gave everything back and asked again: the card was full, and the figures are of no use.
        retries=torch.cuda.memory_stats().get("num_alloc_retries", 0),
        seconds=round(time.monotonic() - began, 1))


def report(point, out):
    """Runs one job and writes its line, whatever happens: a job that fails is reported, not left out."""
    try:
        line = run(point)
    except BaseException as error:
        traceback.print_exc()
        line = dict(name=point["name"], error=f"{type(error).__name__}: {error}"[:300])
    with open(out, "w") as file:
        json.dump(line, file)


class Job:
    """One job in a process of its own."""

    def __init__(self, point, predicted, forks):
        self.point, self.name = point, point["name"]
        self.start, self.process, self.status, self.is_killed = time.monotonic(), None, None, False
        folder = tempfile.mkdtemp(prefix="estimate-")
        self.out, self.log = os.path.join(folder, "line.json"), os.path.join(folder, "log")
        settings, options = dict(os.environ), point["options"]
        is_plain = not options.get("expandableSegments") and not options.get("compile")
        if forks and is_plain:
            sys.stdout.flush()
            sys.stderr.flush()
            self.pid = os.fork()
            if self.pid == 0:
                log = os.open(self.log, os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                report(point, self.out)
                os._exit(0)
            return
        if options.get("expandableSegments"):
            settings["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        with open(self.log, "w") as log:
            command = [sys.executable, os.path.abspath(__file__), "one", predicted, self.name, self.out]
            self.process = subprocess.Popen(command, env=settings, stdout=log, stderr=log)
            self.pid = self.process.pid

    def is_over(self):
        if self.process:
            self.status = self.process.poll()
        elif self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def end(self):
        self.is_killed = True
        os.kill(self.pid, 9)

    def line(self):
        try:
            return json.load(open(self.out))
        except (OSError, ValueError):
            return dict(name=self.name, error="ended: out of time" if self.is_killed else f"died with status {self.status}")


def can_fork():
    """Loads the libraries once for all jobs, and tries whether a process forked from this one can still use the GPU: a
    library that touched the driver while it was loaded would make that impossible."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # A pool of threads would not survive the fork.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch, transformers, torchvision, peft  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM  # noqa: F401
    from transformers.initialization import no_init_weights  # noqa: F401
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device="cuda").item()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    began = time.monotonic()
    while time.monotonic() - began < 30:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def about():
    """Versions and machine."""
    import importlib.metadata
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = dict(gpu=pynvml.nvmlDeviceGetName(handle), driver=pynvml.nvmlSystemGetDriverVersion(),
                 usedOfDeviceBytes=pynvml.nvmlDeviceGetMemoryInfo(handle).used, cpus=os.cpu_count())
    for package in ("torch", "transformers", "torchvision", "peft", "bitsandbytes"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    pynvml.nvmlShutdown()
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}


def need(point):
    """What a job may take: what was said at most, and a tenth more, because that is what is being tried."""
    return 1.1 * point["predicted"]["totalBytes"]["high"] + GIB


def is_crowded(line):
    """Did the card run full, because this job or one beside it took more than it was thought to?"""
    return bool(line.get("retries")) or any(word in line.get("error", "") for word in ("OutOfMemory", "ALLOC_FAILED"))


def measure(predicted, names):
    import importlib.util
    missing = [name for name in ("torch", "transformers", "torchvision", "peft", "pynvml")
               if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    points = json.load(open(predicted))["points"]
    unknown = set(names) - {point["name"] for point in points}
    if unknown:
        sys.exit(f"no such job: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    machine = about()
    forks = can_fork()
    print(json.dumps(dict(machine, forks=forks, loadedAfterSeconds=round(time.monotonic() - began, 1))), flush=True)
    # Jobs that load the libraries themselves take longest: first.
    slow = ("compile", "expandableSegments")
    waiting = [point for point in points if not names or point["name"] in names]
    waiting.sort(key=lambda point: not any(point["options"].get(word) for word in slow))
    running, again = [], []
    while waiting or running or again:
        now = time.monotonic() - began
        for job in list(running):
            if not job.is_over():
                if not job.is_killed and (now > END_AT_S or time.monotonic() - job.start > POINT_S):
                    job.end()
                continue
            running.remove(job)
            line = job.line()
            if is_crowded(line) and not job.point.get("alone"):
                # Once more, with the card to itself.
                again.append(dict(job.point, alone=True))
                continue
            print(json.dumps(line), flush=True)
            if "error" in line:
                print(f"--- {job.name}", file=sys.stderr)
                print(open(job.log, errors="replace").read()[-2500:], file=sys.stderr, flush=True)
        if now > START_UNTIL_S:
            for point in waiting + again:
                print(json.dumps(dict(name=point["name"], error="not started: out of time")), flush=True)
            waiting, again = [], []
        for point in list(waiting):
            room = ROOM - sum(need(job.point) for job in running)
            if len(running) < AT_ONCE and (need(point) < room or not running):
                waiting.remove(point)
                running.append(Job(point, predicted, forks))
        if again and not waiting and not running:
            running.append(Job(again.pop(0), predicted, forks))
        time.sleep(0.1)
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command == "predict" and len(rest) == 2:
        import estimate_jobs
        predict(estimate_jobs.SETS[rest[0]], rest[1])
    elif command == "measure" and rest:
        measure(rest[0], rest[1:])
    elif command == "one" and len(rest) == 3:
        report(next(point for point in json.load(open(rest[0]))["points"] if point["name"] == rest[1]), rest[2])
    else:
        sys.exit(__doc__)
