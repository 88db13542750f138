"""Parse quantities with units, as configuration files write them.

In: text such as "80GiB", "1980MHz", "3352GB/s", "1.3us". Out: whole base units. Decimal prefixes count in thousands
(kB, MB, GB), binary ones in 1024s (KiB, MiB, GiB). `text.py` formats quantities.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]+)\s*")


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: its name and an example for error messages, and how many base units each unit has."""

    what: str
    example: str
    units: dict[str, Fraction]

    def parse(self, text: object) -> int:
        """Base units in `text`; ValueError says what is wrong and what would be right."""
        if not isinstance(text, str):
            raise ValueError(f'{text!r} has no unit; write {self.what} as text with its unit, e.g. "{self.example}"')
        match = _NUMBER_AND_UNIT.fullmatch(text)
        if match is None:
            raise ValueError(f'"{text}" is not {self.what}; write a number and its unit, e.g. "{self.example}"')
        number, unit = match.groups()
        if unit not in self.units:
            raise ValueError(f'"{text}": "{unit}" is not a unit of {self.what}; use one of {", ".join(self.units)}')
        return round(Fraction(number) * self.units[unit])


def _units(symbol: str, prefixes: dict[str, int], scale: Fraction = Fraction(1)) -> dict[str, Fraction]:
    return {prefix + symbol: factor * scale for prefix, factor in prefixes.items()}


BYTES = Quantity("a size", "80GiB", _units("B", _DECIMAL | _BINARY))
BITS = Quantity("a width", "5120bit", {"bit": Fraction(1)})
HERTZ = Quantity("a clock", "1980MHz", _units("Hz", _DECIMAL))
WATTS = Quantity("a power", "700W", _units("W", {"": 1, "k": 10**3}))
FLOPS = Quantity("a rate of computation", "989TFLOPS", _units("FLOPS", _DECIMAL))
BYTES_PER_SECOND = Quantity(
    "a bandwidth",
    "450GB/s",
    _units("B/s", _DECIMAL | _BINARY) | _units("bps", _DECIMAL, Fraction(1, 8)),
)
NANOSECONDS = Quantity(
    "a time",
    "1.3us",
    {"ns": Fraction(1), "us": Fraction(10**3), "ms": Fraction(10**6), "s": Fraction(10**9)},
)
