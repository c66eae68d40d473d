"""What each framework says of its own allocator, read without importing or initialising anything.

Every reader takes the modules that the program itself has loaded (`sys.modules`) and gives a list of device figures, or
None while the framework is absent, still being imported, or has not touched a GPU yet.
"""
import os
import sys


class Figures:
    """One device as one framework's allocator sees it; bytes, None where it does not say."""

    __slots__ = ("framework", "index", "uuid", "allocated", "reserved", "peak", "total", "retries", "ooms")

    def __init__(self, framework, index, **values):
        self.framework, self.index, self.uuid = framework, index, values.get("uuid")
        self.allocated, self.reserved = values.get("allocated"), values.get("reserved")
        self.peak, self.total = values.get("peak"), values.get("total")
        self.retries, self.ooms = values.get("retries"), values.get("ooms")

    def as_dict(self):
        return {name: getattr(self, name) for name in self.__slots__}


def loaded(name):
    """A module the program has imported completely."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


class Torch:
    """PyTorch's CUDA (or ROCm) caching allocator."""

    name = "torch"

    def __init__(self):
        self.identity = {}  # index: (uuid, total)

    def read(self):
        torch = loaded("torch")
        cuda = getattr(torch, "cuda", None)
        # Before the program has initialised CUDA nothing may be asked: the question itself would make a context.
        if cuda is None or not cuda.is_initialized():
            return None
        found = []
        for index in range(cuda.device_count()):
            stats = _nested(cuda, index)
            reserved = _at(stats, "reserved_bytes", "all", "current")
            if not reserved and not _at(stats, "reserved_bytes", "all", "peak"):
                continue  # not used by this process: even its properties are left alone
            uuid, total = self._identity(cuda, index)
            found.append(Figures(
                self.name, index, uuid=uuid, total=total,
                allocated=_at(stats, "allocated_bytes", "all", "current"), reserved=reserved,
                peak=_at(stats, "allocated_bytes", "all", "peak"),
                retries=stats.get("num_alloc_retries"), ooms=stats.get("num_ooms")))
        return found

    def _identity(self, cuda, index):
        if index not in self.identity:
            properties = cuda.get_device_properties(index)
            uuid = getattr(properties, "uuid", None)  # PyTorch 2.4 and newer
            self.identity[index] = (
                str(uuid) if uuid is not None else visible_uuid(index), getattr(properties, "total_memory", None))
        return self.identity[index]

    def trim(self, figures):
        """Gives unused cached memory back to the driver; says how much that was, in bytes."""
        cuda = loaded("torch").cuda
        before = sum(device.reserved or 0 for device in figures)
        with cuda.device(figures[0].index):  # never a context on a device that the program does not use
            cuda.empty_cache()
        after = sum(device.reserved or 0 for device in self.read() or [])
        return max(before - after, 0)

    def fraction(self, figures, share):
        """Caps the allocator at this share of the device, from now on."""
        cuda = loaded("torch").cuda
        for device in figures:
            if device.total and device.allocated and share * device.total < device.allocated:
                raise Refused("cuda:%d has %d bytes in use, more than %g of it" % (device.index, device.allocated, share))
        for device in figures:
            cuda.set_per_process_memory_fraction(share, device.index)


class Jax:
    """The allocator of JAX's GPU client."""

    name = "jax"

    def read(self):
        bridge = loaded("jax._src.xla_bridge")
        backends = getattr(bridge, "_backends", None)  # empty until the program has used a device
        if not backends:
            return None
        found = []
        for backend in list(backends.values()):
            if getattr(backend, "platform", None) not in ("gpu", "cuda", "rocm"):
                continue
            for device in backend.local_devices():
                stats = device.memory_stats()
                if not stats:
                    continue
                index = getattr(device, "local_hardware_id", None)
                index = device.id if index is None else index
                found.append(Figures(
                    self.name, index, uuid=visible_uuid(index), allocated=stats.get("bytes_in_use"),
                    reserved=stats.get("pool_bytes"), peak=stats.get("peak_bytes_in_use"),
                    total=stats.get("bytes_limit")))
        return found or None


class TensorFlow:
    """TensorFlow's BFC allocator; it tells what is in use only."""

    name = "tensorflow"

    def read(self):
        module = loaded("tensorflow.python.eager.context")
        context = getattr(module, "_context", None)
        if context is None or not getattr(context, "_initialized", False):
            return None
        found = []
        for index, _ in enumerate(context.list_logical_devices("GPU")):
            info = context.get_memory_info("GPU:%d" % index)
            found.append(Figures(
                self.name, index, uuid=visible_uuid(index), allocated=info.get("current"), peak=info.get("peak")))
        return found or None


class Refused(Exception):
    """A command that would harm the program, or that its framework cannot do."""


def visible_uuid(index):
    """The UUID where CUDA_VISIBLE_DEVICES names devices by it; its order is the frameworks' order."""
    entries = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if isinstance(index, int) and 0 <= index < len(entries) and entries[index].startswith("GPU-"):
        return entries[index][4:]
    return None


def _nested(cuda, index):
    read = getattr(cuda, "memory_stats_as_nested_dict", None) or getattr(cuda.memory, "memory_stats_as_nested_dict")
    return read(index)


def _at(stats, *path):
    for key in path:
        stats = stats.get(key) if isinstance(stats, dict) else None
    return stats

