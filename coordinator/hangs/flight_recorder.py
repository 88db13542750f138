"""Parses torch's flight recorder: the collectives that a rank called, their process groups and source lines.

In: a rank's answer to "recorder", which is torch's pickle of plain dictionaries. Out: process groups and entries,
oldest first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from coordinator.hangs.plain_pickle import plain_value
from maya.hangs.python_stacks import Frame, users_frame


@dataclass(frozen=True)
class RecordedGroup:
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        """The script's name for the group; the groups of a device mesh are named after its dimensions."""
        if self.description == "default_pg":
            return "the default group"
        named = self.description and self.description != "undefined"
        return f"group {self.description} ({self.name})" if named else f"group {self.name}"


@dataclass(frozen=True)
class Entry:
    """A collective, send or recv that the rank called."""

    group: str
    call: str  # all_reduce, send 0->1
    number: int  # counts the group's collectives, or its sends and recvs, from 1
    is_p2p: bool
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    frames: tuple[Frame, ...]
    completed: bool
    record: int
    thread: str

    @property
    def is_backward(self) -> bool:
        """Whether autograd made the call; its threads have no Python stack."""
        return self.thread.startswith("pt_autograd") and not self.frames

    @property
    def line(self) -> Frame | None:
        return users_frame(self.frames)


@dataclass(frozen=True)
class Recorder:
    """The flight recorder of one rank."""

    groups: dict[str, RecordedGroup] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()

    def of_ranks(self, members: tuple[int, ...]) -> list[RecordedGroup]:
        return [group for group in self.groups.values() if group.ranks == members]


def parse(answer: bytes) -> Recorder:
    """The recorder in an answer; empty if there is none or its format is unknown."""
    try:
        content = plain_value(answer)
        groups = {
            name: RecordedGroup(name, config["desc"], tuple(json.loads(config["ranks"])))
            for name, config in content["pg_config"].items()
        }
        entries = tuple(_entry(each) for each in content.get("entries", ()))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return Recorder()
    return Recorder(groups, entries)


def _entry(content: dict[str, Any]) -> Entry:
    is_p2p = bool(content["is_p2p"])
    return Entry(
        group=content["process_group"][0],
        call=content["profiling_name"].removeprefix("nccl:"),
        number=content["p2p_seq_id" if is_p2p else "collective_seq_id"],
        is_p2p=is_p2p,
        sizes=tuple(tuple(size) for size in content["input_sizes"]),
        types=tuple(content["input_dtypes"]),
        frames=tuple(Frame(each["filename"], each["line"], each["name"]) for each in content.get("frames", ())),
        completed=content["state"] == "completed",
        record=content["record_id"],
        thread=content.get("thread_name", ""),
    )
