"""Kernel names for people: `_ZN2at6native…` -> `at::native::…`, by the demangler of the C++ runtime library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import lru_cache


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Readable forms of the names, without return type and parameters; names that are not mangled stay as they are."""
    return {
        name: _without_return_type(_without_parameters(declaration)) if declaration != name else name
        for name, declaration in declarations(names).items()
    }


def declarations(names: Iterable[str]) -> dict[str, str]:
    """Whole declarations of the names, with return type and parameters; names that are not mangled stay as they are."""
    return {name: _declaration(name) if name.startswith("_Z") else name for name in sorted(set(names))}


def _declaration(mangled: str) -> str:
    declaration = _demangler()(mangled.encode())
    return mangled if declaration is None else declaration.decode()


@lru_cache(maxsize=1)
def _demangler() -> Callable[[bytes], bytes | None]:
    """None for a name that is not mangled by the rules, and for every name if the library is missing."""
    try:
        library, c = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)
    except OSError:
        return lambda mangled: None
    function, free = library["__cxa_demangle"], c["free"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p]

    def call(mangled: bytes) -> bytes | None:
        address = function(mangled, None, None, None)
        if address is None:
            return None
        try:
            return ctypes.string_at(address)
        finally:
            free(address)

    return call


def _without_parameters(declaration: str) -> str:
    """A function's declaration ends with them."""
    depth = 0
    for i in reversed(range(len(declaration) if declaration.endswith(")") else 0)):
        depth += {")": 1, "(": -1}.get(declaration[i], 0)
        if depth == 0:
            return declaration[:i]
    return declaration


def _without_return_type(declaration: str) -> str:
    """The name without its return type. A name may contain blanks, but only within brackets."""
    depth = 0
    start = 0
    for i, character in enumerate(declaration):
        if character in "<([{":
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif character == " " and depth == 0:
            start = i + 1
    return declaration[start:]
