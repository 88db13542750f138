"""Numbers for people: nanoseconds, bytes, shares, counts."""

from __future__ import annotations


def time_text(ns: int) -> str:
    """4917845 -> 4.918 ms: four digits, in the largest unit that leaves one before the point."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= factor:
            value = ns / factor
            return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f} {unit}"
    return f"{ns} ns"


def bytes_text(size: int) -> str:
    """1331691520 -> 1.24 GiB."""
    if size < 1024:
        return f"{size} B"
    exponent = min((size.bit_length() - 1) // 10, 4)
    value = size / 1024**exponent
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {('KiB', 'MiB', 'GiB', 'TiB')[exponent - 1]}"


def share_text(share: float) -> str:
    """0.1234 -> 12.3 %."""
    return f"{100 * share:.1f} %"


def scaled(value: float) -> str:
    """Counts beyond what is read digit by digit: 1.84e11 -> 184 G."""
    for unit, factor in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} "


def small(value: float) -> str:
    """A number of any size in three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
