"""The one thread: reads the frameworks once a second, tells the agent, writes the file, looks for commands."""
import atexit
import json
import os
import signal
import stat
import tempfile
import threading
import time

from gpumem_hook import FORMAT, INTERVAL_SECONDS, MAX_DEVICES, VERSION, beacon_name, commands, frameworks, oom

# The file is for people and sidecars. It is written anew after this long, and at once when something happened. The agent reads
# the beacons, which show each look's figures.
FILE_SECONDS = 5.0
# How long the end of the program may wait for a look that is under way.
LAST_LOOK_SECONDS = 1.0


class Publisher:
    """Everything the hook holds in a process."""

    def __init__(self, unusable=()):
        self.pid = os.getpid()
        self.readers = {reader.name: reader for reader in
                        (frameworks.Torch(), frameworks.Jax(), frameworks.TensorFlow()) if reader.name not in unusable}
        self.readers.setdefault("torch", _Unusable())
        self.newest = {}    # framework: figures
        self.live = set(unusable)
        self.failures = 0
        self.beat = 0
        self.spent = 0.0
        self.told = None    # what the file said last, beside the figures
        self.told_at = 0.0
        self.files = Files()
        self.beacons = Beacons()
        self.commands = commands.Commands(self, self.files.folder, os.path.dirname(os.path.dirname(__file__)))
        self.watch = oom.Watch(self)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="gpumem-hook", daemon=True)

    def start(self):
        self.thread.start()
        # A daemon thread that is inside a framework while the interpreter ends can crash it: so it is asked to end.
        atexit.register(self.stop)

    def stop(self):
        if self.pid != os.getpid():
            return  # a forked child: the thread is not there, and its locks may be held for ever
        self.stopped.set()
        self.thread.join(LAST_LOOK_SECONDS)
        self.files.remove("%d.json" % self.pid)

    def failed(self):
        self.failures += 1

    def _run(self):
        _deaf()
        while not self.stopped.wait(INTERVAL_SECONDS):
            begin = time.thread_time()
            try:
                self.look()
            except Exception:
                self.failed()
            self.spent += time.thread_time() - begin

    def look(self):
        """One round."""
        figures = self.read_all()
        if "torch" in self.newest:
            self.watch.observe_torch()
        self.commands.look()
        self.beat += 1
        self.beacons.show(figures, self.beat)
        if figures or self.commands.done:
            self._tell(figures)

    def _tell(self, figures):
        """Writes the file where it is due: the dearest part of a look, and its figures change with every step."""
        happened = (self.failures, self.commands.captures.open > 0, self.commands.checkpoint, dict(self.commands.done),
                    [(device.framework, device.index, device.ooms, device.retries) for device in figures])
        now = time.monotonic()
        if happened == self.told and now - self.told_at < FILE_SECONDS:
            return
        self.told, self.told_at = happened, now
        self.files.write("%d.json" % self.pid, {
            "format": FORMAT, "version": VERSION, "pid": self.pid, "beat": self.beat, "failures": self.failures,
            "thread_seconds": round(self.spent, 4), "capturing": self.commands.captures.open > 0,
            "checkpoint": self.commands.checkpoint, "commands": dict(list(self.commands.done.items())[-8:]),
            "devices": [device.as_dict() for device in figures]})

    def read_all(self):
        """Figures of every framework that uses a GPU; one that fails is left out."""
        all_figures = []
        for name, reader in self.readers.items():
            try:
                figures = reader.read()
            except Exception:
                self.failed()
                figures = None
            if figures is None:
                self.newest.pop(name, None)
                continue
            self.live.add(name)
            self.newest[name] = figures
            all_figures.extend(figures)
        return all_figures


class _Unusable:
    """Stands for a framework that the parent had initialised before the fork."""

    name = "torch"

    @staticmethod
    def read():
        return None


class Beacons:
    """Idle threads whose names carry figures to the agent.

    The kernel lets everybody read a thread's name, lets only its own process write it, and keeps it below 16 bytes: no
    volume, no socket and no right is needed, and whose figures they are cannot be mistaken.
    """

    def __init__(self):
        self.threads = []
        self.writable = os.path.isdir("/proc/self/task")

    def show(self, figures, beat):
        if not self.writable:
            return
        shown = _by_device(figures)[:MAX_DEVICES]
        while len(self.threads) < len(shown):
            self.threads.append(_Beacon())
        for thread, device in zip(self.threads, shown):
            thread.rename(beacon_name(device.allocated, device.reserved, _prefix(device.uuid), device.ooms or 0, beat))
        for thread in self.threads[len(shown):]:
            thread.rename("gpumem-hook")


class _Beacon:
    def __init__(self):
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._idle, name="gpumem-beacon", daemon=True)
        self.thread.start()

    def _idle(self):
        _deaf()
        self.end.wait()

    def rename(self, name):
        comm = os.open("/proc/self/task/%d/comm" % self.thread.native_id, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(comm, name.encode("ascii"))
        finally:
            os.close(comm)


def _deaf():
    """Signals are for the program's own threads: one that arrived here would not wake a main thread that waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _by_device(figures):
    """One entry for a device: frameworks that share one in one process are added up."""
    found = {}
    for device in figures:
        key = device.uuid or device.index
        if key not in found:
            found[key] = device
            continue
        both = frameworks.Figures("both", device.index, uuid=device.uuid)
        both.allocated = _sum(found[key].allocated, device.allocated)
        both.reserved = _sum(found[key].reserved, device.reserved)
        both.ooms = (found[key].ooms or 0) + (device.ooms or 0)
        found[key] = both
    return list(found.values())


def _sum(one, other):
    return None if one is None or other is None else one + other


def _prefix(uuid):
    try:
        text = uuid[4:] if uuid.startswith("GPU-") else uuid
        return int(text[:4], 16)
    except (AttributeError, ValueError, TypeError):
        return 0


class Files:
    """A folder of this user's own, in the container's temporary directory unless GPUMEM_HOOK_DIR names another."""

    def __init__(self):
        self.folder = None
        try:
            folder = os.environ.get("GPUMEM_HOOK_DIR") or os.path.join(
                tempfile.gettempdir(), "gpumem-hook-%d" % os.getuid())
            os.makedirs(folder, mode=0o700, exist_ok=True)
            about = os.lstat(folder)
            # In a shared temporary directory somebody else may have made it first.
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                self.folder = folder
        except (OSError, AttributeError):
            pass  # a read-only root without a temporary directory: the agent is told all the same

    def write(self, name, value):
        return self.write_text(name, json.dumps(value, separators=(",", ":"), default=str) + "\n")

    def write_text(self, name, text):
        """Replaces the file as a whole; gives its path, or None where there is no folder."""
        if self.folder is None:
            return None
        path = os.path.join(self.folder, name)
        temporary = os.path.join(self.folder, ".%s.%d" % (name, os.getpid()))
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(text.encode())
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        return path

    def remove(self, name):
        try:
            if self.folder is not None:
                os.unlink(os.path.join(self.folder, name))
        except OSError:
            pass

