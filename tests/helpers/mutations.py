"""Seeded damage: texts, JSON documents and traces as they should not be.

In: a random generator and the original. Out: a mutant. Tests give readers a thousand of them.
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from helpers.trace_writer import TraceWriter

from maya.trace import Trace
from maya.trace import format as f
from rank_runtime.trace_format import RECORD_COLUMNS

STRANGE: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31, 2**70, 10**18, 1e308, -1e-300, float("nan"), float("inf"), True, "", "x", "0-99999999999",
    "\0", "ä" * 100, [], {}, [1, 2, 3], [[]], {"": None},
)  # fmt: skip
_STRANGE_NUMBERS = (0, 1, 2, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_BITS = {column.name: column.bits for column in RECORD_COLUMNS}


def damaged_bytes(draw: Random, original: bytes) -> bytes:
    """Bytes changed, cut off or doubled."""
    mutant = bytearray(original)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(mutant) + 1)
        kind = draw.randrange(4)
        if kind == 0 and at < len(mutant):
            mutant[at] = draw.randrange(256)
        elif kind == 1:
            del mutant[at : at + draw.randrange(1, 64)]
        elif kind == 2:
            mutant[at:at] = mutant[at : at + draw.randrange(1, 64)]
        else:
            mutant[at : at + 1] = str(draw.choice(STRANGE)).encode()
    return bytes(mutant)


def damaged_document(draw: Random, original: Any) -> Any:
    """A JSON document with strange values, or without some."""
    mutant = copy.deepcopy(original)
    for _ in range(draw.randrange(1, 4)):
        places = _places(mutant)
        if places:
            inside, key = draw.choice(places)
            if draw.random() < 0.2:
                del inside[key]
            else:
                inside[key] = copy.deepcopy(draw.choice(STRANGE))
    return mutant


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All containers in a document, with each of their keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def damaged_json(draw: Random, original: str) -> str:
    """Half of the mutants are valid JSON."""
    if draw.random() < 0.5:
        return damaged_bytes(draw, original.encode()).decode(errors="replace")
    return json.dumps(damaged_document(draw, json.loads(original)))


def save_damaged_trace(draw: Random, original: Trace, folder: Path) -> Path:
    """A trace with right checksums and wrong records or strings."""
    records = [{name: int(record[name]) for name in f.COLUMNS} for record in original.records]
    strings = list(original.strings)
    for _ in range(draw.randrange(1, 4)):
        kind = draw.random()
        if kind < 0.5:
            name = draw.choice(f.COLUMNS)
            value = draw.choice(_STRANGE_NUMBERS) if draw.random() < 0.7 else draw.randrange(40)
            draw.choice(records)[name] = value % 2 ** _BITS[name]
        elif kind < 0.65:
            at, count = draw.randrange(len(records)), draw.randrange(1, 9)
            if draw.random() < 0.5:
                del records[at : at + count]
            else:
                records[at:at] = [dict(record) for record in records[at : at + count]]
        else:
            number = draw.randrange(1, len(strings))
            strings[number] = _damaged_string(draw, strings[number])
    writer = TraceWriter(original.header.rank)
    writer.replace(_unique(strings), records)
    return writer.save(folder)


def _damaged_string(draw: Random, text: str) -> str:
    if draw.random() < 0.7 and text.startswith("{"):
        with suppress(ValueError):  # it was damaged before
            return json.dumps(damaged_document(draw, json.loads(text)))
    return draw.choice(["{", "[]", "{}", "x" * 50, text[:-2] or "x", "[" * 2000])


def _unique(strings: list[str]) -> list[str]:
    """The strings, with blanks after those that occur before; the recorder writes each once."""
    known: set[str] = set()
    for number in range(len(strings)):
        while strings[number] in known:
            strings[number] += " "
        known.add(strings[number])
    return strings
