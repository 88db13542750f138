"""`KernelLaunch`, the input of every extractor: one kernel launch, library call, copy or memset, as a trace records it.

In: records of a trace (from_trace) or events of a profile (kineto_trace). Out: `KernelLaunch`, hashable by `key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from maya.estimators.features.tensors import Tensor, tensors_in

_IDENTIFIER = re.compile(r"\d+")
_ANONYMOUS = "(anonymous namespace)"


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """A kernel, a library call, a copy or a memset, with the op that it came from."""

    what: str  # "kernel", "library", "copy" or "memset"
    name: str  # the kernel (mangled or not), the library's function, or the direction of the copy
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the library call
    bytes: int = 0  # of the copy or memset
    op: str = ""  # innermost op, "aten::add_"
    inputs: Sequence[Any] = ()  # of the op: Tensor, list, None or scalar
    # The part of the op that this launch covers, if known (rank_runtime/shim/device/launch_part.h).
    elements: int = 0  # number of elements; 0: unknown
    outputs: int = 0  # number of results of a reduction; 0: unknown
    before: int | None = None  # over lists: chunks or tensors of the op's earlier launches; None: unknown
    # Bytes behind each pointer parameter; 0 for other parameters, and if unknown. The last one is a pointer. Only for
    # kernels launched through the driver.
    pointers: tuple[int, ...] = ()
    source: str = ""  # name of the file that a kernel compiled at run time came from
    line: int = 0  # its first line in that file
    tensor_cores: bool = False  # a kernel compiled at run time with matrix instructions

    @cached_property
    def function(self) -> str:
        """The kernel's own name, without namespaces, template arguments and parameters."""
        return function_name(self.name)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the op's inputs, in order, empty ones left out."""
        return tuple(tensor for tensor in tensors_in(self.inputs) if tensor.elements)

    @property
    def op_name(self) -> str:
        """The op without its namespace: "add_"."""
        return self.op.rpartition("::")[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.block[0] * self.block[1] * self.block[2]

    def tensor(self, position: int) -> Tensor | None:
        """The input at a position, if it is a tensor; else None."""
        if position < len(self.inputs) and isinstance(self.inputs[position], Tensor):
            value: Tensor = self.inputs[position]
            return value
        return None


def function_name(kernel: str) -> str:
    """`void at::native::foo<4, float>(int)` and `_ZN2at6native3fooILi4EfEEvi` -> foo."""
    return _from_mangled(kernel) if kernel.startswith("_Z") else _from_readable(kernel)


def _from_mangled(kernel: str) -> str:
    rest = kernel.removeprefix("_Z").removeprefix("N").lstrip("KL")
    if rest.startswith("St"):
        rest = rest[2:]
    name = kernel
    while match := _IDENTIFIER.match(rest):
        end = match.end() + int(match[0])
        name = rest[match.end() : end]
        rest = rest[end:]
        if rest.startswith("I") and (nested := _after_arguments(rest)):
            rest = nested
    return name


def _after_arguments(rest: str) -> str:
    """The text after the template arguments of an enclosing class, if they are simple enough to skip."""
    depth = 0
    at = 0
    while at < len(rest):
        match = _IDENTIFIER.match(rest, at)
        if match:
            at = match.end() + int(match[0])
            continue
        if rest[at] in "INLX":
            depth += 1
            if rest[at] == "L":  # a literal: everything up to its E
                at = rest.find("E", at)
                depth -= 1
        elif rest[at] == "E":
            depth -= 1
            if depth == 0:
                following = rest[at + 1 :]
                return following if _IDENTIFIER.match(following) else ""
        at += 1
    return ""


def _from_readable(kernel: str) -> str:
    """The last identifier before the parameters, outside of all brackets."""
    text = kernel.replace(_ANONYMOUS, "anonymous")
    open_brackets: list[str] = []
    name = ""
    last = ""
    for character in text:
        inside = open_brackets[-1] if open_brackets else ""
        if character in "([{" or (character == "<" and inside != "("):
            if not open_brackets and name:
                last = name
                if character == "(":
                    break
            elif not open_brackets and character == "(" and last:
                break
            open_brackets.append(character)
        elif open_brackets and character == _CLOSING[inside]:
            open_brackets.pop()
        elif not open_brackets:
            if character in " :&*":
                if character == " " and name:
                    last = ""
                name = ""
            else:
                name += character
    return name or last or kernel


_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
