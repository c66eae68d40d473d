"""gpumem's cooperative hook: what a framework's allocator holds, told to the node's agent, and three requests it obeys.

Pure Python 3.8+, no dependencies, off unless GPUMEM_HOOK=1. It imports no framework: it waits until the program has
imported one and made use of a GPU by itself. One daemon thread looks once a second; whatever goes wrong is swallowed and
counted, because the program matters and the hook does not.

    out   names of idle threads, read by the agent through /proc (see `beacon_name`); a JSON file for people and sidecars
    in    a command file: trim, fraction, checkpoint (see `Commands`)
"""
import os
import sys

VERSION = "0.1.0"
FORMAT = 1
# Top-level packages whose import starts the thread.
FRAMEWORKS = frozenset(("torch", "jax", "jaxlib", "tensorflow"))
INTERVAL_SECONDS = 1.0
# Longest command text looked at.
MAX_COMMAND_BYTES = 4096
# Devices of one process that are told to the agent.
MAX_DEVICES = 16

_state = None  # the running Publisher of this process
_installed = False
_forks_seen = False
_unusable = set()  # frameworks that were live when this process was forked off: asking them may hang


class _Notice:
    """A finder that finds nothing: it only hears that a framework is about to be imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in FRAMEWORKS:
            start()
        return None


def install():
    """Waits for a framework. Costs one look-up for each module imported later."""
    global _installed
    if _installed:
        return
    _installed = True
    sys.meta_path.insert(0, _Notice)


def start():
    """Starts the thread of this process, once. Never raises."""
    global _state, _forks_seen
    if _state is not None:
        return
    try:
        from gpumem_hook import publish

        _state = publish.Publisher(_unusable)
        _state.start()
        # After `threading` was imported, so that its own clean-up of a child runs before ours.
        if not _forks_seen and hasattr(os, "register_at_fork"):
            _forks_seen = True
            os.register_at_fork(after_in_child=_after_fork)
    except Exception:
        _state = None


def _after_fork():
    """A forked child has no thread of its parent's, and may not use what the parent had initialised."""
    global _state
    try:
        parent, _state = _state, None
        if parent is not None:
            _unusable.update(parent.live)
            start()
    except Exception:
        pass


def checkpoint_requested():
    """Id of the open request to save the program's work, or None. For training loops that want to ask each step."""
    state = _state
    return state.commands.checkpoint if state is not None else None


def beacon_name(allocated, reserved, uuid, ooms, beat):
    """The name of a thread that tells the agent one device's figures, 15 characters.

    `gm1` and 72 bits in base64's URL alphabet, highest first: allocated and reserved in units of 128 KiB (24 bits each,
    rounded; all ones: unknown or larger), the first 4 hex digits of the GPU's UUID (16 bits, 0: unknown), the out-of-memory
    failures so far (5 bits, 31: that many or more), and a counter that shows that the hook lives (3 bits).
    """
    value = _units(allocated)
    value = value << 24 | _units(reserved)
    value = value << 16 | uuid & 0xFFFF
    value = value << 5 | min(max(ooms, 0), 31)
    value = value << 3 | beat & 7
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return "gm1" + "".join(alphabet[value >> shift & 63] for shift in range(66, -1, -6))


def _units(size):
    if size is None or size < 0:
        return 0xFFFFFF
    return min((size + (1 << 16)) >> 17, 0xFFFFFF)
