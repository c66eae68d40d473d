"""What the hook is asked to do, and what became of it.

A command file holds lines `ID VERB [ARGUMENT]`; each id is obeyed once by each process. Verbs:

    trim              give cached, unused memory back to the driver
    fraction SHARE    cap the allocator at this share of the device, 0 < SHARE <= 1; never below what is in use
    checkpoint        put the file `checkpoint-now` beside the figures, and send the program the signal it named

Files looked at: `command` beside the figures, and `command` and `checkpoint-request` in the hook's own folder, where the
pod's annotations show (the latter holds nothing but an id; when it is gone the request is withdrawn).
"""
import os
import re
import signal
import stat

from gpumem_hook import MAX_COMMAND_BYTES, frameworks

MAX_LINES = 32
_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Captures:
    """Counts CUDA graph captures: freeing memory during one would ruin it."""

    def __init__(self):
        import threading

        self.lock = threading.Lock()
        self.open = 0
        self.watched = False

    def watch(self):
        torch = frameworks.loaded("torch")
        graph = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
        if self.watched or graph is None:
            return
        self.watched = True
        begin, end = graph.capture_begin, graph.capture_end
        captures = self

        def capture_begin(self, *args, **kwargs):
            with captures.lock:  # waits for a trim that is under way
                captures.open += 1
            try:
                return begin(self, *args, **kwargs)
            except BaseException:
                captures.open -= 1
                raise

        def capture_end(self, *args, **kwargs):
            try:
                return end(self, *args, **kwargs)
            finally:
                captures.open = max(captures.open - 1, 0)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end


class Commands:
    """Finds new commands and obeys them."""

    def __init__(self, publisher, own, delivered):
        self.publisher = publisher
        self.files = [(os.path.join(folder, "command"), False) for folder in (own, delivered) if folder]
        self.files.append((os.path.join(delivered, "checkpoint-request"), True))
        self.seen = {}      # path: what identified its text when it was read last
        self.done = {}      # id: outcome, the newest last
        self.waiting = []   # [(id, words)] that a capture holds up
        self.checkpoint = None
        self.captures = Captures()

    def look(self):
        self.captures.watch()
        for path, is_request in self.files:
            text = self._changed(path)
            if text is None:
                continue
            if is_request:
                self._request(text.strip())
                continue
            for line in text.splitlines()[:MAX_LINES]:
                words = line.split()
                if len(words) >= 2 and _id.match(words[0]) and words[0] not in self.done:
                    self._obey(words[0], words[1:])
        waiting, self.waiting = self.waiting, []
        for identity, words in waiting:
            self._obey(identity, words)

    def _changed(self, path):
        """The text of a file that is new since the last look; "" once when it is gone."""
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return "" if self.seen.pop(path, None) is not None else None
        try:
            about = os.fstat(handle)
            mark = (about.st_ino, about.st_mtime_ns, about.st_size)
            if not stat.S_ISREG(about.st_mode) or self.seen.get(path) == mark:
                return None
            self.seen[path] = mark
            text = os.read(handle, MAX_COMMAND_BYTES + 1)
            if len(text) > MAX_COMMAND_BYTES:
                self.publisher.failed()
                return None
            return text.decode("utf-8", "replace")
        finally:
            os.close(handle)

    def _request(self, identity):
        if not identity:
            self.checkpoint = None
            self.publisher.files.remove("checkpoint-now")
        elif _id.match(identity) and identity not in self.done:
            self._obey(identity, ["checkpoint"])

    def _obey(self, identity, words):
        try:
            outcome = self._do(identity, words)
        except frameworks.Refused as refused:
            outcome = "refused: %s" % refused
        except Exception as error:
            self.publisher.failed()
            outcome = "failed: %s" % type(error).__name__
        if outcome is None:
            self.waiting.append((identity, words))
            outcome = "waiting: a CUDA graph is being captured"
        self.done[identity] = outcome
        while len(self.done) > 64:
            self.done.pop(next(iter(self.done)))

    def _do(self, identity, words):
        if words[0] == "checkpoint":
            self.checkpoint = identity
            self.publisher.files.write_text("checkpoint-now", identity + "\n")
            return "asked" + _signal()
        if words[0] not in ("trim", "fraction"):
            raise frameworks.Refused("no such command")
        torch = self.publisher.readers["torch"]
        figures = self.publisher.newest.get("torch")
        if not figures:
            raise frameworks.Refused("only PyTorch can do this, and it holds no GPU memory here")
        if words[0] == "fraction":
            share = float(words[1])
            if not 0 < share <= 1:
                raise frameworks.Refused("a share is more than 0 and at most 1")
            torch.fraction(figures, share)
            return "done"
        with self.captures.lock:  # no capture begins meanwhile
            if self.captures.open:
                return None
            return "done: %d bytes given back" % torch.trim(figures)


def _signal():
    """Sends the signal the program asked for, if it handles it: the default action would end the program."""
    name = os.environ.get("GPUMEM_HOOK_CHECKPOINT_SIGNAL", "")
    number = getattr(signal, name, None) if name.startswith("SIG") else None
    if number is None or not callable(signal.getsignal(number)):
        return ""
    os.kill(os.getpid(), number)
    return ", and told by " + name
