"""Kernel names for people: `_ZN2at6native…` -> `at::native::…`, with binutils' c++filt where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

_IDENTIFIER = re.compile(r"\d+")
_ANONYMOUS = "_GLOBAL__N_"


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Readable forms of the names, without return type and parameters; names that are not mangled stay as they are."""
    distinct = sorted(set(names))
    mangled = [name for name in distinct if name.startswith("_Z")]
    readable = _filtered(mangled) or [_qualified_name(name) for name in mangled]
    return dict(zip(distinct, distinct, strict=True)) | dict(zip(mangled, readable, strict=True))


def _filtered(mangled: list[str]) -> list[str]:
    """What c++filt makes of them; empty if it is not there or does not answer line by line."""
    program = shutil.which("c++filt")
    if not program or not mangled:
        return []
    answer = subprocess.run([program, "-p"], input="\n".join(mangled), capture_output=True, text=True, check=False)
    lines = answer.stdout.splitlines()
    return [_without_return_type(line) for line in lines] if len(lines) == len(mangled) else []


def _without_return_type(declaration: str) -> str:
    """A name may itself contain blanks, but only within brackets."""
    depth = 0
    start = 0
    for i, character in enumerate(declaration):
        if character in "<([{":
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif character == " " and depth == 0:
            start = i + 1
    return declaration[start:]


def _qualified_name(mangled: str) -> str:
    """The namespaces and the name in a mangled name, template arguments left out."""
    rest = mangled.removeprefix("_Z").removeprefix("N").lstrip("KL")
    parts = []
    while match := _IDENTIFIER.match(rest):
        end = match.end() + int(match[0])
        part = rest[match.end() : end]
        parts.append("(anonymous namespace)" if part.startswith(_ANONYMOUS) else part)
        rest = rest[end:]
    if not parts:
        return mangled
    return "::".join(parts) + ("<…>" if rest.startswith("I") else "")
