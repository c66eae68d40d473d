"""One device of 80 GiB; `grow` and `free` play the program."""
import types

TOTAL = 80 << 30
initialized = False
allocated = reserved = peak = ooms = retries = 0
fraction = 1.0
calls = []
broken = False


def is_initialized():
    if broken:
        raise RuntimeError("the stub is broken on purpose")
    return initialized


def device_count():
    assert initialized, "asked before the program initialised CUDA"
    return 2


def grow(size, cached=0):
    global initialized, allocated, reserved, peak, ooms
    initialized = True
    if allocated + size > TOTAL * fraction:
        import torch

        ooms += 1
        for observer in torch._C.observers:
            observer(0, size, TOTAL, TOTAL - reserved)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate %d bytes" % size)
    allocated += size
    reserved = max(reserved, allocated) + cached
    peak = max(peak, allocated)


def memory_stats_as_nested_dict(index):
    if index != 0:
        return {}
    return {"allocated_bytes": {"all": {"current": allocated, "peak": peak}},
            "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
            "num_alloc_retries": retries, "num_ooms": ooms}


def get_device_properties(index):
    assert index == 0, "a device that the program does not use was touched"
    return types.SimpleNamespace(uuid="a1b2c3d4-0000-1111-2222-333344445555", total_memory=TOTAL)


def memory_summary():
    return "|  stub's memory summary  |"


class device:
    def __init__(self, index):
        assert index == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def empty_cache():
    global reserved
    assert not CUDAGraph.capturing, "memory was freed while a graph was captured"
    calls.append("empty_cache")
    reserved = allocated


def set_per_process_memory_fraction(share, index):
    global fraction
    fraction = share


class CUDAGraph:
    capturing = False

    def capture_begin(self):
        CUDAGraph.capturing = True

    def capture_end(self):
        CUDAGraph.capturing = False
