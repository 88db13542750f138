"""The collectives that the members of a communicator have called, with their call sites, for reports of hangs.

In: each collective as it completes: its sequence number, and which members called it from where. Out: the last
collectives, and those around each place where members first called from different places in a new combination. Most
programs call from the same line on all ranks, so an entry is small; a program whose ranks legally differ repeats the
same few combinations. Both bound the memory, however long the job runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_RECENT = 256  # last collectives
_AROUND = 64  # collectives before and after a new combination
_MOST_KEPT = 1024
_MOST_COMBINATIONS = 1024

Sites = int | tuple[tuple[int, tuple[int, ...]], ...]  # the call site of all members, or members by call site


@dataclass(frozen=True, slots=True)
class PastCall:
    """A collective, and where its members called it."""

    sequence: int
    call: int  # Call
    count: int
    sites: Sites
    complete: bool = True

    def site_of(self, member: int) -> int | None:
        """Where a member called it; None: it has not."""
        if isinstance(self.sites, int):
            return self.sites
        return next((site for site, members in self.sites if member in members), None)


def make_sites(site: int, others: dict[int, list[int]] | None) -> Sites:
    """`others`: members by call site, if there is more than one; otherwise all called from `site`."""
    if others is None:
        return site
    return tuple(sorted((each, tuple(sorted(members))) for each, members in others.items()))


class CallHistory:
    """The past collectives of one communicator."""

    def __init__(self) -> None:
        self._recent: deque[PastCall] = deque(maxlen=_RECENT)
        self._kept: list[PastCall] = []
        self._combinations: dict[Sites, Sites] = {}
        self._keep = 0  # how many of the next calls to keep

    def add(self, call: PastCall) -> None:
        if not isinstance(call.sites, int):
            call = self._combined(call)
        if self._keep:
            self._keep -= 1
            self._kept.append(call)
        self._recent.append(call)

    def _combined(self, call: PastCall) -> PastCall:
        """The call, with a combination of call sites that equal calls share."""
        known = self._combinations.get(call.sites)
        if known is None:
            known = call.sites
            if len(self._combinations) < _MOST_COMBINATIONS and len(self._kept) < _MOST_KEPT:
                self._combinations[known] = known
                if not self._keep:
                    self._kept += list(self._recent)[-_AROUND:]
                self._keep = _AROUND
        return PastCall(call.sequence, call.call, call.count, known, call.complete)

    def calls(self, pending: Sequence[PastCall] = ()) -> list[list[PastCall]]:
        """Runs of calls without gaps, in order. `pending`: calls that are not complete."""
        by_sequence = {call.sequence: call for call in (*self._kept, *self._recent, *pending)}
        runs: list[list[PastCall]] = []
        for sequence, call in sorted(by_sequence.items()):
            if not runs or runs[-1][-1].sequence != sequence - 1:
                runs.append([])
            runs[-1].append(call)
        return runs
