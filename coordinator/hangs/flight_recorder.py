"""torch's flight recorder: what a rank called on which process group, and where.

In: what a rank answers to "recorder", torch's pickle of plain dictionaries. Out: process groups and entries, oldest
first.
"""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from maya.hangs.python_stacks import Frame, users_frame


@dataclass(frozen=True)
class RecordedGroup:
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        """As the script named it; a mesh's groups have the names of its dimensions."""
        if self.description == "default_pg":
            return "the default group"
        named = self.description and self.description != "undefined"
        return f"group {self.description} ({self.name})" if named else f"group {self.name}"


@dataclass(frozen=True)
class Entry:
    """A collective or message that was called."""

    group: str
    call: str  # all_reduce, send 0->1
    number: int  # of the group's collectives, or messages: 1, 2, ...
    is_message: bool
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    frames: tuple[Frame, ...]
    completed: bool
    record: int
    thread: str

    @property
    def is_backward(self) -> bool:
        """Called by autograd, whose threads have no Python stack."""
        return self.thread.startswith("pt_autograd") and not self.frames

    @property
    def line(self) -> Frame | None:
        return users_frame(self.frames)


@dataclass(frozen=True)
class Recorder:
    """What a rank has recorded."""

    groups: dict[str, RecordedGroup] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()

    def of_ranks(self, members: tuple[int, ...]) -> list[RecordedGroup]:
        return [group for group in self.groups.values() if group.ranks == members]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder")


def parse(answer: bytes) -> Recorder:
    """Empty if there is none, or it is of a kind we do not know."""
    try:
        content = _PlainUnpickler(io.BytesIO(answer)).load()
        groups = {
            name: RecordedGroup(name, config["desc"], tuple(json.loads(config["ranks"])))
            for name, config in content["pg_config"].items()
        }
        entries = tuple(_entry(each) for each in content.get("entries", ()))
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, IndexError, AttributeError):
        return Recorder()
    return Recorder(groups, entries)


def _entry(content: dict[str, Any]) -> Entry:
    is_message = bool(content["is_p2p"])
    return Entry(
        group=content["process_group"][0],
        call=content["profiling_name"].removeprefix("nccl:"),
        number=content["p2p_seq_id" if is_message else "collective_seq_id"],
        is_message=is_message,
        sizes=tuple(tuple(size) for size in content["input_sizes"]),
        types=tuple(content["input_dtypes"]),
        frames=tuple(Frame(each["filename"], each["line"], each["name"]) for each in content.get("frames", ())),
        completed=content["state"] == "completed",
        record=content["record_id"],
        thread=content.get("thread_name", ""),
    )
