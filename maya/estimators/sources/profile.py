"""What scripts/profile_gpu.py writes: measured works of one GPU or several, in one CSV.

In: a file with the columns kind, variant, dtype, shape (`m=4096 n=4096 k=4096 batch=1`), time_us, and device, flops,
bytes_read, bytes_written (of matrix products and attention the last three follow from the shape and may be left empty);
others are for people. Out: `Profiled` rows, or one `ProfileError` that names the file, the line and what was expected.
Files that end in .gz are read compressed.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from maya.devices import DeviceError, device_names, load_device
from maya.estimators.attention import attention_work
from maya.estimators.gemm import LAYOUTS, gemm_work
from maya.estimators.work import Kind, Work

COLUMNS = ("kind", "variant", "dtype", "shape", "time_us")

# What is held out together in training, by kind: the shapes that a new model would bring. Else: the whole shape.
GROUPED_BY: dict[Kind, tuple[str, ...]] = {
    Kind.GEMM: ("n", "k"),
    Kind.ATTENTION: ("heads", "kv_heads", "head_dim", "value_dim"),
    Kind.NORM: ("columns",),
    Kind.SOFTMAX: ("columns",),
    Kind.REDUCTION: ("columns",),
    Kind.EMBEDDING: ("columns",),
}


class ProfileError(ValueError):
    """A file that is not a profile of a GPU."""


@dataclass(frozen=True)
class Profiled:
    """One work that was measured."""

    device: str  # as CUDA names it; "" where the file does not say
    work: Work
    seconds: float
    group: str
    cold: bool = False  # the L2 cache held nothing of it
    date: str = ""


def read_profile(path: Path) -> list[Profiled]:
    """All rows of a file."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ProfileError(
            f"{path}: the header has no {', '.join(missing)}; expected what scripts/profile_gpu.py writes, "
            f"or at least the columns {', '.join(COLUMNS)}"
        )
    found = []
    for row in reader:
        try:
            profiled = _profiled({name: (value or "").strip() for name, value in row.items() if name is not None})
        except ValueError as error:
            raise ProfileError(f"{path}:{reader.line_num}: {error}") from error
        found.append(profiled)
    if not found:
        raise ProfileError(f"{path}: has a header and no rows; run scripts/profile_gpu.py on a GPU to add some")
    return found


def catalogue_key(device: str) -> str | None:
    """The catalogue's name of a GPU that CUDA names so; None if there is none, or more than one."""
    found = [key for key in device_names() if device in (key, load_device(key).name)]
    if len(found) != 1:
        return None
    return found[0]


def device_key(rows: list[Profiled], wanted: str | None) -> str:
    """The device that a profile is of: as the user says, or as its rows do."""
    if wanted is not None:
        return wanted
    names = sorted({row.device for row in rows})
    if len(names) != 1 or not names[0]:
        raise DeviceError(f"rows of {len(names)} devices ({', '.join(names) or 'not named'}); say which with --gpu")
    key = catalogue_key(names[0])
    if key is None:
        raise DeviceError(
            f'"{names[0]}" is no GPU of the catalogue, or several are named so; say which with --gpu: '
            f"one of {', '.join(device_names())}, or a TOML file of your own (maya gpus shows what is in one)"
        )
    return key


def _profiled(row: Mapping[str, str]) -> Profiled:
    seconds = _positive(row, "time_us") * 1e-6
    work = _work(row)
    names = GROUPED_BY.get(work.kind, tuple(work.shape))
    group = " ".join(f"{name}={work.shape.get(name, 0.0):g}" for name in names)
    return Profiled(row.get("device", ""), work, seconds, group, row.get("cold", "") == "1", row.get("date", ""))


def _work(row: Mapping[str, str]) -> Work:
    try:
        kind = Kind(row["kind"])
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise ValueError(f'kind "{row["kind"]}" is not known; expected one of {known}') from None
    shape = parse_shape(row["shape"])
    amounts = [row.get(name, "") for name in ("flops", "bytes_read", "bytes_written")]
    if all(amounts):
        flops, read, written = (_amount(row, name) for name in ("flops", "bytes_read", "bytes_written"))
        return Work(kind, row["dtype"], flops, read, written, shape, row["variant"])
    if kind is Kind.GEMM:
        return _gemm(row, shape)
    if kind is Kind.ATTENTION:
        return _attention(row, shape)
    raise ValueError(
        f"a {kind.value} needs flops, bytes_read and bytes_written; only those of products follow from shape"
    )


def _gemm(row: Mapping[str, str], shape: dict[str, float]) -> Work:
    m, n, k = (_dimension(shape, name) for name in ("m", "n", "k"))
    if row["variant"] not in LAYOUTS:
        raise ValueError(f'variant "{row["variant"]}" of a gemm; expected a layout: {", ".join(LAYOUTS)}')
    return gemm_work(m, n, k, batch=int(shape.get("batch", 1)), dtype=row["dtype"], layout=row["variant"])


def _attention(row: Mapping[str, str], shape: dict[str, float]) -> Work:
    batch, heads, queries, head_dim = (_dimension(shape, name) for name in ("batch", "heads", "queries", "head_dim"))
    implementation, _, direction = row["variant"].rpartition("_")
    if direction not in ("forward", "backward") or not implementation:
        raise ValueError(f'variant "{row["variant"]}" of attention; expected, for example, flash_forward')
    return attention_work(
        batch,
        heads,
        queries,
        head_dim,
        keys=int(shape.get("keys", queries)),
        kv_heads=int(shape.get("kv_heads", heads)),
        value_dim=int(shape.get("value_dim", head_dim)),
        causal=bool(shape.get("causal", 0)),
        dtype=row["dtype"],
        implementation=implementation,
        backward=direction == "backward",
    )


def parse_shape(text: str) -> dict[str, float]:
    """`m=4096 n=11008` -> {"m": 4096.0, "n": 11008.0}"""
    shape: dict[str, float] = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        try:
            shape[name] = float(value)
        except ValueError:
            equals = ""
        if not name or not equals or not math.isfinite(shape[name]) or shape[name] < 0:
            raise ValueError(f'"{item}" in shape; expected name=number, separated by blanks: m=4096 n=4096 k=4096')
    return shape


def _dimension(shape: Mapping[str, float], name: str) -> int:
    if shape.get(name, 0) < 1:
        raise ValueError(f"shape has no {name}")
    return int(shape[name])


def _amount(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f'{name} is "{row[name]}"; expected a number that is not negative')
    return value


def _positive(row: Mapping[str, str], name: str) -> float:
    value = _amount(row, name)
    if value == 0:
        raise ValueError(f"{name} is 0; nothing takes no time, so leave the row out")
    return value
