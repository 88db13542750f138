"""Lets the ranks of a job compile equal graphs once.

In: Inductor's calls to its cache of compiled graphs (FxGraphCache). Out: a rank that is about to compile a graph which
another rank compiles right now waits for it and loads the result, also if the other rank's GPU has another number in
its node (`graph_relocation`). Which graphs are cached, where, and for how long is torch's and the user's decision: a
graph that is not cached is compiled by every rank, as without Maya. Compiling takes no virtual time, and neither does
waiting (`compile_trials`). docs/internals.md lists the functions of torch that are wrapped.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from rank_runtime.module_hooks import after_import
from rank_runtime.zygote.compile_lock import CompileLock
from rank_runtime.zygote.compile_trials import compiling
from rank_runtime.zygote.graph_relocation import device_of, is_relocatable, relocate, relocate_bytes

_SHARED = "-any-gpu"  # ends the key of a graph that every GPU of the node can use
_WORKER_START = "TORCHINDUCTOR_WORKER_START"
_POOL_START_SECONDS = 60.0
_MOST_SECONDS = 600.0  # as long as torch waits for its own lock files

# Settings of Inductor that, if they are not as given here, let its passes communicate or write the rank into the code
# of a graph with collectives.
_PASSES_OF_COLLECTIVES: Mapping[str, object] = {
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
    "reorder_for_compute_comm_overlap": False,
    "aten_distributed_optimizations.enable_overlap_scheduling": False,
    "_micro_pipeline_tp": False,
}
# The same for all graphs: autotuning in which ranks divide the work, code in other languages, and passes of the user,
# of which nothing is known.
_OTHER_SETTINGS: Mapping[str, object] = {
    "distributed_max_autotune_gemm": False,
    "cpp_wrapper": False,
    "fx_wrapper": False,
    **dict.fromkeys(
        (
            "joint_custom_pre_pass",
            "joint_custom_post_pass",
            "post_grad_custom_pre_pass",
            "post_grad_custom_post_pass",
            "_pre_fusion_custom_pass",
            "custom_partitioner_fn",
        )
    ),
}


def share_compiled_graphs(environment: Mapping[str, str]) -> None:
    """Wrap the functions of Inductor when it is imported."""
    sharing = _Sharing(environment.get("RANK", "0"))
    after_import("torch._inductor.codecache", sharing.wrap_cache)
    after_import("torch._inductor.compile_fx", sharing.wrap_compiler)
    after_import("torch._inductor.async_compile", sharing.wrap_pool)


class _Thread(threading.local):
    """One thread's compilation."""

    locked: str | None = None  # the key that it has locked
    depth = 0  # of calls that compile one graph
    misses = False  # the present graph has to be compiled
    device: int | None = None  # for which a graph is looked up


class _Sharing:
    def __init__(self, rank: str) -> None:
        self._rank = rank
        self._thread = _Thread()
        self._async_compile: Any = None
        self._lock: CompileLock | None = None

    # ---- the cache: keys, lookups, entries ----

    def wrap_cache(self, codecache: Any) -> None:
        if not _has(codecache, "FxGraphCache", "compiled_fx_graph_hash", "cache_dir", "config"):
            return
        cache = codecache.FxGraphCache
        if not _has(cache, "_lookup_graph", "_save_graph", "iterate_over_candidates"):
            return
        codecache.compiled_fx_graph_hash = self._keys(codecache, codecache.compiled_fx_graph_hash)
        cache._lookup_graph = staticmethod(self._lookups(codecache, cache._lookup_graph))
        cache._save_graph = staticmethod(self._saves(cache._save_graph))
        cache.iterate_over_candidates = classmethod(self._candidates(codecache, cache.iterate_over_candidates.__func__))

    def _keys(self, codecache: Any, hash_of: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(hash_of)
        def key_of(gm: Any, example_inputs: Any, fx_kwargs: Any, inputs_to_check: Any) -> tuple[str, list[str]]:
            if _depends_on_rank(codecache.config, gm):
                key, lines = hash_of(gm, example_inputs, fx_kwargs, inputs_to_check)
                return f"{key}-rank{self._rank}", lines
            device = _only_device(gm, example_inputs)
            key = (
                None
                if device is None
                else _shared_key(codecache, gm, example_inputs, fx_kwargs, inputs_to_check, device)
            )
            return hash_of(gm, example_inputs, fx_kwargs, inputs_to_check) if key is None else (key, [])

        return key_of

    def _lookups(self, codecache: Any, look_up: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(look_up)
        def shared(key: str, example_inputs: Any, local: bool, *arguments: Any, **named: Any) -> Any:
            thread = self._thread
            thread.device = _current_device(example_inputs)
            found = look_up(key, example_inputs, local, *arguments, **named)
            if found[0] is None and local and thread.depth > 0:
                if not key.endswith(f"-rank{self._rank}"):
                    found = self._wait_and_look_up(
                        codecache, key, lambda: look_up(key, example_inputs, local, *arguments, **named), found
                    )
                thread.misses = found[0] is None
            return found

        return shared

    def _wait_and_look_up(self, codecache: Any, key: str, look_up: Callable[[], Any], found: Any) -> Any:
        if self._lock is None:
            folder = Path(codecache.cache_dir())
            self._lock = CompileLock(folder, float(getattr(codecache.config, "file_lock_timeout", 0) or _MOST_SECONDS))
        state = self._lock.acquire(key)
        if state is None:
            return found
        found = look_up()  # the rank that had the lock may have saved it
        if found[0] is None and state == "free":
            self._thread.locked = key
        else:  # A rank that has waited in vain compiles without the lock, and so do all others that have waited.
            self._lock.release(key)
        return found

    def _saves(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(save)
        def saved(key: str, compiled_graph: Any, *arguments: Any, **named: Any) -> Any:
            if key.endswith(_SHARED) and not is_relocatable(compiled_graph):
                key = _key_for_device(key, self._thread.device)
            return save(key, compiled_graph, *arguments, **named)

        return saved

    def _candidates(self, codecache: Any, iterate: Callable[..., Any]) -> Callable[..., Any]:
        from_source: Callable[[str], str] = codecache.get_hash

        def from_kernel(source: str) -> str:
            return str(codecache.code_hash(source, extra=codecache.torch_key()))

        @wraps(iterate)
        def relocated(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
            device = self._thread.device
            for candidate, content, is_local in iterate(cls, local, remote_cache, key):
                if key.endswith(_SHARED) and not _can_relocate(candidate, device, from_source, from_kernel):
                    continue
                yield candidate, content, is_local
            if key.endswith(_SHARED):
                yield from iterate(cls, local, remote_cache, _key_for_device(key, device))

        return relocated

    # ---- the compiler ----

    def wrap_compiler(self, compile_fx: Any) -> None:
        if _has(compile_fx, "config", "_compile_fx_inner", "compile_fx"):
            compile_fx._compile_fx_inner = self._compiles(compile_fx.config, compile_fx._compile_fx_inner)
            compile_fx.compile_fx = _uncounted(compile_fx.config, compile_fx.compile_fx)

    def _compiles(self, config: Any, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compile_graph)
        def compiled(gm: Any, *arguments: Any, **named: Any) -> Any:
            with self._one_graph():
                if _depends_on_rank(config, gm):
                    return compile_graph(gm, *arguments, **named)
                with compiling():
                    return compile_graph(gm, *arguments, **named)

        return compiled

    @contextmanager
    def _one_graph(self) -> Iterator[None]:
        thread = self._thread
        locked, thread.locked = thread.locked, None
        thread.depth += 1
        try:
            yield
        finally:
            if thread.locked is not None and self._lock is not None:
                self._lock.release(thread.locked)
            thread.locked = locked
            thread.depth -= 1
            thread.misses = False
            if thread.depth == 0:
                self._end_pool()

    # ---- the pool of processes that compile kernels ----

    def wrap_pool(self, async_compile: Any) -> None:
        """Fork the pool when a graph has to be compiled, and end it when the graph is compiled. torch's own way, a
        process that imports torch while the rank compiles its first kernels itself, takes seconds of processor time,
        and memory that the rank keeps."""
        if _WORKER_START in os.environ:  # the user's own choice
            return
        pool = async_compile.AsyncCompile
        if not _has(async_compile, "config", "shutdown_compile_workers") or not _has(
            pool, "use_process_pool", "warm_pool", "process_pool", "_ready_future"
        ):
            return
        async_compile.config.worker_start_method = "fork"
        self._async_compile = async_compile
        uses_pool, warm_pool = pool.use_process_pool.__func__, pool.warm_pool.__func__

        @wraps(uses_pool)
        def use_process_pool(cls: Any) -> Any:
            return self._needs_pool() and (uses_pool(cls) or _is_ready(cls._ready_future))

        @wraps(warm_pool)
        def warm(cls: Any) -> None:
            if self._needs_pool():
                warm_pool(cls)

        pool.use_process_pool, pool.warm_pool = classmethod(use_process_pool), classmethod(warm)

    def _needs_pool(self) -> bool:
        config = self._async_compile.config
        is_cached = config.fx_graph_cache and not config.force_disable_caches
        return self._thread.depth > 0 and (self._thread.misses or not is_cached)

    def _end_pool(self) -> None:
        if self._async_compile is not None and self._async_compile.AsyncCompile.process_pool.cache_info().currsize > 0:
            self._async_compile.shutdown_compile_workers()


def _is_ready(pool: Any) -> bool:
    """Wait for a pool that was just forked. If it does not start, the rank compiles by itself."""
    try:
        return pool is not None and pool.result(_POOL_START_SECONDS) is not None
    except Exception:  # whatever went wrong in the other process
        return False


def _has(owner: Any, *names: str) -> bool:
    """Whether this version of torch has these attributes. If not, every rank compiles."""
    return all(hasattr(owner, name) for name in names)


def _can_relocate(
    graph: Any, device: int | None, from_source: Callable[[str], str], from_kernel: Callable[[str], str]
) -> bool:
    """Move the graph to the device. If that fails, the rank compiles the graph."""
    if device is None:
        return False
    try:
        relocate(graph, device, from_source, from_kernel)
    except (AttributeError, KeyError, SyntaxError, TypeError):  # entries of another form
        return False
    return device_of(graph) == device


def _uncounted(config: Any, compile_graphs: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd's part: it traces and tries candidates, or finds the result in its own cache."""

    @wraps(compile_graphs)
    def uncounted(model: Any, *arguments: Any, **named: Any) -> Any:
        if _depends_on_rank(config, model):
            return compile_graphs(model, *arguments, **named)
        with compiling():
            return compile_graphs(model, *arguments, **named)

    return uncounted


# ---- graphs ----


def _depends_on_rank(config: Any, gm: Any) -> bool:
    """Whether ranks that compile this graph may communicate, or may get different code."""
    return _differs(config, _OTHER_SETTINGS) or (_differs(config, _PASSES_OF_COLLECTIVES) and _has_collectives(gm))


def _differs(config: Any, expected: Mapping[str, object]) -> bool:
    for name, value in expected.items():
        setting = config
        for part in name.split("."):
            setting = getattr(setting, part, value)
        if setting != value:
            return True
    return False


def _graphs_of(gm: Any) -> Iterator[Any]:
    """The graph and those inside it."""
    for module in gm.modules() if hasattr(gm, "modules") else ():
        if hasattr(module, "graph"):
            yield module.graph


def _has_collectives(gm: Any) -> bool:
    namespaces = (getattr(node.target, "namespace", "") for graph in _graphs_of(gm) for node in graph.nodes)
    return any("c10d" in namespace or "symm_mem" in namespace for namespace in namespaces)


def _only_device(gm: Any, example_inputs: Any) -> int | None:
    """The number of the GPU, if the graph uses the current one and no other."""
    import torch

    devices = {value.device for value in example_inputs if isinstance(value, torch.Tensor)}
    for graph in _graphs_of(gm):
        for node in graph.nodes:
            value = node.meta.get("val")
            values = value if isinstance(value, tuple | list) else (value,)
            devices |= {part.device for part in values if isinstance(part, torch.Tensor)}
            devices |= {part for part in (*node.args, *node.kwargs.values()) if isinstance(part, torch.device)}
    numbers = {device.index for device in devices if device.type == "cuda"}
    return torch.cuda.current_device() if numbers == {torch.cuda.current_device()} else None


def _current_device(example_inputs: Any) -> int | None:
    import torch

    devices = [value.device for value in example_inputs if isinstance(value, torch.Tensor)]
    numbers = {device.index for device in devices if device.type == "cuda"}
    if not numbers:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return numbers.pop() if len(numbers) == 1 else None


def _shared_key(
    codecache: Any, gm: Any, example_inputs: Any, fx_kwargs: Any, inputs_to_check: Any, device: int
) -> str | None:
    """The key that torch would use, but without the number of the device. None: this torch has no such keys."""
    if "device_id_agnostic" not in inspect.signature(codecache.FxGraphCachePickler).parameters:
        return None
    details = codecache.FxGraphHashDetails(gm, example_inputs, fx_kwargs, inputs_to_check)
    if hasattr(details, "default_cuda_device_index"):
        details.default_cuda_device_index = 0
    boxed = details.fx_kwargs.get("boxed_forward_device_index")
    if boxed is not None and boxed.value == device:
        details.fx_kwargs["boxed_forward_device_index"] = type(boxed)(0)
    has_own_kernels = len(details.user_defined_triton_source) != 0
    pickler = codecache.FxGraphCachePickler(gm, has_own_kernels, device_id_agnostic=True)
    content = relocate_bytes(pickler.dumps(details), device, 0)
    return f"f{codecache.sha256_hash(content)}{_SHARED}"


def _key_for_device(key: str, device: int | None) -> str:
    return key.removesuffix(_SHARED) + f"-gpu{device}"
