"""Which modules the zygote may import for all ranks: imports and assignments of a source, immortal objects."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from types import ModuleType

from rank_runtime.zygote.import_probe import ModuleRecord, records_of
from rank_runtime.zygote.import_replay import ListEdit, list_edits
from rank_runtime.zygote.repeated_statements import repeated_statements
from rank_runtime.zygote.script_source import Assignment, assignments_before, imported_modules, parse
from rank_runtime.zygote.shared_modules import shareable

# ---- what is read from source ----


IMMORTAL = """
    import collections, json, sys
    from rank_runtime.zygote.immortal_objects import make_objects_immortal

    class Noisy:
        def __del__(self):
            print("deleted", self.name)

    before = Noisy()
    before.name = "before"
    make_objects_immortal()
    print(sys.getrefcount(json.dumps) > 1 << 29, sys.getrefcount(collections.OrderedDict.__mro__) > 1 << 29)
    after = Noisy()
    after.name = "after"
    print(sys.getrefcount(after), json.loads(json.dumps([1, "two"])), len("x" * 10_000))
"""


def test_objects_become_immortal() -> None:
    """Python goes on as before, and its end deletes what was made since."""
    command = [sys.executable, "-c", textwrap.dedent(IMMORTAL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    can = sys.version_info >= (3, 12)
    deleted = ["deleted after"] if can else ["deleted before", "deleted after"]
    assert done.stdout.splitlines() == [f"{can} {can}", "2 [1, 'two'] 10000", *deleted]


def test_imports_are_found_in_a_source() -> None:
    text = """
        import a.b, c as d
        from e import f, g as h
        from . import sibling
        from ..up import thing
        try:
            import fast as impl
        except ImportError:
            import slow as impl
        if TYPE_CHECKING:
            import types_only
        else:
            import really
        def function():
            import hidden
        from star import *
    """
    tree = parse(textwrap.dedent(text))
    assert tree is not None
    names = [
        "a.b",
        "c",
        "e",
        "e.f",
        "e.g",
        "p.q",
        "p.q.sibling",
        "p.up",
        "p.up.thing",
        "fast",
        "slow",
        "really",
        "star",
    ]
    assert imported_modules(tree, "p.q") == names
    assert parse("if:") is None


def test_assignments_are_found_in_a_source() -> None:
    text = """
        import os
        os.environ["A"] = "1"
        os.environ["B"] = str(2)
        if True:
            os.environ["C"] = "3"
        os.environ.setdefault("D", "4")
        os.environ.update({"E": "5"}, F="6", **more)
        def function():
            os.environ["G"] = "7"
        import torch
        os.environ["H"] = "8"
    """
    tree = parse(textwrap.dedent(text))
    assert tree is not None
    found = [("A", "1"), ("B", None), ("C", None), ("D", None), ("F", "6"), (None, None), ("E", "5")]
    assert assignments_before(tree, frozenset({"torch"})) == [Assignment(*each) for each in found]
    assert Assignment("H", "8") in assignments_before(tree, frozenset())


def test_a_module_whose_import_did_not_end_is_not_shared() -> None:
    """Nor what belongs to it: the probe was given up in the middle of the package."""
    whole = {"name": "package.part", "origin": "part.py", "imports": ["package"]}
    lines = ["package", "missing", None, "package.part", whole, "package.slow"]
    shared, reasons = shareable(records_of(json.dumps(line).encode() for line in lines))
    assert shared == []
    assert reasons == {
        "package": "took too long to import",
        "package.part": "imports package",
        "package.slow": "took too long to import",
    }


def test_a_module_that_imports_an_unshared_one_is_not_shared() -> None:
    records = [
        ModuleRecord("leaf", "leaf.py"),
        ModuleRecord("bad", "bad.py", effects=["prints"]),
        ModuleRecord("middle", "middle.py", imports=["leaf", "bad"]),
        ModuleRecord("top", "top.py", imports=["middle"]),
        ModuleRecord("fine", "fine.py", imports=["leaf"]),
    ]
    shared, reasons = shareable(records)
    assert [record.name for record in shared] == ["leaf", "fine"]
    assert reasons == {"bad": "prints", "middle": "imports bad", "top": "imports middle"}


# ---- side effects that ranks repeat ----


def test_an_edit_of_a_list_is_found() -> None:
    assert list_edits(["a", "b"], ["new", "a", "b", "end"]) == ListEdit((), ("new",), ("end",))
    assert list_edits(["a", "b", "c"], ["b", "a", "c"]) == ListEdit(("b",), ("b",), ())  # moved to the front
    assert list_edits(["a", "b"], ["b"]) == ListEdit(("a",), (), ())
    assert list_edits(["a", "b"], ["a", "between", "b"]) is None
    assert list_edits(["a", "b"], ["a", "b", "b"]) == ListEdit((), (), ("b",))
    entries = ["mine", "a", "b"]
    edit = list_edits(["a", "b"], ["new", "a"])
    assert edit is not None
    assert edit.is_possible(entries)
    edit.apply(entries)
    assert entries == ["new", "mine", "a"]
    assert not edit.is_possible(entries)


def repeated(source: str, line: int) -> tuple[tuple[int, ...], set[str]] | None:
    module = ModuleType("example")
    text = textwrap.dedent(source).strip()
    exec(text, vars(module))
    found = repeated_statements(text.encode(), module, [line])
    return None if found is None else (found.lines, set(found.variables))


def test_assignments_that_keep_a_value_of_the_process_are_found() -> None:
    source = """
        import os, time
        from uuid import uuid4
        STARTED = time.time()
        SESSION: str = f"{uuid4().hex}"
        TEXT = "began " + time.strftime("%H", time.gmtime(int(STARTED)))
        OTHER = os.path.join("a", "b")
        def function():
            return STARTED, SESSION
    """
    assert repeated(source, 3) == ((3, 5), {"STARTED", "TEXT"})
    assert repeated(source, 4) == ((4,), {"SESSION"})


def test_assignments_whose_values_go_elsewhere_are_not_repeated() -> None:
    beginning = "import time\nclass Kept: pass\nITEMS = []\ndef keep(value): ITEMS.append(value)\n"
    for rest in (
        "STARTED = keep(time.time())",
        "STARTED = time.time()\nkeep(STARTED)",
        "STARTED = time.time()\nif STARTED > 3: LATE = True",
        "STARTED = time.time()\nKept.began = STARTED",
        "STARTED = time.time()\ndef function(began=STARTED): pass",
        "STARTED = time.time()\nclass User:\n    began = STARTED",
        "STARTED = time.time()\nSTARTED += 1",
        "STARTED = time.time()\ndel STARTED",
        "STARTED = Kept.began = time.time()",
        "STARTED = time.sleep(0)",
    ):
        assert repeated(beginning + rest, 5) is None, rest


def test_a_module_that_reads_what_an_unshared_one_sets_is_not_shared() -> None:
    records = [
        ModuleRecord("reader", "reader.py", environment=[(2, "read", "A", "1")]),
        ModuleRecord("earlier", "earlier.py", environment=[(0, "read", "A", None)]),
        ModuleRecord("setter", "setter.py", imports=["reader"], effects=["prints"], environment=[(1, "set", "A", "1")]),
    ]
    shared, reasons = shareable(records)
    assert [record.name for record in shared] == ["earlier"]
    assert reasons["reader"] == "reads A, which setter sets"
