"""Durations of kernels by signature, and the sources of compiled kernels that a run keeps for replays."""

from __future__ import annotations

from pathlib import Path

from maya.devices import load_device
from maya.estimators.features import KernelLaunch
from maya.estimators.features.inductor import InductorSources
from maya.replay.kernel_durations import KernelDurations
from maya.trace import RecordKind


def test_a_malformed_signature_still_has_a_duration() -> None:
    durations = KernelDurations(load_device("h100"))
    kernel, library = durations.answers([(RecordKind.KERNEL, "foo", "", 0), (RecordKind.LIBRARY, "", "", 0)])
    assert kernel > 0
    assert library > 0


SOURCE = """
@triton_heuristics.pointwise(
    size_hints={{'x': {size}}},
    inductor_meta={{'grid_type': 'Grid1D'}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}}}},
)
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = {size}
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tl.store(out_ptr0 + (x0), tmp0, None)
"""


def _source(folder: Path, name: str, size: int) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(SOURCE.format(size=size))


def _sizes(sources: InductorSources, blocks: int) -> dict[str, int] | None:
    found = sources.of(KernelLaunch("kernel", "triton_poi_fused_add_0", grid=(blocks, 1, 1), block=(128, 1, 1)))
    return None if found is None else found.sizes


def test_a_replay_uses_the_kernel_sources_of_the_run(tmp_path: Path) -> None:
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    _source(cache, "mm/one.py", 1 << 20)
    running = InductorSources(cache, keep=kept)
    assert _sizes(running, 1024) == {"x": 1 << 20}
    assert _sizes(running, 7) is None
    _source(cache, "aa/two.py", (1 << 20) - 5)  # fits as well, and would come first; but the run is under way
    assert _sizes(running, 1024) == {"x": 1 << 20}
    _source(cache, "zz/three.py", 7 * 256)  # fits what nothing fitted: decided already
    assert _sizes(running, 7) is None
    assert _sizes(running, 14) == {"x": 7 * 256}  # new sources are found

    replayed = InductorSources(kept)
    assert [_sizes(replayed, blocks) for blocks in (1024, 7, 14)] == [{"x": 1 << 20}, None, {"x": 7 * 256}]
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*.py")) == ["mm/one.py", "zz/three.py"]
    assert _sizes(InductorSources(cache), 1024) == {"x": (1 << 20) - 5}
