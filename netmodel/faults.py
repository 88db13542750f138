"""What is broken in a cluster: links that are lost, and links that have kept a part of their rate.

In: `[[faults]]` of a cluster's file, or a word of the command line. Out: `Fault`, which names links as drawings do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Links by the two vertices they join, or those of one: a NIC's cable, a GPU's GPU links, else all."""

    link: tuple[str, ...]  # one name, or two
    rate_left: float  # of 1; 0 is lost
    cables: int = 0  # of several parallel ones, how many; 0 is all

    @property
    def lost(self) -> bool:
        return self.rate_left == 0

    def __str__(self) -> str:
        cables = f" ({self.cables} of its cables)" if self.cables else ""
        return f"{' - '.join(self.link)}{cables}: {'lost' if self.lost else f'{self.rate_left:.0%} of its rate left'}"
