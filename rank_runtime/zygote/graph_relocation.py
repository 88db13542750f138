"""Moves a graph that Inductor compiled for one GPU of a node to another GPU.

In: a `CompiledFxGraph` as torch's cache has it, and the numbers of two devices. Out: the same graph, with the source
that Inductor would have generated for the other device. Inductor writes a device's number into the code that calls the
kernels and beside the kernels, and nothing else depends on it: the GPUs of a job are alike.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any


def relocate_text(text: str, old: int, new: int) -> str:
    """Generated source, or the text of a graph, with the device `new` in place of `old`."""
    return _pattern(old).sub(lambda match: match[0][: -len(str(old))] + str(new), text)


def relocate_bytes(content: bytes, old: int, new: int) -> bytes:
    """The same for a pickled graph, whose lengths are not corrected: good for nothing but a hash."""
    return relocate_text(content.decode("latin-1"), old, new).encode("latin-1")


def _pattern(device: int) -> re.Pattern[str]:
    """Ends with the device's number."""
    return re.compile(
        rf"(?:\bcuda:|\btype='cuda', index=|\b(?:raw_)?stream"
        rf"|\b_DeviceGuard\(|\btorch\.cuda\.set_device\(|\bget_raw_stream\(){device}\b"
    )


def is_relocatable(graph: Any) -> bool:
    """Whether everything that depends on the device is text. A graph with constants on its GPU is not: they are
    unpickled to the same GPU."""
    constants = (getattr(graph, "constants", None) or {}).values()
    return (
        len(graph.device_idxs) == 1
        and not any(constant.is_cuda for constant in constants)
        and not getattr(graph, "torchbind_constants", None)
        and getattr(graph, "_original_gm", None) is None
    )


def device_of(graph: Any) -> int | None:
    """The only GPU of a compiled graph."""
    return next(iter(graph.device_idxs)) if len(graph.device_idxs) == 1 else None


def relocate(
    graph: Any, device: int, hash_of_source: Callable[[str], str], hash_of_kernel: Callable[[str], str]
) -> None:
    """Move the graph to `device`. The two functions are Inductor's names for a generated module and for a kernel in
    it."""
    old = device_of(graph)
    if old is None or old == device:
        return
    kernels = {hash_of_kernel(text): relocate_text(text, old, device) for text in _kernel_sources(graph.source_code)}
    for name in ("source_code", "runnable_graph_str", "inductor_post_grad_graph_str"):
        if isinstance(getattr(graph, name, None), str):
            setattr(graph, name, relocate_text(getattr(graph, name), old, device))
    graph.cache_key = hash_of_source(graph.source_code)
    graph.device_idxs = type(graph.device_idxs)([device])
    bundle = getattr(graph, "_triton_bundle", None)
    if bundle is not None:
        graph._triton_bundle = type(bundle)(
            [_moved(artifacts, device=device) for artifacts in bundle.kernel_artifacts],
            [
                _moved(autotuner, cache_key=hash_of_kernel(kernels[autotuner.cache_key]))
                for autotuner in bundle.static_autotuners
                if autotuner.cache_key in kernels and _relocate_autotuner(autotuner.kernel, device)
            ],
        )


def _moved(entry: Any, **changes: Any) -> Any:
    """A copy of a dataclass with other values."""
    return type(entry)(**{**{name: getattr(entry, name) for name in entry.__dataclass_fields__}, **changes})


def _kernel_sources(source: str) -> Iterator[str]:
    """The kernels in a generated module: async_compile.triton(name, source, …)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "triton":
            for argument in node.args[1:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _relocate_autotuner(autotuner: Any, device: int) -> bool:
    autotuner.device_props = autotuner.device_props._replace(index=device)
    autotuner.triton_meta["device"] = device
    for result in autotuner.compile_results:
        result.compile_meta["device"] = device
    return True
