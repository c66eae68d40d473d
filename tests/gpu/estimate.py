#!/usr/bin/env python3
"""How far off `gpumem estimate` is on jobs whose peak nobody knew when it was asked.

    python3 tests/gpu/estimate.py predict PATH_OF_GPUMEM > tests/data/estimate_h200_predicted.json   # needs no GPU
    python3 tests/gpu/estimate.py measure [NAME ...] > measured.jsonl                                # needs a GPU

`predict` asks the program about every configuration below. The file is committed before anything is measured, and
`measure` runs exactly what stands in it: each configuration in a process of its own, a few at a time where the card holds
them. Needs an NVIDIA GPU, PyTorch, transformers, torchvision, peft and nvidia-ml-py; each is named where it is missing.
Every model is built from its configuration with random weights, so nothing is downloaded.
"""
import json, os, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
PREDICTED = os.path.join(HERE, "..", "data", "estimate_h200_predicted.json")
GPU = "H200"
GIB = 1 << 30
# A point starts only while what runs and what it may need stay below this.
ROOM, AT_ONCE, DEADLINE_S, POINT_S = 120 * GIB, 3, 400, 150

# Shapes as their publishers give them, or made up. Llama 8B and Qwen2.5 3B and 14B are in the estimator's table, and so are
# the image networks; the others are new to it, and no configuration was among its earlier points.
SMOLLM = dict(model_type="llama", hidden_size=960, num_hidden_layers=32, num_attention_heads=15, num_key_value_heads=5,
              intermediate_size=2560, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192)
QWEN3 = dict(model_type="qwen3", hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
             head_dim=128, intermediate_size=6144, vocab_size=151936, tie_word_embeddings=True)
PHI2 = dict(model_type="phi", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240,
            vocab_size=51200, tie_word_embeddings=False)
STARCODER = dict(model_type="starcoder2", hidden_size=3072, num_hidden_layers=30, num_attention_heads=24,
                 num_key_value_heads=2, intermediate_size=12288, vocab_size=49152, tie_word_embeddings=True)
GEMMA3 = dict(model_type="gemma3_text", hidden_size=1152, num_hidden_layers=26, num_attention_heads=4,
              num_key_value_heads=1, head_dim=256, intermediate_size=6912, vocab_size=262144, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", n_embd=1024, n_layer=12, n_head=16, vocab_size=32000, n_positions=2048)
PYTHIA_410M = dict(model_type="gpt_neox", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                   intermediate_size=4096, vocab_size=50304, tie_word_embeddings=False)
PYTHIA_2_8B = dict(PYTHIA_410M, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240)
OPT = dict(model_type="opt", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, ffn_dim=10240,
           vocab_size=50272, max_position_embeddings=2048)
ROBERTA = dict(model_type="roberta", hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
               intermediate_size=3072, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
LLAMA_8B = dict(model_type="llama", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
                num_key_value_heads=8, intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False)
QWEN_14B = dict(model_type="qwen2", hidden_size=5120, num_hidden_layers=48, num_attention_heads=40,
                num_key_value_heads=8, intermediate_size=13824, vocab_size=152064, tie_word_embeddings=False)
QWEN_3B = dict(model_type="qwen2", hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
               num_key_value_heads=2, intermediate_size=11008, vocab_size=151936, tie_word_embeddings=True)
LLAMA_600M = dict(model_type="llama", hidden_size=1536, num_hidden_layers=16, num_attention_heads=24,
                  num_key_value_heads=24, intermediate_size=4096, vocab_size=64000, tie_word_embeddings=False)
MOE = dict(model_type="qwen3_moe", hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
           num_key_value_heads=4, head_dim=64, intermediate_size=3072, moe_intermediate_size=768, num_experts=16,
           num_experts_per_tok=4, vocab_size=32000, tie_word_embeddings=False)
FALCON = dict(model_type="falcon", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, vocab_size=50304,
              multi_query=True, parallel_attn=True, bias=False, ffn_hidden_size=8192, tie_word_embeddings=True)
NEMOTRON = dict(model_type="nemotron", hidden_size=1536, num_hidden_layers=16, num_attention_heads=12,
                num_key_value_heads=4, head_dim=128, intermediate_size=6144, vocab_size=64000,
                tie_word_embeddings=False)
T5 = dict(model_type="t5", d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12,
          vocab_size=32128, decoder_start_token_id=0, tie_word_embeddings=True)
STABLELM = dict(model_type="stablelm", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
                num_key_value_heads=32, intermediate_size=5632, vocab_size=100352, use_qkv_bias=True,
                partial_rotary_factor=0.25, tie_word_embeddings=False)


def text(name, shape, **options):
    return dict(name=name, shape=shape, options=options)


def image(name, model, **options):
    return dict(name=name, shape=None, options=dict(model=model, **options))


CONFIGURATIONS = [
    text("smollm-360m", SMOLLM, precision="amp", optimizer="adamw", batch=8, sequence=1024),
    text("smollm-360m-checkpointed", SMOLLM, precision="amp", optimizer="adamw", batch=16, sequence=2048,
         checkpointing="full"),
    text("smollm-360m-fp32-eager", SMOLLM, precision="fp32", optimizer="sgd_momentum", batch=4, sequence=768,
         attention="eager"),
    text("qwen3-1.7b-bf16", QWEN3, precision="bf16", optimizer="adamw_fused", batch=4, sequence=1024),
    text("qwen3-1.7b-long", QWEN3, precision="amp", optimizer="adamw", batch=2, sequence=4096, checkpointing="full"),
    text("phi-2-bf16-sgd", PHI2, precision="bf16", optimizer="sgd", batch=2, sequence=512),
    text("starcoder2-3b", STARCODER, precision="bf16", optimizer="adamw", batch=2, sequence=1024),
    text("gemma3-1b-bf16", GEMMA3, precision="bf16", optimizer="adamw", batch=2, sequence=1024),
    text("gpt2-wide-eager", GPT2, precision="amp", optimizer="adamw", batch=4, sequence=2048, attention="eager"),
    text("pythia-410m-fp32", PYTHIA_410M, precision="fp32", optimizer="adamw", batch=8, sequence=512),
    text("pythia-2.8b-checkpointed", PYTHIA_2_8B, precision="amp", optimizer="sgd_momentum", batch=1, sequence=1024,
         checkpointing="full"),
    text("opt-2.7b-eager-checkpointed", OPT, precision="bf16", optimizer="adamw", batch=4, sequence=1024,
         attention="eager", checkpointing="full"),
    text("roberta-base", ROBERTA, precision="amp", optimizer="adamw_fused", batch=32, sequence=512),
    text("stablelm-2-1.6b", STABLELM, precision="bf16", optimizer="adamw_single", batch=2, sequence=2048),
    text("llama-600m-accumulating", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=1024,
         accumulation=4),
    text("llama-600m-chunked-loss", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=2048,
         lossChunk=1024),
    text("llama-600m-expandable", LLAMA_600M, precision="bf16", optimizer="adamw", batch=8, sequence=1024,
         expandableSegments=True),
    text("qwen2.5-3b-adafactor", QWEN_3B, precision="bf16", optimizer="adafactor", batch=2, sequence=1024,
         checkpointing="full"),
    text("llama3.1-8b-lora", LLAMA_8B, method="lora", precision="amp", optimizer="adamw", batch=2, sequence=2048,
         loraRank=16, loraTargets="attention", checkpointing="full"),
    text("qwen2.5-14b-lora-all", QWEN_14B, method="lora", precision="amp", optimizer="adamw", batch=1, sequence=1024,
         loraRank=32, loraTargets="all"),
    text("experts-16x4", MOE, precision="amp", optimizer="adamw", batch=4, sequence=512),
    text("falcon-multi-query", FALCON, precision="bf16", optimizer="adamw", batch=4, sequence=1024),
    text("nemotron-unfamiliar", NEMOTRON, precision="amp", optimizer="adamw", batch=4, sequence=1024),
    text("t5-base", T5, precision="amp", optimizer="adamw", batch=8, sequence=512),
    text("llama3.1-8b-generate", LLAMA_8B, task="generate", precision="bf16", batch=8, sequence=2048, newTokens=64),
    text("qwen2.5-3b-forward", QWEN_3B, task="generate", precision="fp32", batch=2, sequence=1024, newTokens=0),
    image("resnet50", "resnet50", precision="amp", optimizer="sgd_momentum", batch=256),
    image("convnext-tiny", "convnext_tiny", precision="fp32", optimizer="adamw", batch=64, imageSize=288),
    image("vit-b-16", "vit_b_16", precision="amp", optimizer="adamw", batch=128),
    image("efficientnet-b0-infer", "efficientnet_b0", task="generate", precision="fp32", batch=256),
    text("llama-600m-compiled", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=1024, compile=True),
]


def predict(gpumem):
    """What the program says about each configuration, through the annotation that a pod template may carry."""
    points = []
    for found in CONFIGURATIONS:
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
        said = json.loads(answer.stdout)["containers"][0]["estimate"]
        keys = ("allocatedBytes", "reservedBytes", "totalBytes", "phase", "terms")
        points.append(dict(name=found["name"], options=found["options"], shape=found["shape"],
                           predicted={key: said[key] for key in keys}))
    version = subprocess.run([gpumem, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    json.dump(dict(program=version, gpu=GPU, points=points), sys.stdout, indent=1)
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
        "adafactor": adafactor,
    }[name]


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
    kind = {"t5": transformers.AutoModelForSeq2SeqLM, "roberta": transformers.AutoModelForMaskedLM}
    # Frozen bases of adapters lie in 16 bits; autocast over a full model starts from fp32.
    is_16_bit = options["precision"] == "bf16" or options.get("method") == "lora"
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
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if options["loraTargets"] == "attention" else "all-linear"
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


def one(name):
    """Measures one configuration in this process and prints its line."""
    point = next(point for point in json.load(open(PREDICTED))["points"] if point["name"] == name)
    shape, options = point["shape"], point["options"]
    import torch
    torch.manual_seed(7)
    began = time.monotonic()
    model = build(shape, options)
    if options.get("task") == "generate":
        model.eval()
        with torch.inference_mode():
            if shape is None:
                images = torch.randn(options["batch"], 3, 224, 224, device="cuda")
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
    print(json.dumps(dict(
        name=name, options=options, params=sum(p.numel() for p in model.parameters()),
        peakAllocatedBytes=torch.cuda.max_memory_allocated(), peakReservedBytes=torch.cuda.max_memory_reserved(),
        usedByProcessBytes=process, usedOfDeviceBytes=device, seconds=round(time.monotonic() - began, 1))), flush=True)


def measure(names):
    import importlib.util
    missing = [name for name in ("torch", "transformers", "torchvision", "peft", "pynvml") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    points = json.load(open(PREDICTED))["points"]
    unknown = set(names) - {point["name"] for point in points}
    if unknown:
        sys.exit(f"no such configuration: {', '.join(sorted(unknown))}")
    waiting = [point for point in points if not names or point["name"] in names]
    import torch, torchvision, transformers
    print(json.dumps(dict(torch=torch.__version__, transformers=transformers.__version__,
                          torchvision=torchvision.__version__, gpu=torch.cuda.get_device_name())), flush=True)
    began, running = time.monotonic(), []
    needs = {point["name"]: point["predicted"]["totalBytes"]["high"] for point in points}
    while waiting or running:
        for name, process, start, log in list(running):
            if process.poll() is None and time.monotonic() - start > POINT_S:
                process.kill()
            if process.poll() is None:
                continue
            out = process.stdout.read()
            running.remove((name, process, start, log))
            log.seek(0)
            err = log.read()
            if process.returncode == 0:
                print(out.strip().splitlines()[-1], flush=True)
            else:
                # The last words of the error, whatever happened: a configuration that fails is reported, not left out.
                print(json.dumps(dict(name=name, error=(err.strip().splitlines() or ["killed"])[-1][:300],
                                      code=process.returncode)), flush=True)
                print(err[-3000:], file=sys.stderr, flush=True)
        is_late = time.monotonic() - began > DEADLINE_S
        for point in list(waiting):
            name = point["name"]
            room = ROOM - sum(needs[other] for other, *_ in running)
            if is_late:
                print(json.dumps(dict(name=name, error="not started: out of time")), flush=True)
                waiting.remove(point)
            elif len(running) < AT_ONCE and (needs[name] < room or not running):
                waiting.remove(point)
                settings = dict(os.environ)
                if point["options"].get("expandableSegments"):
                    settings["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
                log = tempfile.TemporaryFile("w+")
                process = subprocess.Popen([sys.executable, __file__, "one", name], text=True, env=settings,
                                           stdout=subprocess.PIPE, stderr=log)
                running.append((name, process, time.monotonic(), log))
        time.sleep(0.2)
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command == "predict" and len(rest) == 1:
        predict(rest[0])
    elif command == "measure":
        measure(rest)
    elif command == "one" and len(rest) == 1:
        one(rest[0])
    else:
        sys.exit(__doc__)
