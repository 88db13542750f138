"""Read Inductor's generated sources of Triton kernels: sizes, operands, reads and writes.

In: the folder of Inductor's cache (TORCHINDUCTOR_CACHE_DIR of the run). Out: `KernelMetadata` of a launch. The debug
information of a compiled kernel names its source, and so does its launch. A kernel name is ambiguous:
triton_poi_fused_add_0 may occur in several compiled graphs, triton_mm in dozens of variants that Inductor tries. If a
launch does not name its source, `InductorSources.of` chooses the source with the kernel's name whose sizes fit the
grid.

The cache is shared with other jobs and grows while a job runs, so the sources used by a run are copied to a folder of
the run, and `launches.json` in it maps launches to sources. A replay uses that map.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.templates import Template, bytes_behind, parse_template, pointers_among
from maya.estimators.features.tensors import itemsize
from maya.util.files import write_atomically

_SIZES = re.compile(r"^\s+(x|y|z|r\d_)numel = (\d+)\s*$", re.MULTILINE)
_HINTS = re.compile(r"size_hints=\{([^}]*)\}")
_HINT = re.compile(r"'(x|y|z|r\d_)': (\d+)")
_SIGNATURE = re.compile(r"'signature': \{([^}]*)\}")
_PARAMETER = re.compile(r"'(\w+)': '([^']+)'")
_ACCESS = re.compile(r"tl\.(load|store|atomic_add)\((\w+) \+ \(?(.*)$", re.MULTILINE)
_VARIABLE = re.compile(r"^\s+([xyzr]\d\w*) = (.*)$", re.MULTILINE)
_NAMES = re.compile(r"\b([xyzr]\d\w*|tmp\d+)\b")
_KERNEL = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
_DECISIONS = "launches.json"


@dataclass(frozen=True)
class KernelMetadata:
    """One generated kernel."""

    sizes: dict[str, int]  # of its axes: {"x": 8192, "r0_": 768}
    parameters: dict[str, str]  # type by argument, in order: "*bf16", "i32"
    accesses: tuple[tuple[str, str, float], ...]  # (load or store, argument, elements)
    template: Template | None = None  # its template, if it is not a loop over its axes
    dynamic: bool = False  # sizes are arguments; `sizes` are those at compile time, rounded up

    @property
    def pointers(self) -> dict[str, str]:
        """Dtype by argument, of pointer arguments."""
        return pointers_among(self.parameters)

    def bytes_behind(self, launch: KernelLaunch) -> dict[str, int]:
        """Bytes of the tensor behind each pointer argument of a launch, where the launch has them."""
        return bytes_behind(self.parameters, launch)

    @property
    def elements(self) -> float:
        return float(math.prod(self.sizes.values()))

    @property
    def columns(self) -> float:
        return float(math.prod(size for axis, size in self.sizes.items() if axis.startswith("r")))

    @property
    def dtype(self) -> str:
        floating = [dtype for dtype in self.pointers.values() if dtype.startswith(("fp", "bf"))]
        return min(floating, key=itemsize) if floating else "int32"

    def traffic(self) -> tuple[float, float]:
        """(bytes read, bytes written), each argument once, at its largest access."""
        read: dict[str, float] = {}
        written: dict[str, float] = {}
        for way, pointer, elements in self.accesses:
            side = read if way == "load" else written
            moved = elements * itemsize(self.pointers.get(pointer, "fp32"))
            side[pointer] = max(side.get(pointer, 0.0), moved)
        return sum(read.values()), sum(written.values())


class InductorSources:
    """The kernels in a folder of generated sources, which may still grow."""

    def __init__(self, folder: str | Path, *, keep: Path | None = None) -> None:
        """`keep`: a folder for copies of the sources in use, with a map from launches to sources. If it cannot be
        written, no more are kept, and a replay uses the bytes behind the pointers of the missing ones."""
        self._folder = Path(folder)
        self._keep = keep
        self._kernels: dict[str, list[tuple[str, KernelMetadata]]] = {}  # name -> files and their metadata
        self._read: set[Path] = set()
        self._decided: dict[str, str | None] = _decisions(self._folder)  # launch -> file
        self._found: dict[str, KernelMetadata | None] = {}  # by launch

    def of(self, launch: KernelLaunch) -> KernelMetadata | None:
        """The metadata of a launched kernel; None if its source is missing."""
        by_grid = f"{launch.function} {launch.blocks}"
        key = f"{launch.source} {by_grid} {bool(launch.pointers)}"
        if key not in self._found:
            named = self._named(launch.source) if launch.source else None
            if named is not None and named.dynamic and not launch.pointers and not _fits(named, launch):
                named = None
            self._found[key] = named or self._find(by_grid, launch)
        return self._found[key]

    def _named(self, source: str) -> KernelMetadata | None:
        """The kernel in the file of that name. Inductor puts files into folders by the first letters of their hash."""
        name = f"{source[1:3]}/{source}"
        try:
            text = _text(self._folder / name)
        except OSError:
            return None
        self._copy(name)
        return parse(text)

    def _find(self, key: str, launch: KernelLaunch) -> KernelMetadata | None:
        if key in self._decided:
            name = self._decided[key]
            return None if name is None else parse(_text(self._folder / name))
        self._look_for_new()
        candidates = sorted(self._kernels.get(launch.function, []), key=lambda candidate: candidate[0])
        name, found = next((each for each in candidates if _fits(each[1], launch)), (None, None))
        self._decided[key] = name
        self._copy(name)
        return found

    def _look_for_new(self) -> None:
        for path in set(self._folder.glob("??/*.py")) - self._read:
            self._read.add(path)
            text = _text(path)
            names = _KERNEL.findall(text)
            if len(names) == 1 and "inductor_meta" in text:  # a single kernel, not the module that calls it
                name = str(path.relative_to(self._folder))
                self._kernels.setdefault(names[0], []).append((name, parse(text)))

    def _copy(self, name: str | None) -> None:
        keep = self._keep
        if keep is None:
            return
        try:
            keep.mkdir(parents=True, exist_ok=True)
            if name is not None:
                (keep / name).parent.mkdir(exist_ok=True)
                write_atomically(keep / name, _text(self._folder / name))
            write_atomically(keep / _DECISIONS, json.dumps(self._decided, indent=1, sort_keys=True) + "\n")
        except OSError:
            self._keep = None


def _decisions(folder: Path) -> dict[str, str | None]:
    try:
        found = json.loads(_text(folder / _DECISIONS))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _fits(metadata: KernelMetadata, launch: KernelLaunch) -> bool:
    outer = math.prod(size for axis, size in metadata.sizes.items() if not axis.startswith("r"))
    per_block = outer / launch.blocks
    # Blocks are powers of two, and only the last block of an axis may be partial.
    fitting = 2.0 ** math.ceil(math.log2(max(per_block, 1.0)) - 1e-9)
    return launch.blocks <= outer and per_block > fitting * 0.5 and per_block <= 16384


def parse(source: str) -> KernelMetadata:
    """One generated file with one kernel."""
    hints = _HINTS.search(source)
    sizes = {axis: int(size) for axis, size in _HINT.findall(hints[1])} if hints else {}
    exact = {axis: int(size) for axis, size in _SIZES.findall(source)}
    dynamic = not sizes.keys() <= exact.keys()
    sizes |= exact
    signature = _SIGNATURE.search(source)
    parameters = dict(_PARAMETER.findall(signature[1])) if signature else {}
    pointers = pointers_among(parameters)
    variables = {name: _extent(text, sizes) for name, text in _VARIABLE.findall(source)}
    everything = float(math.prod(sizes.values()))
    accesses = []
    for way, pointer, index in _ACCESS.findall(source):
        if pointer in pointers:
            names = set(_NAMES.findall(index.split(", ")[0].split("),")[0]))
            indirect = any(name.startswith("tmp") for name in names)
            extent = math.prod(variables.get(name, 1.0) for name in sorted(names) if not name.startswith("tmp"))
            accesses.append((way, pointer, everything if indirect else min(float(extent), everything)))
    return KernelMetadata(sizes, parameters, tuple(accesses), parse_template(source, parameters), dynamic)


_MODULO = re.compile(r"% (\d+)\)*$")
_QUOTIENT = re.compile(r"// (\d+)\)*$")


def _extent(definition: str, sizes: dict[str, int]) -> float:
    """The number of values of an index variable: x0 = (xindex % 768) has 768."""
    axis = next((axis for axis in sizes if f"{axis}index" in definition), None)
    if axis is None:
        return 1.0
    size = float(sizes[axis])
    if match := _MODULO.search(definition.strip()):
        return min(size, float(match[1]))
    if match := _QUOTIENT.search(definition.strip()):
        return math.ceil(size / int(match[1]))
    return size
