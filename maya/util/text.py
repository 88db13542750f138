"""Quantities as text for people; one function per quantity.

In: whole nanoseconds, bytes, bytes per second, shares, counts. Out: text without trailing zeros; times and rates have
at most four digits, sizes and counts three. `units.py` parses quantities.
"""

from __future__ import annotations

_DECIMAL = (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def time_text(ns: int) -> str:
    """4917845 -> "4.918 ms", 1300 -> "1.3 us"."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= factor:
            return f"{_rounded(ns / factor, 4)} {unit}"
    return f"{ns} ns"


def bytes_text(size: int) -> str:
    """1331691520 -> "1.24 GiB"."""
    for unit, factor in _BINARY:
        if size >= factor:
            return f"{_rounded(size / factor, 3)} {unit}"
    return f"{size} B"


def axis_bytes_text(size: int) -> str:
    """65536 -> "64K": the short form for axes, as nccl-tests takes sizes."""
    for unit, factor in _BINARY:
        if size >= factor:
            return f"{size / factor:g}{unit[0]}"
    return str(size)


def rate_text(rate: int, *, bits: bool = False) -> str:
    """A rate in bytes ("450 GB/s") or, as network vendors count, in bits ("400 Gbps")."""
    amount, unit = (rate * 8, "bps") if bits else (rate, "B/s")
    for prefix, factor in _DECIMAL:
        # Vendors count in Gbps up to a Tbps and beyond: 3200 Gbps, not 3.2 Tbps.
        if amount >= factor * (10**4 if bits and factor > 10**9 else 1):
            return f"{_rounded(amount / factor, 4)} {prefix}{unit}"
    return f"{amount} {unit}"


def share_text(share: float) -> str:
    """0.1234 -> "12.3 %"."""
    return f"{100 * share:.1f} %"


def count_text(count: float, unit: str) -> str:
    """A large count with its unit: 1.84e11, "FLOPS" -> "184 GFLOPS"."""
    for prefix, factor in _DECIMAL:
        if count >= factor:
            return f"{_rounded(count / factor, 3)} {prefix}{unit}"
    return f"{count:.3g} {unit}"


def number_text(value: float) -> str:
    """A number of any magnitude, without a unit: 0.0123, 12.3, 12,345."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float, digits: int) -> str:
    """At most `digits` digits, but all of those before the point; no exponent and no trailing zeros."""
    decimals = max(digits - len(str(int(value))), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
