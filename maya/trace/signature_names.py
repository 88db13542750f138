"""Names in a trace: a record's kind, and the kernel, function or copy that a signature names.

In: signatures as dicts. Out: text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from maya.trace.demangle import demangle
from maya.trace.format import RecordKind

NAMING_KEYS = ("call", "copy", "read", "op", "text")
# Where nearly every kernel of torch lives: what distinguishes one from the next comes after.
_USUAL_NAMESPACES = ("at::native::", "(anonymous namespace)::")


def kind_name(kind: int) -> str:
    """A kind in lower case, also one that this version does not know."""
    return RecordKind(kind).name.lower().replace("_", " ") if kind in frozenset(RecordKind) else f"kind {kind}"


def readable_kernel_names(mangled: Iterable[str]) -> dict[str, str]:
    """Demangled names without torch's usual namespaces, by mangled name."""
    return {kernel: _local(name) for kernel, name in demangle(set(mangled)).items()}


def signature_name(signature: Mapping[str, Any], kernel_names: Mapping[str, str]) -> str:
    """The name of the kernel, the function of the library, the direction of the copy in a signature; else ""."""
    if "kernel" in signature:
        return kernel_names.get(signature["kernel"], str(signature["kernel"]))
    return next((str(signature[key]) for key in NAMING_KEYS if key in signature), "")


def _local(name: str) -> str:
    for namespace in _USUAL_NAMESPACES:
        name = name.replace(namespace, "")
    return name
