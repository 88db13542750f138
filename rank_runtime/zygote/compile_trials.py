"""Keeps compiling and autotuning out of the prediction: they depend on what torch's caches already hold.

In: calls of torch._inductor that compile a graph or measure candidates. Out: what they launch is neither recorded nor
counted (shim/device/trial.c), tensors that candidates are tried on do not count as memory of the program, and
a measurement is the time that the candidate's kernels are estimated to take, so that one launch replaces hundreds.
docs/internals.md lists the functions of torch that are wrapped.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from rank_runtime.module_hooks import after_import

_library = ctypes.CDLL(None)

# Functions that try candidates, by module and class.
_TUNING = {
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"): (
        "autotune_to_one_config",
        "coordinate_descent_tuning",
        "_combo_sequential_autotune",
    ),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache"): ("benchmark",),
    ("torch._inductor.fx_passes.pad_mm", ""): ("should_pad_bench",),
}
_BENCHMARKS = "torch._inductor.runtime.benchmarking"
_BENCHMARKERS = ("TritonBenchmarker", "InductorBenchmarker")


def hide_compile_trials() -> None:
    """Wrap the functions that try candidates, in this process."""
    if not hasattr(_library, "maya_trial_begin"):  # the fake libraries are not loaded
        return
    _library.maya_trial_ns.restype = ctypes.c_int64
    after_import("torch.cuda.memory", _pools_in_use.watch)
    after_import(_BENCHMARKS, _estimate_benchmarks)
    for (module, owner), names in _TUNING.items():
        after_import(module, _tuning_wrapper(owner, names))


@contextmanager
def compiling() -> Iterator[None]:
    """Neither record nor count what this thread launches meanwhile. Its memory is recorded: a compiled graph may keep
    constants."""
    if not hasattr(_library, "maya_trial_begin"):
        yield
        return
    _library.maya_trial_begin(0)
    try:
        yield
    finally:
        _library.maya_trial_end(0)


@contextmanager
def _trial() -> Iterator[None]:
    """The same for candidates, whose memory comes from a pool of its own that ends with the trial."""
    import torch

    pool = _new_pool(torch)
    hides_memory = int(pool is not None or _thread.has_pool)
    _library.maya_trial_begin(hides_memory)
    try:
        if pool is None:
            yield
            return
        _thread.has_pool = True
        try:
            with torch.cuda.use_mem_pool(pool):
                yield
        finally:
            _thread.has_pool = False
            if _pools_in_use.count > 0:
                _kept.append(pool)  # another thread uses a pool: torch does not allow this one to end
            del pool
    finally:
        _library.maya_trial_end(hides_memory)


class _Thread(threading.local):
    has_pool = False  # it is in a trial that has a pool


class _PoolsInUse:
    """Counts the pools from which torch allocates at present: CUDA graphs and the program have some as well."""

    count = 0

    def watch(self, memory: Any) -> None:
        for name, change in (("_cuda_beginAllocateCurrentThreadToPool", 1), ("_cuda_endAllocateToPool", -1)):
            for module in (memory, memory.torch._C):
                if hasattr(module, name):
                    setattr(module, name, self._counted(getattr(module, name), change))

    def _counted(self, function: Callable[..., Any], change: int) -> Callable[..., Any]:
        @wraps(function)
        def counted(*arguments: Any) -> Any:
            self.count += change
            return function(*arguments)

        return counted


_thread = _Thread()
_pools_in_use = _PoolsInUse()
_kept: list[Any] = []


def _new_pool(torch: Any) -> Any:
    """None: not possible, or the thread has one. Trials without a pool leave their memory in the trace."""
    if _thread.has_pool or _pools_in_use.count > 0 or not hasattr(torch.cuda, "MemPool"):
        return None
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.MemPool()


def _tuning_wrapper(owner: str, names: tuple[str, ...]) -> Callable[[Any], None]:
    def wrap(module: Any) -> None:
        place = getattr(module, owner, None) if owner else module
        for name in names:
            function = None if place is None else vars(place).get(name)
            if function is not None:
                setattr(place, name, _tried(function))

    return wrap


def _tried(function: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        return type(function)(_tried(function.__func__))

    @wraps(function)
    def tried(*arguments: Any, **named: Any) -> Any:
        with _trial():
            return function(*arguments, **named)

    return tried


# ---- benchmarks ----


def _estimate_benchmarks(module: Any) -> None:
    for name in _BENCHMARKERS:
        benchmarker = getattr(module, name, None)
        if benchmarker is not None and "benchmark_gpu" in vars(benchmarker):
            benchmarker.benchmark_gpu = _estimated(module, benchmarker.benchmark_gpu)


def _estimated(module: Any, benchmark: Callable[..., Any]) -> Callable[..., Any]:
    """`benchmark`, but with estimates instead of measurements. Without a virtual clock it measures."""

    @wraps(benchmark)
    def estimated(self: Any, _callable: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        if not named.get("is_vetted_benchmarking", False):
            module.may_ban_benchmarking()  # raises in Inductor's deterministic mode
        with _trial():
            _callable()  # also raises what the candidate raises, and allocates what it allocates once
            if _library.maya_trial_ns() < 0:
                return benchmark(self, _callable, *arguments, **named)
            _callable()
            milliseconds = max(_library.maya_trial_ns(), 1) / 1e6
        return [milliseconds] if named.get("return_mode") == "all" else milliseconds

    return estimated
