#!/usr/bin/env python3
"""The cooperative hook in real interpreters, with stubs of the frameworks' allocator calls (tests/hook/stubs).

    python3 tests/hook/test_hook.py

The frameworks' own wheels are too large for this; tests/gpu/hook.py runs the hook with the real ones.
"""
import ast
import base64
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOOK = os.path.join(ROOT, "hook")
STUBS = os.path.join(ROOT, "tests", "hook", "stubs")
GIB = 1 << 30
sys.path.insert(0, HOOK)
sys.dont_write_bytecode = True
import gpumem_hook


class HookTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="gpumem-hook-test-")
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.state = os.path.join(self.scratch, "state")

    def environment(self, path=(), **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPUMEM"))}
        kept.update(PYTHONPATH=os.pathsep.join((*path, HOOK, STUBS)), GPUMEM_HOOK="1", GPUMEM_HOOK_DIR=self.state,
                    PYTHONDONTWRITEBYTECODE="1")
        kept.update(more)
        return {name: value for name, value in kept.items() if value is not None}

    def python(self, code, *flags, path=(), code_after=0, **more):
        """Runs a program to its end; gives its output."""
        done = subprocess.run([sys.executable, *flags, "-c", QUICK + textwrap.dedent(code)], text=True,
                              capture_output=True, timeout=30, env=self.environment(path, **more))
        self.assertEqual(done.returncode, code_after, done.stdout + done.stderr)
        self.errors = done.stderr
        return done.stdout.strip()

    def file(self, name, text):
        path = os.path.join(self.scratch, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as out:
            out.write(text)
        return path


# Programs under test look often, so that a test need not wait, and wait for what they expect instead of a time.
QUICK = """
import os, sys, json, time
def hook():
    import gpumem_hook
    return gpumem_hook._state
def quick():
    import gpumem_hook.publish as publish
    publish.INTERVAL_SECONDS = 0.01
def rounds(count=2):
    wanted = hook().beat + count
    wait(lambda: hook().beat >= wanted)
def wait(until, what=""):
    begin = time.monotonic()
    while not until():
        assert time.monotonic() - begin < 10, "waited in vain: " + what
        time.sleep(0.005)
def told():
    with open(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "%d.json" % os.getpid())) as file:
        return json.load(file)
def command(text):
    with open(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "command.new"), "w") as out:
        out.write(text)
    os.replace(out.name, os.path.join(os.environ["GPUMEM_HOOK_DIR"], "command"))
def names():
    found = []
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/comm" % task) as comm:
            found.append(comm.read().rstrip("\\n"))
    return [name for name in found if name.startswith("gm1")]
if os.environ.get("GPUMEM_HOOK") == "1" and not sys.flags.isolated and not sys.flags.no_site:
    quick()
"""


class ItStaysOut(HookTest):
    def test_a_program_without_a_framework_gets_no_thread_and_no_file(self):
        out = self.python("import threading, json, email; print(hook(), threading.active_count())")
        self.assertEqual(out, "None 1")
        self.assertFalse(os.path.exists(self.state))

    def test_it_is_off_unless_asked_for(self):
        out = self.python("import torch; torch.cuda.grow(1); print('gpumem_hook' in sys.modules)", GPUMEM_HOOK="0")
        self.assertEqual(out, "False")

    def test_it_imports_no_framework_and_asks_none_before_the_program_used_a_gpu(self):
        out = self.python("""
            import torch
            wait(lambda: hook().beat >= 3)
            print(sorted(name for name in sys.modules if name in ("jax", "tensorflow")), hook().failures, hook().live)
        """)
        self.assertEqual(out, "[] 0 set()")  # the stub fails when it is asked too early

    def test_its_grammar_is_that_of_python_3_8(self):
        for folder, _, names in os.walk(HOOK):
            for name in names:
                if name.endswith(".py"):
                    with open(os.path.join(folder, name)) as source:
                        ast.parse(source.read(), name, feature_version=(3, 8))

    def test_signals_reach_the_program_and_not_the_hooks_threads(self):
        out = self.python("""
            import torch, signal, threading
            torch.cuda.grow(1); rounds()
            for task in os.listdir("/proc/self/task"):
                with open("/proc/self/task/%s/status" % task) as status:
                    blocked = [line.split()[1] for line in status if line.startswith("SigBlk")][0]
                print(int(task) == threading.main_thread().native_id, int(blocked, 16) >> 14 & 1)
        """)
        self.assertEqual(sorted(out.splitlines()), ["False 1", "False 1", "True 0"])

    def test_isolated_mode_runs_without_it(self):
        self.assertEqual(self.python("print('gpumem_hook' in sys.modules)", "-I"), "False")

    def test_it_never_keeps_a_program_alive(self):
        begin = time.monotonic()
        self.python("import torch; torch.cuda.grow(1); rounds()")
        self.assertLess(time.monotonic() - begin, 5)

    def test_a_broken_framework_is_counted_and_the_program_lives(self):
        out = self.python("""
            import torch, jax
            torch.cuda.grow(1); torch.cuda.broken = True
            jax._src.xla_bridge._backends["gpu"] = jax._src.xla_bridge.Backend()
            wait(lambda: hook().failures >= 2)
            rounds()
            print([device["framework"] for device in told()["devices"]])
        """)
        self.assertEqual(out, "['jax']")  # the other framework is still told

    def test_a_broken_hook_does_not_stop_the_interpreter(self):
        self.file("broken/gpumem_hook/__init__.py", "raise RuntimeError('half written')")
        with open(os.path.join(HOOK, "sitecustomize.py")) as source:
            self.file("broken/sitecustomize.py", source.read())
        done = subprocess.run([sys.executable, "-c", "print('fine')"], capture_output=True, text=True,
                              env=self.environment(PYTHONPATH=os.path.join(self.scratch, "broken")))
        self.assertEqual((done.stdout, done.stderr), ("fine\n", ""))

    def test_the_next_sitecustomize_runs_as_without_it(self):
        self.file("own/sitecustomize.py", "import os; os.environ['OWN'] = __name__ + str(__file__.count('own'))")
        own = os.path.join(self.scratch, "own")
        for more in ({}, {"GPUMEM_HOOK": None}):
            out = self.python("print(os.environ.get('OWN'), sys.modules['sitecustomize'].__file__.count('own'))",
                              PYTHONPATH=os.pathsep.join((HOOK, own)), **more)
            self.assertEqual(out, "sitecustomize1 1")

    def test_without_a_writable_folder_the_agent_is_told_all_the_same(self):
        blocked = self.file("blocked", "a file, no folder")
        out = self.python("import torch; torch.cuda.grow(1 << 30); rounds(); print(len(names()))",
                          GPUMEM_HOOK_DIR=os.path.join(blocked, "below"))
        self.assertEqual(out, "1")

    def test_somebody_elses_folder_is_not_used(self):
        os.symlink("/tmp", self.state)
        out = self.python("import torch; torch.cuda.grow(1); rounds(); print(hook().files.folder)")
        self.assertEqual(out, "None")


class ItTells(HookTest):
    def test_figures_are_the_frameworks_own(self):
        out = self.python("""
            import torch
            torch.cuda.grow(3 << 30, cached=1 << 30)
            rounds()
            print(json.dumps(told()))
            print(oct(os.stat(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "%d.json" % os.getpid())).st_mode & 0o777))
        """)
        text, mode = out.splitlines()
        told = json.loads(text)
        device = told["devices"][0]
        self.assertEqual((told["format"], len(told["devices"]), mode), (1, 1, "0o600"))
        self.assertEqual((device["allocated"], device["reserved"], device["peak"]), (3 * GIB, 4 * GIB, 3 * GIB))
        self.assertEqual((device["framework"], device["index"], device["ooms"]), ("torch", 0, 0))

    def test_the_file_is_written_each_five_seconds_and_at_once_when_something_happened(self):
        out = self.python("""
            import torch
            import gpumem_hook.publish as publish
            torch.cuda.grow(1 << 30)
            wait(lambda: os.path.exists(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "%d.json" % os.getpid())))
            first = told()["beat"]
            rounds(5)
            torch.cuda.grow(1 << 30)
            rounds(5)
            print(publish.FILE_SECONDS, told()["beat"] == first, hook().newest["torch"][0].allocated >> 30)
            command("c1 trim")
            wait(lambda: told()["beat"] > first, "a command is told at once")
            print(told()["commands"]["c1"][:4], told()["devices"][0]["allocated"] >> 30)
            second = told()["beat"]
            publish.FILE_SECONDS = 0.05
            wait(lambda: told()["beat"] > second, "the next one in its time")
        """)
        self.assertEqual(out.splitlines(), ["5.0 True 2", "done 2"])

    def test_the_threads_name_carries_the_figures_and_a_beat(self):
        out = self.python("""
            import torch
            torch.cuda.grow(3 << 30, cached=1 << 30)
            rounds()
            first = names()
            wait(lambda: names() != first)
            print(*first)
        """)
        self.assertEqual(len(out), 15)
        bits = int.from_bytes(base64.urlsafe_b64decode(out[3:]), "big")
        self.assertEqual((bits >> 48) << 17, 3 * GIB)
        self.assertEqual((bits >> 24 & 0xFFFFFF) << 17, 4 * GIB)
        self.assertEqual(bits >> 8 & 0xFFFF, 0xA1B2)
        self.assertEqual(bits >> 3 & 31, 0)

    def test_jax_and_tensorflow_are_read_and_shared_devices_are_added_up(self):
        out = self.python("""
            import jax, tensorflow
            rounds()
            assert not names()
            jax._src.xla_bridge._backends["gpu"] = jax._src.xla_bridge.Backend()
            tensorflow.python.eager.context._context = tensorflow.python.eager.context.Context()
            rounds()
            print(json.dumps(told()["devices"]))
            print(*names())
        """)
        devices, names = out.splitlines()
        devices = {device["framework"]: device for device in json.loads(devices)}
        self.assertEqual((devices["jax"]["allocated"], devices["jax"]["reserved"]), (GIB, 5 * GIB))
        self.assertEqual((devices["tensorflow"]["allocated"], devices["tensorflow"]["reserved"]), (3 * GIB, None))
        bits = int.from_bytes(base64.urlsafe_b64decode(names[3:]), "big")
        self.assertEqual((bits >> 48) << 17, 4 * GIB)
        self.assertEqual(bits >> 24 & 0xFFFFFF, 0xFFFFFF, "TensorFlow does not say what it holds")

    def test_the_golden_names_are_those_the_agent_reads(self):
        with open(os.path.join(ROOT, "tests", "data", "hook-names.json")) as file:
            golden = json.load(file)
        for case in golden:
            name = gpumem_hook.beacon_name(case["allocated"], case["reserved"], case["uuid"], case["ooms"], case["beat"])
            self.assertEqual(name, case["name"])

    def test_its_version_is_the_products(self):
        with open(os.path.join(ROOT, "Cargo.toml")) as file:
            self.assertIn('version = "%s"' % gpumem_hook.VERSION, file.read())

    def test_a_forked_child_tells_for_itself_and_leaves_its_parents_framework_alone(self):
        out = self.python("""
            import torch
            torch.cuda.grow(1 << 30); rounds()
            child = os.fork()
            if child == 0:
                wait(lambda: hook() is not None and hook().beat >= 3)
                print("child", hook().newest, len(names()), hook().failures, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            rounds()
            print("parent", len(names()))
        """)
        self.assertEqual(out, "child {} 0 0\nparent 1")

    def test_a_child_forked_before_the_gpu_was_used_is_told(self):
        out = self.python("""
            import torch
            rounds()
            if os.fork() == 0:
                torch.cuda.grow(1 << 30)
                rounds(3)
                print(told()["devices"][0]["allocated"] >> 30, len(names()), flush=True)
                os._exit(0)
            os.wait()
        """)
        self.assertEqual(out, "1 1")

    def test_a_spawned_child_is_told(self):
        script = self.file("spawn.py", QUICK + textwrap.dedent("""
            import multiprocessing
            def work():
                import torch
                torch.cuda.grow(2 << 30)
                rounds(3)
                print(told()["devices"][0]["allocated"] >> 30, flush=True)
            if __name__ == "__main__":
                child = multiprocessing.get_context("spawn").Process(target=work)
                child.start(); child.join()
                sys.exit(child.exitcode)
        """))
        done = subprocess.run([sys.executable, script], env=self.environment(), text=True, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "2"), done.stderr)


class ItObeys(HookTest):
    def test_trim_frees_what_it_says_and_only_once(self):
        out = self.python("""
            import torch
            torch.cuda.grow(1 << 30, cached=2 << 30); rounds()
            command("a1 trim")
            wait(lambda: "a1" in told()["commands"])
            print(told()["commands"]["a1"], torch.cuda.reserved >> 30)
            command("a1 trim\\n")
            rounds(3)
            print(torch.cuda.calls)
        """)
        self.assertEqual(out, "done: %d bytes given back 1\n['empty_cache']" % (2 * GIB))

    def test_a_fraction_holds_from_then_on_and_never_below_what_is_live(self):
        out = self.python("""
            import torch
            torch.cuda.grow(30 << 30); rounds()
            command("f1 fraction 0.1\\nf2 fraction 0.5\\nf3 fraction 7\\nf4 fraction\\nf5 fraction nan")
            wait(lambda: "f5" in told()["commands"])
            for outcome in told()["commands"].values(): print(outcome)
            try:
                torch.cuda.grow(11 << 30)
            except torch.OutOfMemoryError:
                print("held")
        """)
        lines = out.splitlines()
        self.assertTrue(lines[0].startswith("refused: cuda:0 has %d bytes in use" % (30 * GIB)), lines)
        self.assertEqual(lines[1], "done")
        self.assertTrue(all(line.startswith(("refused", "failed")) for line in lines[2:5]), lines)
        self.assertEqual(lines[5], "held")

    def test_a_trim_waits_for_the_end_of_a_graph_capture(self):
        out = self.python("""
            import torch
            torch.cuda.grow(1 << 30, cached=1 << 30); rounds()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            command("t trim")
            wait(lambda: "t" in told()["commands"])
            print(told()["commands"]["t"], told()["capturing"])
            rounds(3)
            graph.capture_end()
            wait(lambda: told()["commands"]["t"].startswith("done"))
            print(torch.cuda.calls)
        """)
        self.assertEqual(out, "waiting: a CUDA graph is being captured True\n['empty_cache']")

    def test_a_checkpoint_is_asked_by_file_function_and_signal(self):
        out = self.python("""
            import torch, signal, gpumem_hook
            heard = []
            signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
            torch.cuda.grow(1); rounds()
            command("c-1 checkpoint")
            wait(lambda: heard)
            with open(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "checkpoint-now")) as file: print(file.read().strip())
            print(gpumem_hook.checkpoint_requested())
        """, GPUMEM_HOOK_CHECKPOINT_SIGNAL="SIGUSR1")
        self.assertEqual(out, "c-1\nc-1")

    def test_a_signal_that_the_program_does_not_handle_is_never_sent(self):
        out = self.python("""
            import torch
            torch.cuda.grow(1); rounds()
            command("c checkpoint")
            wait(lambda: "c" in told()["commands"])
            print(told()["commands"]["c"])
        """, GPUMEM_HOOK_CHECKPOINT_SIGNAL="SIGTERM")
        self.assertEqual(out, "asked")

    def test_a_request_from_the_pods_annotation_is_obeyed_and_withdrawn(self):
        delivered = os.path.join(self.scratch, "delivered")
        subprocess.run(["cp", "-r", HOOK, delivered], check=True)
        out = self.python("""
            import torch, gpumem_hook
            torch.cuda.grow(1); rounds()
            request = os.path.join(os.path.dirname(os.path.dirname(gpumem_hook.__file__)), "checkpoint-request")
            with open(request, "w") as out: out.write("r-7")
            wait(lambda: gpumem_hook.checkpoint_requested() == "r-7")
            with open(request, "w") as out: out.write("")
            wait(lambda: gpumem_hook.checkpoint_requested() is None)
            print(os.path.exists(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "checkpoint-now")))
        """, PYTHONPATH=os.pathsep.join((delivered, STUBS)))
        self.assertEqual(out, "False")

    def test_nonsense_is_ignored(self):
        out = self.python("""
            import torch
            torch.cuda.grow(1); rounds()
            folder = os.environ["GPUMEM_HOOK_DIR"]
            for text in ("\\0\\0", "trim", "x", "../../etc trim", "x rm -rf /", "a trim\\n" * 4000, "\\ud800".encode("utf-8", "surrogatepass").decode("latin1")):
                command(text); rounds()
            os.unlink(os.path.join(folder, "command")); os.mkfifo(os.path.join(folder, "command")); rounds()
            os.unlink(os.path.join(folder, "command")); os.mkdir(os.path.join(folder, "command")); rounds()
            print(hook().commands.done, torch.cuda.calls)
        """)
        self.assertEqual(out, "{'x': 'refused: no such command'} []")


class ItRemembersOoms(HookTest):
    def test_a_survived_failure_is_seen_and_kept(self):
        out = self.python("""
            import torch
            torch.cuda.grow(60 << 30); rounds()
            try:
                torch.cuda.grow(30 << 30)
            except torch.OutOfMemoryError:
                pass
            rounds()
            print(told()["devices"][0]["ooms"])
            with open(os.path.join(os.environ["GPUMEM_HOOK_DIR"], "%d.oom.json" % os.getpid())) as file: print(file.read())
        """)
        count, event = out.split("\n", 1)
        event = json.loads(event)
        self.assertEqual((count, event["requested"], event["device"]), ("1", 30 * GIB, 0))
        self.assertEqual(event["devices"][0]["allocated"], 60 * GIB)
        self.assertNotIn("gpumem:", self.errors)

    def test_an_uncaught_failure_leaves_a_summary_and_its_own_trace(self):
        self.python("import torch; torch.cuda.grow(60 << 30); rounds(); torch.cuda.grow(30 << 30)", code_after=1)
        self.assertIn("torch.OutOfMemoryError: CUDA out of memory", self.errors)
        self.assertIn("gpumem: out of GPU memory; what the allocator held is in", self.errors)
        name = next(name for name in os.listdir(self.state) if name.endswith(".oom.json"))
        with open(os.path.join(self.state, name)) as file:
            event = json.load(file)
        self.assertEqual(event["summary"], "|  stub's memory summary  |")
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.state, name)).st_mode), 0o600)

    def test_other_errors_and_the_programs_own_excepthook_are_left_alone(self):
        self.python("""
            import torch
            sys.excepthook = lambda *_: print("own")
            torch.cuda.grow(1); rounds()
            raise ValueError("out of memory of another kind")
        """, code_after=1)
        self.assertEqual([name for name in os.listdir(self.state) if "oom" in name], [])


if __name__ == "__main__":
    unittest.main()
