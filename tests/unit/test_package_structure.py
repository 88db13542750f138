"""The shape of the code: which package may import which, no import cycles, every class name defined once.

Read from the source, so that imports inside functions and under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rank_runtime", "netmodel", "maya", "coordinator")
SHARED = "maya.util"  # helpers for all packages: below netmodel, unlike the rest of maya

MAY_IMPORT = {
    "rank_runtime": set[str](),
    SHARED: set[str](),
    "netmodel": {SHARED},
    "maya": {SHARED, "netmodel", "rank_runtime"},
    "coordinator": {SHARED, "netmodel", "rank_runtime", "maya"},
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield module, ast.parse(path.read_text(encoding="utf-8"))


MODULES = dict(sources())


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and node.module
            and node.module.split(".")[0] in PACKAGES
        ):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def layer(module: str) -> str:
    return SHARED if f"{module}.".startswith(f"{SHARED}.") else module.split(".")[0]


def package(module: str) -> str:
    """The second level: maya.replay, coordinator.hangs; a module beside these packages stands for itself."""
    return ".".join(module.split(".")[:2])


def test_imports_are_absolute() -> None:
    relative = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    }
    assert not relative


def test_packages_import_in_one_direction() -> None:
    wrong = {
        f"{module} imports {imported}"
        for module, tree in MODULES.items()
        for imported in imports_of(tree)
        if layer(imported) != layer(module) and layer(imported) not in MAY_IMPORT[layer(module)]
    }
    assert not wrong


def test_nothing_imports_the_commands() -> None:
    wrong = {
        f"{module} imports {imported}"
        for module, tree in MODULES.items()
        for imported in imports_of(tree)
        if package(imported) == "maya.cli" != package(module)
    }
    assert not wrong


@pytest.mark.parametrize("level", [1, 2, 9], ids=["folders but maya.util", "packages", "modules"])
def test_no_import_cycles(level: int) -> None:
    def node(module: str) -> str:
        if level == 1:
            return layer(module)
        return module if level == 9 else package(module)

    edges: dict[str, set[str]] = defaultdict(set)
    for module, tree in MODULES.items():
        for imported in imports_of(tree):
            # A package's __init__ re-exports from its modules, which import each other by their own names.
            if node(imported) != node(module) and imported != module.rpartition(".")[0]:
                edges[node(module)].add(node(imported))
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for imported in sorted(edges[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in sorted(edges):
        visit(name, ())


def test_every_class_name_is_defined_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_module_names_are_unique_within_a_folder() -> None:
    """A search by name ends at one file. Exceptions: a command is called as the package behind it, and the main module
    of a package may have the package's name."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in MODULES:
        if module in PACKAGES:
            continue
        folder, *parents, name = module.split(".")
        if name != "__main__" and name != [folder, *parents][-1] and package(module) != "maya.cli":
            places[folder, name].append(module)
    assert {key: modules for key, modules in places.items() if len(modules) > 1} == {}
