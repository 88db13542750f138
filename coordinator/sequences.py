"""Sequence numbers that have been dealt with: 0, 1, ... with few gaps, and so kept in constant space."""

from __future__ import annotations


class Sequences:
    """A set of numbers that grows from 0 upwards, not quite in order."""

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0  # all numbers below it are in the set
        self._above: set[int] | None = None  # further ones; None while there are none

    def add(self, number: int) -> None:
        if number != self._floor:
            if self._above is None:
                self._above = set()
            self._above.add(number)
            return
        self._floor += 1
        if self._above is not None:
            while self._floor in self._above:
                self._above.remove(self._floor)
                self._floor += 1
            if not self._above:
                self._above = None

    def __contains__(self, number: int) -> bool:
        return number < self._floor or (self._above is not None and number in self._above)
