"""Starts gpumem's hook where it is asked for, and hands on to the sitecustomize that would have run without it.

Python runs this file at its start because its folder is on PYTHONPATH. It must never fail, and must cost nothing where the
hook is off: without GPUMEM_HOOK=1 only the hand-over below happens.
"""
import os
import sys

if os.environ.get("GPUMEM_HOOK") == "1" and sys.version_info >= (3, 8):
    try:
        import gpumem_hook

        gpumem_hook.install()
    except Exception:  # an unknown interpreter, a half-written volume: the program matters, the hook does not
        pass


def _hand_over():
    """Runs the next sitecustomize of the path, as if this file were not there."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    path = [entry for entry in sys.path if os.path.realpath(entry or os.getcwd()) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)  # its own errors are its own: site reports them as it always does


if sys.version_info >= (3, 5):
    _hand_over()
