"""Ranks are forked from a process that has imported torch, and a script must not notice.

The measure is Python itself: what a script finds when it is started as `python -u script.py`, it finds in a rank.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rank_runtime.build import Build
from rank_runtime.build.cache import cache_folder

STATE = """
    import gc, inspect, json, os, pathlib, signal, sys, threading
    import __main__

    print(json.dumps({
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "command_line": pathlib.Path("/proc/self/cmdline").read_text(),
        "name": pathlib.Path("/proc/self/comm").read_text(),
        "path": sys.path,
        "executable": sys.executable,
        "flags": list(sys.flags),
        "main": {n: repr(v).split(" at 0x")[0] for n, v in vars(__main__).items() if n != "__builtins__"},
        "main_is_imported": __main__ is sys.modules["__main__"] and __main__.__dict__ is globals(),
        "builtins": repr(__builtins__),
        "frames": len(inspect.stack()),
        "folder": os.getcwd(),
        "umask": os.umask(0o22),
        "streams": [
            [s.name, s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__, s.fileno()]
            for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
        "signals": [str(signal.getsignal(number)).split(" at 0x")[0] for number in sorted(signal.valid_signals())],
        "blocked": [str(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "threads": [thread.name for thread in threading.enumerate()],
        "main_thread": threading.current_thread() is threading.main_thread(),
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.garbage],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode],
        "ours": [name for name in sys.modules if name.split(".")[0] in (
            "maya", "coordinator", "netmodel", "rank_runtime", "sitecustomize")],
    }))
"""


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")


@dataclass(frozen=True)
class Ended:
    """A finished maya-torchrun."""

    exit_code: int
    errors: str
    outputs: list[str]  # of the ranks


def launch(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Each rank's output goes to a file of its own: what they write to one place is mixed within lines."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    ended = subprocess.run(
        [sys.executable, "-m", "maya.launcher", "--out", str(folder / "run"), "--no-trace", "--redirects", "1", *words],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    files = sorted(folder.glob("run/logs/*/attempt_0/*/stdout.log"), key=lambda file: int(file.parent.name))
    return Ended(ended.returncode, ended.stderr, [file.read_text() for file in files])


def unshared(folder: Path) -> dict[str, str]:
    """Modules that every rank imported itself, and why."""
    content: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    modules: dict[str, str] = content["emulation"]["unshared_modules"]
    return modules


# ---- what a script finds ----


def test_a_script_finds_the_state_that_python_gives_it(tmp_path: Path, build: Build) -> None:
    write(tmp_path, {"train.py": STATE})
    words = [str(tmp_path / "train.py"), "--fast", "a b"]
    direct = subprocess.run([sys.executable, "-u", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    expected = json.loads(direct.stdout)
    for ranks in ("1", "2"):
        ended = launch(tmp_path, "--nproc", ranks, *words)
        assert ended.exit_code == 0, ended.errors
        assert len(ended.outputs) == int(ranks)
        for state in map(json.loads, ended.outputs):
            assert {name: value for name, value in state.items() if value != expected[name]} == {}


def test_a_module_is_run_as_python_runs_it(tmp_path: Path, build: Build) -> None:
    files = {"package/__init__.py": "print('package', __name__)\n", "package/part.py": "VALUE = 7\n"}
    write(tmp_path, {**files, "package/train.py": STATE + "\n    from .part import VALUE\n    print(VALUE)\n"})
    words = ["-m", "package.train", "-m", "x"]
    direct = subprocess.run([sys.executable, "-u", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    ended = launch(tmp_path, "--nproc", "2", *words)
    assert ended.exit_code == 0, ended.errors
    package, state, value = direct.stdout.splitlines()
    for output in ended.outputs:
        lines = output.splitlines()
        assert (lines[0], lines[2]) == (package, value)
        expected = json.loads(state)
        assert {name: v for name, v in json.loads(lines[1]).items() if v != expected[name]} == {}


ENDINGS = {
    "end": "print('done')",
    "exit": "import sys; sys.exit(3)",
    "exit_without_code": "import sys; sys.exit()",
    "exit_with_a_message": "import sys; sys.exit('wrong arguments')",
    "system_exit": "raise SystemExit(-1)",
    "system_exit_of_a_script_without_a_file": "del __file__\nraise SystemExit(5)",
    "error": "def inner():\n    raise ValueError('bad')\n\ninner()",
    "chained_error": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "syntax_error": "if:\n",
    "interrupt": "raise KeyboardInterrupt",
    "own_hook": "import sys; sys.excepthook = lambda *_: print('hooked', _[0].__name__)\nraise OSError",
    "os_exit": "import os; print('bye'); os._exit(9)",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "atexit": "import atexit\nfor n in range(3): atexit.register(print, 'at exit', n)\nraise SystemExit(4)",
    "destructor": "class Thing:\n    def __del__(self): print('gone', self.name)\nthing = Thing(); thing.name = 'a'\n"
    "cycle = Thing(); cycle.name = 'b'; cycle.me = cycle",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('thread done'))).start()\nprint('main done')",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "error_in_thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='worker').start()",
    "c_output": "import ctypes; ctypes.CDLL(None).printf(b'from C\\n')",
    "buffered": "import sys; sys.stdout = open(1, 'w', closefd=False); print('kept')",
    "closed_stdout": "import sys; sys.stdout.close()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_it_does_in_python(tmp_path: Path, build: Build, ending: str) -> None:
    write(tmp_path, {"train.py": ENDINGS[ending]})
    words = [sys.executable, "-u", "train.py"]
    direct = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    ended = launch(tmp_path, "--redirects", "3", "train.py")
    [errors] = tmp_path.glob("run/logs/*/attempt_0/0/stderr.log")
    [rank] = json.loads((tmp_path / "run" / "summary.json").read_text())["ranks"]
    assert (rank["exit_code"], ended.outputs) == (direct.returncode, [direct.stdout])
    assert errors.read_text() == direct.stderr
    assert ended.exit_code == (0 if direct.returncode == 0 else 1)


def test_ranks_that_share_torch_run_their_exit_handlers(tmp_path: Path, build: Build) -> None:
    text = """
        import atexit, os, threading, time, weakref
        import torch

        class Thing:
            def __init__(self):
                self.tensor = torch.ones(3)
            def __del__(self):
                print(f"gone {os.environ['RANK']} {self.tensor.sum().item():g}")

        thing = Thing()
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread done"))).start()
        atexit.register(lambda: print(f"end {os.environ['RANK']} {torch.zeros(2).tolist()}"))
        weakref.finalize(thing, print, "finalized")
        raise SystemExit(0)
    """
    write(tmp_path, {"train.py": text})
    ended = launch(tmp_path, "--nproc", "3", "train.py")
    assert ended.exit_code == 0, ended.errors
    lines = ["thread done", "end {} [0.0, 0.0]", "finalized", "gone {} 3", ""]
    assert ended.outputs == ["\n".join(lines).format(rank, rank) for rank in range(3)]


def test_ranks_may_wait_for_each_other_in_exit_handlers(tmp_path: Path, build: Build) -> None:
    """Only a few end at a time, unless they cannot do so one after the other."""
    text = """
        import os, pathlib, time

        class Thing:
            def __del__(self):
                self.touch()
                while len(self.list()) < 10:
                    self.sleep(0.01)

        thing = Thing()
        thing.touch = pathlib.Path("here" + os.environ["RANK"]).touch
        thing.list = lambda path=pathlib.Path(): [*path.glob("here*")]
        thing.sleep = time.sleep
    """
    write(tmp_path, {"train.py": text})
    ended = launch(tmp_path, "--nproc", "10", "--nproc-per-node", "10", "train.py")
    assert ended.exit_code == 0, ended.errors


def test_modules_of_the_user_win(tmp_path: Path, build: Build) -> None:
    names = ("maya", "coordinator", "netmodel", "rank_runtime", "tests", "scripts", "utils")
    write(tmp_path, {f"mine/{name}.py": f"NAME = 'my {name}'" for name in names})
    write(tmp_path, {"custom/sitecustomize.py": "import builtins, os\nbuiltins.RANK = os.environ.get('RANK')\n"})
    imports = "".join(f"import {name}; print({name}.NAME)\n" for name in names)
    write(tmp_path, {"mine/train.py": imports + "print(RANK)"})
    path = os.pathsep.join(filter(None, [str(tmp_path / "custom"), os.environ.get("PYTHONPATH")]))
    ended = launch(tmp_path, "--nproc", "2", "mine/train.py", environment={"PYTHONPATH": path})
    mine = "".join(f"my {name}\n" for name in names)
    assert (ended.exit_code, ended.outputs) == (0, [f"{mine}0\n", f"{mine}1\n"]), ended.errors


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_module_may_replace_one_that_is_already_imported(tmp_path: Path, build: Build, ranks: str) -> None:
    write(tmp_path, {"mine/json.py": "NAME = 'mine'", "mine/train.py": "import json; print(json.NAME)"})
    ended = launch(tmp_path, "--nproc", ranks, "mine/train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["mine\n"] * int(ranks)), ended.errors
    assert f"{tmp_path / 'mine' / 'json.py'} takes the place of the module json" in ended.errors


# ---- modules of the script's own ----

MODULES = {
    "plain.py": "import os\nVALUE = [1, 2]\nprocess = lambda: os.getpid()",
    "package/__init__.py": "from . import deep",
    "package/deep.py": "import plain\nREFERENCE = plain.VALUE",
    "thread.py": "import threading, time\nT = threading.Thread(target=time.sleep, args=(60,), daemon=True)\nT.start()",
    "rank.py": "import os\nRANK = os.environ.get('RANK')",
    "whole_environment.py": "import os\nRANK = dict(os.environ).get('RANK')",
    "above.py": "import plain, rank\nRANK = rank.RANK",
    "must_have_rank.py": "import os\nimport late\nRANK = os.environ['RANK']\nimport after_error",
    "late.py": "",
    "after_error.py": "",
    "gpu.py": "import torch\nAVAILABLE = torch.cuda.is_available()",
    "gpu_properties.py": "import torch\nNAME = torch.cuda.get_device_name()",
    "file.py": "FILE = open(__file__)",
    "writer.py": "import os, pathlib\npathlib.Path(f'made{os.environ[\"RANK\"]}').touch()",
    "printer.py": "print('printed')",
    "arguments.py": "import sys\nWORDS = sys.argv[1:]",
    "clock.py": "import time\nBEGAN = time.time()",
    "process.py": "import os\nPROCESS = os.getpid()",
    "dice.py": "import random\nVALUE = random.random()",
    "numpy_dice.py": "import numpy\nVALUE = numpy.random.rand()",
    "torch_dice.py": "import torch\nVALUE = torch.rand(1)",
    "unique.py": "import uuid\nVALUE = uuid.uuid4().hex",
    "setting.py": "import os\nos.environ['SETTING'] = 'set'",
    "handler.py": "import signal\nsignal.signal(signal.SIGUSR1, print)",
    "child.py": "import subprocess\nOUTPUT = subprocess.run(['echo', 'child'], capture_output=True).stdout",
    "precision.py": "import torch\ntorch.set_default_dtype(torch.float64)",
    "patch.py": "import torch\ntorch.nn.functional.gelu = lambda x: x",
    "operators.py": "import torch\nMINE = torch.library.Library('mine', 'DEF')\nMINE.define('one(Tensor x) -> Tensor')",
    "own_files.py": "import os\nHAS_MAPS = os.path.exists(f'/proc/{os.getpid()}/maps')",
    "careful.py": """
        import subprocess
        import late
        try:
            OUTPUT = subprocess.run(["echo", "careful"], capture_output=True).stdout
        except OSError:
            OUTPUT = b""
        import after_refusal
    """,
    "after_refusal.py": "import os\nRANK = os.environ.get('RANK')",
    "hook.py": "import sys\nsys.excepthook = sys.excepthook\nsys.displayhook = lambda value: None",
    "path.py": "import sys\nsys.path.append('/nowhere')",
}
REASONS = {
    "thread": "starts a thread",
    "rank": "keeps a value of its process",
    "must_have_rank": "reads RANK",
    "gpu_properties": "uses the GPU",
    "file": "opens files",
    "writer": "reads RANK",
    "printer": "prints",
    "arguments": "reads sys.argv",
    "dice": "uses random numbers",
    "numpy_dice": "uses random numbers",
    "torch_dice": "uses random numbers",
    "handler": "handles signals",
    "child": "starts a process",
    "precision": "changes torch's settings",
    "patch": "replaces parts of torch",
    "careful": "starts a process",
    "hook": "replaces standard streams or hooks",
}


def test_modules_with_side_effects_are_imported_by_every_rank(tmp_path: Path, build: Build) -> None:
    names = [name.removesuffix(".py").removesuffix("/__init__") for name in MODULES if "deep" not in name]
    checks = """
        import json, os, pathlib, sys
        me = os.environ["RANK"]
        assert "plain" in sys.modules and package.deep.REFERENCE is plain.VALUE
        assert plain.__spec__.origin == plain.__file__ and type(plain.__loader__).__name__ == "SourceFileLoader"
        assert plain.process() == process.PROCESS == os.getpid()
        assert thread.T.is_alive()
        assert rank.RANK == above.RANK == must_have_rank.RANK == whole_environment.RANK == me
        assert gpu.AVAILABLE and not file.FILE.closed and child.OUTPUT == b"child\\n"
        assert careful.OUTPUT == b"careful\\n" and after_refusal.RANK == me and own_files.HAS_MAPS
        assert pathlib.Path("made" + me).exists()
        assert arguments.WORDS == ["word"]
        assert os.environ["SETTING"] == "set" and sys.path[-1] == "/nowhere"
        import torch
        assert torch.get_default_dtype() is torch.float64 and torch.nn.functional.gelu(3) == 3
        print(json.dumps([dice.VALUE, numpy_dice.VALUE, unique.VALUE, process.PROCESS]))
        print(json.dumps(torch_dice.VALUE.item()))
    """
    write(tmp_path, MODULES)
    script = "\n".join(f"import {name}" for name in names) + textwrap.dedent(checks)
    (tmp_path / "train.py").write_text(script)
    ended = launch(tmp_path, "--nproc", "3", "train.py", "word")
    assert ended.exit_code == 0, ended.errors
    outputs = [output.splitlines() for output in ended.outputs]
    assert [lines[0] for lines in outputs] == ["printed"] * 3
    own = [json.loads(lines[1]) for lines in outputs]
    assert all(len(set(values)) == 3 for values in zip(*own, strict=True))  # each rank has its own
    assert len({lines[2] for lines in outputs}) == 1  # torch's generator begins the same everywhere
    assert unshared(tmp_path) == REASONS
    assert not (tmp_path / "made").exists()


REPEATED = {
    "lists.py": """
        import sys, warnings
        sys.path.insert(0, "front")
        sys.path.append("end")
        warnings.filterwarnings("error", "of lists")
        import vendored_by_lists
    """,
    "front/vendored_by_lists.py": "VALUE = 3",
    "environment.py": """
        import os
        BEFORE = os.environ.get("SETTING")
        os.environ["SETTING"] = "set"
        os.environ.setdefault("OTHER", "default")
        NAMES = [name for name in os.environ if name.startswith("PREFIX_")]
        import after_environment
    """,
    "after_environment.py": "import os\nVALUE = os.environ['SETTING']",
    "process.py": """
        import os
        PROCESS = os.getpid()
        class Kept:
            process = os.getpid()
    """,
    "values.py": """
        import os, time
        from uuid import uuid4
        STARTED: float = time.time()
        SESSION = "session " + uuid4().hex
        RANK = int(os.environ.get("RANK", -1))
        IS_FIRST = RANK == 0
        ORDER = [STARTED, SESSION]
        def session():
            return SESSION
    """,
    "user.py": "import values\nvalue = lambda: values.SESSION",
    "gpu.py": "import torch\nAVAILABLE, COUNT = torch.cuda.is_available(), torch.cuda.device_count()",
    "operators.py": MODULES["operators.py"],
    "failing.py": "try:\n    import bad\nexcept ValueError:\n    bad = None",
    "bad.py": "raise ValueError",
    "train.py": """
        import json, os, sys, warnings
        path = [*sys.path]
        filters = [*warnings.filters]
        assert "SETTING" not in os.environ and "front" not in path
        import lists, environment, process, values, user, gpu, operators, failing
        assert sys.path == ["front", *path, "end"] and lists.vendored_by_lists.VALUE == 3
        assert warnings.filters[0][0] == "error" and list(warnings.filters[1:]) == filters
        assert environment.BEFORE is None and os.environ["SETTING"] == environment.after_environment.VALUE == "set"
        assert os.environ["OTHER"] == "default" and environment.NAMES == []
        assert process.PROCESS == process.Kept.process == os.getpid() and type(process.PROCESS) is int
        rank = int(os.environ["RANK"])
        assert values.RANK == rank and values.IS_FIRST == (rank == 0)
        assert values.ORDER == [values.STARTED, values.SESSION] and user.value() == values.session() == values.SESSION
        import torch
        assert gpu.AVAILABLE and gpu.COUNT == 8 and torch.ones(1, device="cuda").item() == 1
        assert torch.ops.mine.one and failing.bad is None
        finder, = [each for each in sys.meta_path if type(each).__name__ == "SharedModules"]
        names = ("lists", "environment", "after_environment", "process", "values", "user", "gpu", "operators")
        assert [name for name in names if finder.modules[name] is not sys.modules[name]] == []
        print(values.SESSION)
    """,
}


def imports(folder: Path) -> dict[str, int]:
    """Numbers of modules that were probed, known from earlier runs, and shared."""
    content: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    numbers: dict[str, int] = content["emulation"]["imports"]
    return numbers


def cached_findings(folder: Path) -> list[Path]:
    """The files of the cache that belong to scripts in this folder."""
    return [file for file in cache_folder().glob("maya-imports/*.json") if str(folder) in file.read_text()]


def test_ranks_repeat_the_side_effects_of_shared_modules(tmp_path: Path, build: Build) -> None:
    write(tmp_path, REPEATED)
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert ended.exit_code == 0, ended.errors
    assert unshared(tmp_path) == {}
    assert len(set(ended.outputs)) == 2  # each rank has random bytes of its own
    content = json.loads((tmp_path / "run" / "summary.json").read_text())
    private = content["emulation"]["private_bytes_per_rank"]
    assert 1e6 < private["median"] <= private["largest"] < 1e9


def test_a_module_that_finds_another_environment_is_imported_anew(tmp_path: Path, build: Build) -> None:
    script = """
        import os
        os.environ["SETTING"], os.environ["PREFIX_A"] = "first", "a"
        import environment, operators
        assert environment.BEFORE == "first" and environment.NAMES == ["PREFIX_A"]
        assert os.environ["SETTING"] == environment.after_environment.VALUE == "set"
        print("fine")
    """
    files = {name: REPEATED[name] for name in ("environment.py", "after_environment.py", "operators.py")}
    # computed, so that the zygote does not know it
    write(tmp_path, {**files, "train.py": script.replace('"first", "a"', '"fir" + "st", "".join("a")')})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["fine\n"] * 2), ended.errors


def test_a_second_run_does_not_probe_again(tmp_path: Path, build: Build) -> None:
    files = {
        "train.py": "import top\nprint(top.leaf.VALUE)",
        "top.py": "import leaf, printing\ntry:\n    import later\nexcept ImportError:\n    later = None",
        "leaf.py": "VALUE = 'one'",
        "printing.py": "print('printed')",
    }
    write(tmp_path, files)
    for expected in ({"probed": 3, "known": 0, "shared": 1}, {"probed": 0, "known": 3, "shared": 1}):
        ended = launch(tmp_path, "--nproc", "2", "train.py")
        assert (ended.exit_code, ended.outputs) == (0, ["printed\none\n"] * 2), ended.errors
        assert imports(tmp_path) == expected
        assert unshared(tmp_path) == {"printing": "prints"}

    # a changed module, and those that import it; then a module that was missing before
    write(tmp_path, {"leaf.py": "VALUE = 'another'"})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["printed\nanother\n"] * 2), ended.errors
    assert imports(tmp_path) == {"probed": 3, "known": 0, "shared": 1}
    write(tmp_path, {"later.py": ""})
    assert launch(tmp_path, "--nproc", "2", "train.py").exit_code == 0
    assert imports(tmp_path) == {"probed": 3, "known": 1, "shared": 2}  # an unshared module is probed with its importer

    [file] = cached_findings(tmp_path)
    for damage in (file.read_bytes()[:-100], b"[]", b'{"version": 1}'):
        file.write_bytes(damage)
        ended = launch(tmp_path, "--nproc", "2", "train.py")
        assert (ended.exit_code, ended.outputs) == (0, ["printed\nanother\n"] * 2), ended.errors
        assert imports(tmp_path) == {"probed": 4, "known": 0, "shared": 2}
    file.unlink()


def test_a_shared_module_is_imported_once(tmp_path: Path, build: Build) -> None:
    """By the probe and by the zygote, and not by the ranks: these all have the zygote's."""
    text = """
        import os, sys
        assert "once" not in sys.modules and "deeper" not in sys.modules
        import importlib.util
        assert importlib.util.find_spec("once").origin.endswith("once.py") and "once" not in sys.modules
        import once
        assert "deeper" in sys.modules and once.deeper is sys.modules["deeper"]
        print(id(once) == id(sys.modules["once"]), once.__spec__.name, id(once))
        import once_with_variable, folder_that_is_there
        os.environ["VARIABLE"] = input_value = "other"
        import late_variable
        assert late_variable.VALUE == "other", late_variable.VALUE
        sys.path.insert(0, "vendored")
        import twice
        assert twice.WHERE == "vendored"
    """
    files = {
        "train.py": text,
        "once.py": "import deeper\nLIST = []",
        "deeper.py": "",
        "folder_that_is_there.py": "import os\nos.makedirs('vendored', exist_ok=True)",
        "once_with_variable.py": "import os\nVALUE = os.getenv('VARIABLE')",
        "late_variable.py": "import os\nVALUE = os.getenv('VARIABLE')",
        "twice.py": "WHERE = 'here'",
        "vendored/twice.py": "WHERE = 'vendored'",
    }
    write(tmp_path, files)
    ended = launch(tmp_path, "--nproc", "3", "train.py")
    assert ended.exit_code == 0, ended.errors
    assert unshared(tmp_path) == {}
    assert len(set(ended.outputs)) == 1  # the same object, at the same address, in every rank


def test_exit_handlers_of_a_shared_module_run_in_every_rank(tmp_path: Path, build: Build) -> None:
    """It happens in the rank that has imported the module, and there only; and once for every registration."""
    module = """
        import atexit, os
        from atexit import register
        atexit.register(print, "first")
        os.register_at_fork(after_in_child=lambda: None)
        @atexit.register
        def second(): print("second")
    """
    script = """
        import atexit, os
        if os.environ["RANK"] == "0":
            import ending
            assert ending.second.__name__ == "second"
            ending.register(print, "third")
        else:
            atexit.register(print, "own")
    """
    write(tmp_path, {"ending.py": module, "train.py": script})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert ended.exit_code == 0, ended.errors
    assert [output.split() for output in ended.outputs] == [["third", "second", "first"], ["own"]]
    assert unshared(tmp_path) == {}


def test_operators_of_a_reimported_module_can_be_registered_again(tmp_path: Path, build: Build) -> None:
    """torch does not let a program register the same operator twice."""
    script = """
        import os, torch
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        import operators
        print(torch.ops.mine.one)
    """
    write(tmp_path, {"operators.py": MODULES["operators.py"], "train.py": script})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert ended.exit_code == 0, ended.errors
    assert ended.outputs == ["mine.one\n"] * 2


def test_namespace_packages_are_shared(tmp_path: Path, build: Build) -> None:
    """As those of protobuf, whose modules find each other in a table of a library's that exists once."""
    files = {
        "space/first/__init__.py": "import space.deep.second\nVALUE = space.deep.second.VALUE",
        "space/deep/second.py": "VALUE = object()",
        "train.py": """
            import os, sys
            import space.first
            import space.deep.second
            from space.deep import second
            assert space.first.VALUE is space.deep.second.VALUE is second.VALUE
            finder, = [each for each in sys.meta_path if type(each).__name__ == "SharedModules"]
            shared = finder.modules["space.first"] is space.first and finder.modules["space.deep.second"] is second
            print(shared)
        """,
    }
    write(tmp_path, files)
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert ended.exit_code == 0, ended.errors
    assert ended.outputs == ["True\n"] * 2


def test_modules_of_an_unshared_package_are_imported_by_every_rank(tmp_path: Path, build: Build) -> None:
    """Importing any of them would import the package first, also from a folder without __init__.py in between."""
    files = {
        "train.py": "import package.folder.module, torch\nprint(torch.ones(1, device='cuda').item())",
        "package/__init__.py": "import torch\nNAME = torch.cuda.get_device_name()",
        "package/folder/module.py": "",
    }
    write(tmp_path, files)
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["1.0\n"] * 2), ended.errors
    assert unshared(tmp_path) == {"package": "uses the GPU"}


def test_torchs_own_modules_are_imported_once(tmp_path: Path, build: Build) -> None:
    """Also if the script's modules that import them must be imported anew: this one defines operators, and there can be
    only one definition."""
    files = {
        "train.py": "import os\nos.chdir('elsewhere')\nimport operators\nprint('imported')",
        "operators.py": "import torch.ao.quantization.fx._decomposed",
        "elsewhere/nothing": "",
    }
    write(tmp_path, files)
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["imported\n"] * 2), ended.errors


def test_optional_imports_that_fail_do_no_harm(tmp_path: Path, build: Build) -> None:
    files = {
        "train.py": "import user\nprint(user.optional)",
        "user.py": "try:\n    import optional\nexcept ImportError:\n    optional = None",
        "optional.py": "import no_such_module",
    }
    write(tmp_path, files)
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["None\n"] * 2), ended.errors
    assert unshared(tmp_path) == {}


def test_modules_to_preload_can_be_chosen(tmp_path: Path, build: Build) -> None:
    write(tmp_path, {"train.py": "import os, late\nprint(late.VALUE)", "late.py": "import os\nVALUE = os.getenv('A')"})
    ended = launch(tmp_path, "--nproc", "2", "--no-preload", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["None\n"] * 2)
    text = "def main():\n    import printing\n\nmain()"
    write(tmp_path, {"train.py": text, "printing.py": "print('imported')"})
    ended = launch(tmp_path, "--nproc", "2", "--preload", "printing,no_such_module", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["imported\n"] * 2)
    assert unshared(tmp_path) == {"printing": "prints", "no_such_module": "cannot be found"}


def test_variables_set_before_the_import_of_torch_take_effect(tmp_path: Path, build: Build) -> None:
    known = "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())"
    write(tmp_path, {"train.py": known})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["2\n"] * 2), ended.errors
    assert "started as new processes" not in ended.errors
    write(tmp_path, {"train.py": known.replace("'2'", "str(1 + int(os.environ['RANK']))")})
    ended = launch(tmp_path, "--nproc", "2", "train.py")
    assert (ended.exit_code, ended.outputs) == (0, ["1\n", "2\n"]), ended.errors
    assert "train.py sets OMP_NUM_THREADS before it imports torch" in ended.errors


# ---- children of ranks ----


CHILDREN = """
    import json, multiprocessing, os, subprocess, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    def seen(queue):
        queue.put((torch.cuda.device_count(), os.environ["RANK"], torch.ones(2, device="cuda").tolist()))

    class Numbers(Dataset):
        def __len__(self): return 8
        def __getitem__(self, index): return torch.tensor([index, int(os.environ["RANK"])])

    def from_process(method):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=seen, args=(queue,))
        child.start()
        answer = queue.get()
        child.join()
        return [*answer, child.exitcode]

    if __name__ == "__main__":
        values = "torch.cuda.device_count(), os.environ['RANK'], 'MAYA_ZYGOTE' in os.environ"
        program = f"import os, torch; print({values})"
        plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        print(json.dumps({
            "loader": [batch.tolist() for batch in DataLoader(Numbers(), batch_size=4, num_workers=2)],
            **{method: from_process(method) for method in ("spawn", "forkserver", "fork")},
            "plain": plain.stdout,
            "shell": os.popen("echo $RANK").read(),
        }))
"""


@pytest.fixture(scope="module")
def children(build: Build, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """For each of two ranks, the answers of its children."""
    folder = tmp_path_factory.mktemp("children")
    write(folder, {"train.py": CHILDREN})
    ended = launch(folder, "--nproc", "2", "train.py")
    assert ended.exit_code == 0, ended.errors
    return [json.loads(output) for output in ended.outputs]


def test_workers_of_a_data_loader_run(children: list[dict[str, Any]]) -> None:
    for rank, answers in enumerate(children):
        assert answers["loader"] == [[[n, rank] for n in range(first, first + 4)] for first in (0, 4)]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_have_virtual_gpus(children: list[dict[str, Any]], method: str) -> None:
    assert [answers[method] for answers in children] == [[8, str(rank), [1.0, 1.0], 0] for rank in range(2)]


def test_a_plain_python_child_has_virtual_gpus(children: list[dict[str, Any]]) -> None:
    assert [answers["plain"] for answers in children] == [f"8 {rank} False\n" for rank in range(2)]


def test_a_shell_child_has_the_environment_of_its_rank(children: list[dict[str, Any]]) -> None:
    assert [answers["shell"] for answers in children] == [f"{rank}\n" for rank in range(2)]
