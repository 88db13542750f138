"""Options of maya-torchrun that inject faults or perturb the order of events: --inject and --schedule-seed.

In: the parsed command line. Out: an `Injection`, which gives every rank its own faults.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from maya.launcher.injected_faults import (
    EVERY_ATTEMPT,
    FaultError,
    InjectedFault,
    InjectedLinkFault,
    parse,
    read_file,
)

__all__ = ["FaultError", "Injection", "add_options", "read_options"]


@dataclass(frozen=True)
class Injection:
    """The faults of a job, and the seed of its event order."""

    wanted: tuple[InjectedFault | InjectedLinkFault, ...] = ()
    seed: int | None = None  # of the order of events

    @property
    def links(self) -> tuple[str, ...]:
        """The faults of links, as the network model reads them."""
        return tuple(fault.link for fault in self.wanted if isinstance(fault, InjectedLinkFault))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with faults of their own."""
        return tuple(sorted({fault.rank for fault in self._of_ranks()}))

    def of_rank(self, rank: int, attempt: int) -> str:
        """MAYA_FAULTS of a rank, in an attempt: 0, 1, ..."""
        happening = (EVERY_ATTEMPT, attempt + 1)
        mine = [fault for fault in self._of_ranks() if fault.rank == rank and fault.attempt in happening]
        return ";".join(fault.for_rank() for fault in mine)

    def variables(self) -> dict[str, str]:
        """Environment variables of all ranks."""
        return {"MAYA_FAULTS": "", "MAYA_SCHEDULE_SEED": "" if self.seed is None else str(self.seed)}

    def texts(self) -> tuple[str, ...]:
        return tuple(map(str, self.wanted))

    def check(self, world_size: int, attempts: int, *, trace: bool) -> None:
        """Refuse faults that could never happen."""
        for fault in self._of_ranks():
            if fault.rank >= world_size:
                raise FaultError(f"{fault}: there is no rank {fault.rank}; ranks are 0 to {world_size - 1}")
            if fault.attempt > attempts:
                raise FaultError(f"{fault}: there is no such attempt without --max-restarts {fault.attempt - 1}")
        for link in self.links:
            if not trace:
                raise FaultError(f"link:at={link}: a link takes virtual time, which --no-trace does without")

    def _of_ranks(self) -> list[InjectedFault]:
        return [fault for fault in self.wanted if isinstance(fault, InjectedFault)]


def add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--inject",
        type=_faults,
        action="append",
        default=[],
        metavar="FAULT|FILE",
        help="inject a fault: kill:, raise:, drop: or error:rank=3,call=10, delay:rank=0,step=5,seconds=3, "
        "oom:rank=1,bytes=1GiB, link:at=node0/nic3,left=25%%, or a TOML file of faults; may be repeated",
    )
    group.add_argument(
        "--schedule-seed",
        type=_seed,
        metavar="N",
        help="perturb the order of events, to expose races; the same N gives the same order",
    )


def read_options(options: argparse.Namespace) -> Injection:
    return Injection(tuple(fault for faults in options.inject for fault in faults), options.schedule_seed)


def _faults(word: str) -> Sequence[InjectedFault | InjectedLinkFault]:
    try:
        return read_file(word) if word.endswith(".toml") else [parse(word)]
    except FaultError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seed(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or int(word) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")
    return int(word)
