"""Parse the template arguments in a kernel's name, mangled or readable: operands, list depths, functors."""

from __future__ import annotations

import re

_POINTERS = re.compile(r"[aA]rray(?:<char\s?\*, (\d+)|IPcL[im](\d+)E)")
_LISTS = re.compile(
    r"TensorListMetadata(?:<(\d+)>|ILi(\d+)E)|TensorListScalarListMetadata(?:<[^<>]*, (\d+)>|I\w+?Li(\d+)E)"
)
_LIST_FUNCTOR = re.compile(
    r"Functor(?:<[^<>]*?(?:\([^()]*\)\d+)?[^<>]*?, (\d+), (\d+), (\d+)>|I[^E]*?Li(\d+)ELi(\d+)ELi(\d+)EE)"
)
_FIRST_NUMBER = re.compile(r"_kernel(?:<|I)(?:Li)?(\d+)")


def pointers(name: str) -> int | None:
    """The number of operands of an elementwise kernel, outputs included; None if its name does not contain it."""
    match = _POINTERS.search(name)
    return int(match[1] or match[2]) if match else None


def list_depth(name: str) -> int | None:
    """The number of tensor lists that a kernel over lists accesses."""
    match = _LISTS.search(name)
    return int(next(group for group in match.groups() if group)) if match else None


def list_reads(name: str) -> int | None:
    """The number of lists that a foreach functor reads; it writes one. None if its name does not contain it."""
    match = _LIST_FUNCTOR.search(name)
    if match is None:
        return None
    groups = [group for group in match.groups() if group is not None]
    return int(groups[1])


def first_number(name: str) -> int | None:
    """The first template argument of the kernel, if it is a number."""
    match = _FIRST_NUMBER.search(name)
    return int(match[1]) if match else None
