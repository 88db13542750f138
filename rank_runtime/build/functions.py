"""The public functions of NVIDIA's libraries, by name: what a program or a compiled package may link or look up.

In: `functions/<stem>.txt`, one line for each function. Out: `PublicFunction`s, and which of them a CUDA release has.

    cudaMemPrefetchAsync
    cudaMemPrefetchAsync_v2 12.2-12.9
    cudaGetErrorName text

A line has a name, what the function returns unless that is its library's status, and the CUDA releases that have it
unless all from 12.0 on do. The names are those of NVIDIA's public documentation and of the import tables of packages
on PyPI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "functions"
KINDS = ("void", "pointer", "text", "size", "number", "negative", "float", "double", "complex", "doublecomplex")

_RELEASES = re.compile(r"(?:(\d+)\.(\d+))?-(?:(\d+)\.(\d+))?")
_FIRST, _LAST = (0, 0), (99, 0)


@dataclass(frozen=True)
class PublicFunction:
    """One function that NVIDIA documents."""

    name: str
    kind: str = ""  # one of KINDS; empty: it returns its library's status
    since: tuple[int, int] = _FIRST  # the first release that has it, as far as the releases from 12.0 on tell
    until: tuple[int, int] = _LAST  # the last one


def parse_line(line: str) -> PublicFunction:
    """One line of a file."""
    name, *words = line.split()
    kind, since, until = "", _FIRST, _LAST
    for word in words:
        releases = _RELEASES.fullmatch(word)
        if releases:
            since = (int(releases[1]), int(releases[2])) if releases[1] else _FIRST
            until = (int(releases[3]), int(releases[4])) if releases[3] else _LAST
        elif word in KINDS:
            kind = word
        else:
            raise ValueError(
                f"{word!r} after {name} is neither a kind ({', '.join(KINDS)}) nor releases such as 12.2-12.9"
            )
    return PublicFunction(name, kind, since, until)


@cache
def public_functions(stem: str) -> dict[str, PublicFunction]:
    """The functions of a library by name; none for a library without a file."""
    path = FOLDER / f"{stem}.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {function.name: function for function in map(parse_line, lines)}


def functions_of_release(stem: str, release: tuple[int, int], *, of_major: bool) -> frozenset[str]:
    """Names that the library exports in a CUDA release; `of_major`: in any release of the same major version.

    A package may be built for a later release of the same major version than torch: it loads, and a call of a newer
    function says so. What is looked up by name in the driver has to be absent there, because programs ask for it.
    """
    first, last = ((release[0], 99), (release[0], 0)) if of_major else (release, release)
    return frozenset(
        item.name for item in public_functions(stem).values() if item.since <= first and item.until >= last
    )


def driver_versions_header() -> str:
    """`driver_versions.h`: the driver's functions that came with CUDA 12.0 or later, each with its version."""
    entries = [
        f"X({item.name}, {1000 * item.since[0] + 10 * item.since[1]})"
        for item in public_functions("cuda").values()
        if item.since > _FIRST
    ]
    macro = " \\\n    ".join(["#define MAYA_DRIVER_VERSIONS(X)", *entries])
    return f"/* Generated from functions/cuda.txt by rank_runtime/build/functions.py. */\n#pragma once\n\n{macro}\n"
