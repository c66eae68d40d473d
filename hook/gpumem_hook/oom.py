"""What the allocator held when it ran out of memory, kept in a file that outlives the process.

PyTorch tells its observers of every failure, also of those the program survives; an uncaught failure of any framework is
seen by sys.excepthook. Both only look on: the exception goes its way unchanged.
"""
import sys
import time

from gpumem_hook import frameworks

# Longest report of a framework that is kept.
MAX_TEXT = 16384
_names = ("OutOfMemoryError", "ResourceExhaustedError", "XlaRuntimeError", "JaxRuntimeError")


class Watch:
    """Attaches to what tells of failures."""

    def __init__(self, publisher):
        self.publisher = publisher
        self.observed = False
        self.seen = 0
        before = sys.excepthook
        inherited = getattr(before, "__self__", None)  # of the process that forked this one
        self.previous = inherited.previous if isinstance(inherited, Watch) else before
        sys.excepthook = self.uncaught

    def observe_torch(self):
        """Once CUDA is initialised: an observer attached before is not kept."""
        if self.observed:
            return
        self.observed = True
        torch = frameworks.loaded("torch")
        attach = getattr(getattr(torch, "_C", None), "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self.torch_failed)

    def torch_failed(self, device, requested, device_total, device_free):
        """Runs in the allocating thread, before the exception; the allocator's lock is not held."""
        try:
            self.seen += 1
            self.record({"framework": "torch", "device": device, "requested": requested, "device_total": device_total,
                         "device_free": device_free, "caught": None}, summary=False)
        except Exception:
            self.publisher.failed()

    def uncaught(self, kind, value, trace):
        try:
            text = str(value)[:MAX_TEXT]
            if kind.__name__ in _names and ("out of memory" in text.lower() or "RESOURCE_EXHAUSTED" in text
                                            or kind.__name__ == "ResourceExhaustedError"):
                path = self.record({"framework": kind.__module__.split(".")[0], "message": text, "caught": False},
                                   summary=True)
                if path:
                    sys.stderr.write("gpumem: out of GPU memory; what the allocator held is in %s\n" % path)
        except Exception:
            self.publisher.failed()
        self.previous(kind, value, trace)

    def record(self, event, summary):
        event.update(format=1, pid=self.publisher.pid, unix_seconds=int(time.time()), failures_so_far=self.seen)
        event["devices"] = [device.as_dict() for device in self.publisher.read_all()]
        torch = frameworks.loaded("torch") if summary else None
        if torch is not None and torch.cuda.is_initialized():
            event["summary"] = torch.cuda.memory_summary()[:MAX_TEXT]
        return self.publisher.files.write("%d.oom.json" % self.publisher.pid, event)
