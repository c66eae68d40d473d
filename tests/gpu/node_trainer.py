"""A deterministic training loop for tests/gpu/node.py: node_trainer.py NAME GIB, its files in /gm. A line of NAME.losses each step.

NAME.grow    while it exists: 64 MiB more every half second, up to 12 GiB
NAME.sum     when it appears: the sum of the first GIB chunks is appended to NAME.sums, and the file goes
"""
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch

base, gib = "/gm/" + sys.argv[1], int(sys.argv[2])
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
gpu = torch.device("cuda:0")
# Random bits whose sum is exact, from a generator of their own: losses do not depend on how much there is.
other = torch.Generator(device=gpu)
other.manual_seed(11)
ballast = [torch.randint(-2**31, 2**31 - 1, (2**28,), dtype=torch.int32, device=gpu, generator=other) for _ in range(gib)]
more, last = [], time.monotonic()
model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1024)).to(gpu)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = open(base + ".losses", "a", buffering=1)
open(base + ".ready", "w").close()
while True:
    data = torch.randn(64, 1024, device=gpu)
    loss = torch.nn.functional.mse_loss(model(data), data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.write(loss.item().hex() + "\n")
    if os.path.exists(base + ".grow") and len(more) < 192 and time.monotonic() - last >= 0.5:
        more.append(torch.zeros(64 << 20, dtype=torch.uint8, device=gpu))
        last = time.monotonic()
    if os.path.exists(base + ".sum"):
        os.unlink(base + ".sum")
        open(base + ".sums", "a").write("%d\n" % sum(int(chunk.sum(dtype=torch.int64)) for chunk in ballast))
    time.sleep(0.05)
