#!/usr/bin/env python3
"""Draws the screens of `kubectl gpumem` as pictures, from the real program on a real pseudo-terminal.

    screens.py PROGRAM FOLDER          every screen at every size, with colour and without, to be looked at
    screens.py PROGRAM docs/images docs    those that the docs show

An API server with a controller behind it is played on loopback; what it says is what the golden files of the tests say, with
more containers. Needs Pillow and a monospaced font (DejaVu Sans Mono, or FONT). The terminal that is played here knows what
the program uses: positions, clearing, colours.
"""
import fcntl, http.server, json, os, pty, re, select, signal, struct, sys, tempfile, termios, threading, time
from pathlib import Path
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/data/golden"
FONT = os.environ.get("FONT", "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf")
COLOURS = {31: "#f7768e", 32: "#9ece6a", 33: "#e0af68", 36: "#7dcfff"}
PAPER, INK, DIM, CHOSEN = "#1a1b26", "#c0caf5", "#7a82a8", "#3b4261"


def items(name):
    return json.loads((GOLDEN / name).read_text().split("[exit")[0])["items"]


def world():
    """Paths and their answers."""
    known, theirs = items("top-pods.json"), "gpumem-system"
    leak = json.loads((GOLDEN / "explain.json").read_text().split("[exit")[0])["items"][0]
    containers = [leak["container"]] + known[1:]
    for index in range(24):
        one = dict(known[-1], pod=f"server-{index // 3}-7c9d{index:02}", podUID=f"u{index}", container="vllm", node=f"node-{'cdef'[index % 4]}",
                   namespace=f"team-{'abc'[index % 3]}", usedBytes=(30 + index) << 30, deviceUsedBytes=(34 + index) << 30, peakBytes=(31 + index) << 30)
        if index in (3, 9):
            one.update(level="Elevated", probability=0.62, secondsToOom={"q10": 1500, "q50": 2400.0, "q90": 4000}, growthBytesPerSecond=4e6,
                       reason="grows 4 MiB/s over the last 31 min with 14 GiB of 79 GiB left", **{"class": "Leak"})
        if index == 5:
            one.update(level="Critical", probability=0.995, secondsToOom={"q10": 40, "q50": 95.0, "q90": 180}, growthBytesPerSecond=2e8,
                       reason="grows 190 MiB/s over the last 3 min with 17 GiB of 79 GiB left: full in about 95 s", **{"class": "Leak"})
        containers.append(one)
    nodes = [{"node": n["node"], "agentVersion": n["agentVersion"], "nvml": n["nvml"], "nvmlDetail": n["nvmlDetail"], "simulated": False,
              "reportAgeSeconds": n["reportAgeSeconds"], "devices": []} for n in items("top-nodes.json")]
    for gpu in items("top-gpus.json"):
        device = {key: gpu[key] for key in ("device", "gpu", "model", "attribution", "containers")}
        device.update({key: gpu[key] for key in ("capacityBytes", "usedBytes", "unattributedBytes") if gpu[key] is not None})
        next(n for n in nodes if n["node"] == gpu["node"])["devices"].append(device)
    answerer = {"pod": "gpumem-controller-7d9", "version": "0.1.0", "isLeader": True}
    pod = lambda component, name, node: {"metadata": {"name": name, "namespace": theirs}, "spec": {"nodeName": node, "containers": [
        {"name": component, "args": [component, "--ledger", "gpumem-ledger", "--lease", "gpumem-controller", "--max-mode", "Enforce"],
         "ports": [{"name": "metrics", "containerPort": 9401}]}]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    policy = {"apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryPolicy", "metadata": {"name": "trainer", "namespace": "team-a"},
              "spec": {"mode": leak["policy"]["mode"], "target": {"podSelector": {"matchLabels": {"app": "train"}}}, "prediction": leak["policy"]["prediction"],
                       "actions": leak["policy"]["actions"]},
              "status": {"conditions": leak["policy"]["conditions"], "recentActions": leak["policy"]["recentActions"]}}
    profile = {"apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryProfile", "metadata": {"name": "train", "namespace": "team-a"},
               "spec": {"workload": leak["profile"]["workload"]}, "status": leak["profile"]["status"]}
    lists = lambda *objects: {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(objects)}

    def answer(path):
        if path == "/version":
            return dict.fromkeys(["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"], "") | {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
        if "/proxy/api/v1/containers" in path:
            named = re.search(r"[?&]pod=([^&]*)", path)
            space = re.search(r"[?&]namespace=([^&]*)", path)
            shown = [one for one in containers if (not named or one["pod"] == named[1]) and (not space or one["namespace"] == space[1])]
            return {"format": 1, "controller": answerer, "simulated": False, "containers": shown, "leftOut": 0}
        if "/proxy/api/v1/nodes" in path:
            return {"format": 1, "controller": answerer, "nodes": nodes}
        if "/leases/" in path:
            return {"metadata": {"name": "gpumem-controller"}, "spec": {"holderIdentity": answerer["pod"],
                "renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())}}
        if "component%3Dagent" in path:
            return lists(*(pod("agent", f"agent-{n['node']}", n["node"]) for n in nodes))
        if "/pods?" in path:
            return lists(pod("controller", answerer["pod"], "node-a"))
        if "gpumemorypolicies" in path and "customresource" not in path:
            return lists(policy)
        if "gpumemoryprofiles" in path and "customresource" not in path:
            return lists(profile)
        if "/configmaps/" in path:
            return {"metadata": {"name": "gpumem-ledger"}, "data": {}}
        if "selfsubjectaccessreviews" in path:
            return {"metadata": {}, "spec": {}, "status": {"allowed": True}}
        return None

    return answer


def serve():
    answer = world()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = answer(self.path)
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Terminal:
    """Cells of character, colour, bold, dim, and whether they are of the chosen line."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.clear()
        self.pen = (None, False, False, False)

    def clear(self):
        self.cells = [[(" ", (None, False, False, False))] * self.columns for _ in range(self.rows)]
        self.x = self.y = 0

    def feed(self, text):
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\x1b[()][A-B0]|\x1b.|[^\x1b]", text):
            if part.startswith("\x1b["):
                self.control(part[-1], part[2:-1])
            elif part == "\n":
                self.down()
            elif part == "\r":
                self.x = 0
            elif part >= " " and not part.startswith("\x1b"):
                if self.x >= self.columns:
                    self.x = 0
                    self.down()
                self.cells[self.y][self.x] = (part, self.pen)
                self.x += 1

    def down(self):
        if self.y + 1 < self.rows:
            self.y += 1
        else:
            self.cells = self.cells[1:] + [[(" ", (None, False, False, False))] * self.columns]

    def control(self, kind, given):
        numbers = [int(n) if n.isdigit() else 0 for n in given.split(";")] if given else []
        if kind == "H":
            self.y, self.x = ([n - 1 for n in numbers] + [0, 0])[:2] if numbers else (0, 0)
        elif kind == "J":
            x, y = self.x, self.y
            self.clear() if given in ("2", "") else None
            self.x, self.y = x, y
        elif kind == "m":
            self.paint(numbers or [0])

    def paint(self, codes):
        colour, bold, dim, turned = self.pen
        place = 0
        while place < len(codes):
            code = codes[place]
            if code == 0: colour, bold, dim, turned = None, False, False, False
            elif code == 1: bold = True
            elif code == 2: dim = True
            elif code == 22: bold = dim = False
            elif code == 39: colour = None
            elif code == 48 and codes[place + 1:place + 2] == [5]: turned, place = True, place + 2
            elif code == 49: turned = False
            elif code == 38 and codes[place + 1:place + 2] == [5]:
                colour, place = {1: 31, 2: 32, 3: 33, 6: 36, 9: 31, 10: 32, 11: 33}.get(codes[place + 2]), place + 2
            elif 30 <= code <= 37 or 90 <= code <= 97: colour = code % 60 if code >= 90 else code
            place += 1
        self.pen = (colour, bold, dim, turned)

    def picture(self, size=15):
        plain, strong = ImageFont.truetype(FONT, size), ImageFont.truetype(FONT.replace("Mono.ttf", "Mono-Bold.ttf"), size)
        wide, high = round(plain.getlength("M")), round(size * 1.3)
        rows = self.rows
        while rows > 1 and all(cell[0] == " " for cell in self.cells[rows - 1]):
            rows -= 1
        image = Image.new("RGB", (self.columns * wide + 24, rows * high + 24), PAPER)
        draw = ImageDraw.Draw(image)
        for y, row in enumerate(self.cells[:rows]):
            for x, (character, (colour, bold, dim, turned)) in enumerate(row):
                ink, paper = COLOURS.get(colour, DIM if dim else INK), CHOSEN if turned else None
                at = (12 + x * wide, 12 + y * high)
                if paper:
                    draw.rectangle([at, (at[0] + wide, at[1] + high)], fill=paper)
                if character != " ":
                    draw.text(at, character, font=strong if bold else plain, fill=ink)
        return image


def record(program, line, columns, rows, colour, config, keys=""):
    """Runs it on a pseudo-terminal; what needs keys is ended by them, what watches by its third look."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ.update(KUBECONFIG=config, TERM="xterm-256color", LANG="C.UTF-8")
        if not colour:
            os.environ["NO_COLOR"] = "1"
        time.sleep(0.2)
        os.execv(program, [program, *line])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    terminal, data, began = Terminal(columns, rows), b"", time.monotonic()
    stays = bool(keys) or "-w" in line
    while time.monotonic() - began < (6 if stays else 60):
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            read = os.read(master, 65536)
        except OSError:
            break
        if not read:
            break
        data += read
    terminal.feed(data.decode(errors="replace"))
    if keys:
        os.write(master, keys.encode())
    elif stays:
        os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return terminal


SCREENS = {
    "top": "top -A", "top-workloads": "top workloads -A", "top-nodes": "top nodes", "top-gpus": "top gpus", "top-watch": "top -A -w",
    "tui": "top -A --tui", "explain": "explain pod/train-6f9-x2k", "doctor": "doctor",
    "simulate": "policy simulate -f {policy} --trace {trace}", "test": "policy test -f {policy} --trace {trace}",
    "estimate": "estimate llama3.1-8b --method lora --sequence 4096 --batch 4 --gpu A100-40GB",
    "demo": "demo --speed 160", "demo-plain": "demo --plain",
    "serve": "estimate llama3.1-8b --task serve --utilization 0.85 --gpu A100-40GB",
}


def main():
    program, folder = os.path.abspath(sys.argv[1]), Path(sys.argv[2])
    only_docs, wanted = sys.argv[3:] == ["docs"], sys.argv[3:]
    with tempfile.TemporaryDirectory() as place:
        config, trace = f"{place}/config", f"{place}/leak.csv"
        Path(config).write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "played", "users": [{"name": "played", "user": {}}],
            "clusters": [{"name": "played", "cluster": {"server": f"http://127.0.0.1:{serve()}"}}],
            "contexts": [{"name": "played", "context": {"cluster": "played", "user": "played", "namespace": "team-a"}}]}))
        rows = [f"{t},train,{8000 + t * 44 // 10},24576" for t in range(0, 3600, 5)]
        Path(trace).write_text("t_s,container,used_mib,capacity_mib\n" + "\n".join(rows) + "\n")
        folder.mkdir(parents=True, exist_ok=True)

        def draw(name, columns, rows, colour, file):
            line = SCREENS[name].format(policy="deploy/examples/enforce-training.yaml", trace=trace).split()
            # A page that is longer than the terminal is scrolled through: it is drawn whole.
            tall = rows if name in ("tui", "top-watch", "demo") else 150
            record(program, line, columns, tall, colour, config, "q" if name in ("tui", "demo") else "").picture().save(folder / file, optimize=True)

        if only_docs:
            draw("tui", 120, 32, True, "cli-tui.png")
            draw("explain", 100, 40, True, "cli-explain.png")
            return
        for name in SCREENS:
            if wanted and name not in wanted:
                continue
            for columns, rows in ((80, 24), (120, 40), (200, 50)):
                for colour in (True, False):
                    draw(name, columns, rows, colour, f"{name}-{columns}{'' if colour else '-plain'}.png")


main()
