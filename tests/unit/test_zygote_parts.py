"""Which modules the zygote may import for all ranks: imports and assignments of a source, immortal objects."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

from rank_runtime.zygote.import_probe import ModuleRecord, records_of
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
