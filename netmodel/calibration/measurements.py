"""Read measured collectives: the output of nccl-tests, or CSV.

In: a file. Out: `Measurement`s, or one `MeasurementError` that names the file, the line and what was expected.

CSV files have a header with these columns, in any order and with others besides: `op` (all_reduce, all_gather,
reduce_scatter, broadcast, reduce, alltoall, sendrecv), `nranks`, `nodes`, `size_bytes` (as nccl-tests counts),
`time_us` (or `time_us_oop`); and optionally `gpus_per_node`, `dtype`, `algo`, `proto`. Files that end in .gz are read
compressed.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

OPERATION_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
COLUMNS = ("op", "nranks", "nodes", "size_bytes", "time_us")
_TYPES = {
    "half": "float16", "float16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16", "float": "float32",
    "float32": "float32", "double": "float64", "float64": "float64", "int8": "int8", "uint8": "uint8",
    "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64", "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device")
_COMMAND = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|sendrecv)_perf\b")


_MOST_BYTES, _MOST_RANKS = 1 << 60, 1 << 24


class MeasurementError(ValueError):
    """A file of measurements cannot be parsed."""


@dataclass(frozen=True)
class Measurement:
    """One measured collective. Members are the first GPUs of each node."""

    operation: str
    size: int
    nodes: int
    ranks: int
    us: float
    dtype: str = "float32"
    algorithm: str = ""  # "" where NCCL chose
    protocol: str = ""

    @property
    def series(self) -> tuple[str, int, int, str, str, str]:
        """The key of measurements that differ only in size."""
        return self.operation, self.nodes, self.ranks, self.dtype, self.algorithm, self.protocol


def operation_of(name: str) -> str:
    """Our name of an operation, from any common spelling."""
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "").removesuffix("perf")
    if plain not in OPERATION_NAMES:
        raise ValueError(f'"{name}" is not an operation; expected one of {", ".join(OPERATION_NAMES.values())}')
    return OPERATION_NAMES[plain]


def read_measurements(
    path: Path, *, operation: str = "", ranks: int = 0, nodes: int = 0, where: Mapping[str, str] | None = None
) -> list[Measurement]:
    """All measurements in a file. `operation`, `ranks` and `nodes` apply where the text does not state them; `where`
    selects rows of a CSV by a column and a part of its value."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise MeasurementError(f"{path}: cannot be read: {error}") from error
    head = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    try:
        if "," in head and "size_bytes" in head.lower():
            found = list(_csv(str(path), text, where or {}))
        else:
            found = list(_nccl_tests(str(path), text, operation, ranks, nodes))
    except csv.Error as error:
        raise MeasurementError(f"{path}: cannot be read as CSV: {error}") from error
    if not found:
        raise MeasurementError(
            f"{path}: no measurements; expected nccl-tests' output, or CSV with the columns {', '.join(COLUMNS)}"
        )
    return found


def _csv(where: str, text: str, wanted: Mapping[str, str]) -> Iterable[Measurement]:
    rows = csv.DictReader(io.StringIO(text))
    names = {name.strip().lower(): name for name in rows.fieldnames or ()}
    time_column = names.get("time_us") or names.get("time_us_oop")
    missing = [column for column in COLUMNS[:-1] if column not in names]
    if missing or time_column is None:
        raise MeasurementError(
            f"{where}: the header has no {', '.join([*missing, *([] if time_column else ['time_us'])])}; "
            f"columns that are needed: {', '.join(COLUMNS)}"
        )
    for column in wanted:
        if column.lower() not in names:
            raise MeasurementError(f'{where}: there is no column "{column}" to pick rows by; it has {", ".join(names)}')
    for row in rows:
        if any(part not in (row[names[column.lower()]] or "") for column, part in wanted.items()):
            continue

        def value(column: str, row: Mapping[str, str | None] = row) -> str:
            return (row[names[column]] or "").strip() if column in names else ""

        try:
            us = float(row[time_column] or "nan")
            if not 0 < us < float("inf"):
                continue
            algorithm = value("algo").lower()
            yield Measurement(
                operation_of(value("op")),
                _whole("size_bytes", value("size_bytes"), _MOST_BYTES),
                _whole("nodes", value("nodes"), _MOST_RANKS),
                _whole("nranks", value("nranks"), _MOST_RANKS),
                us,
                _TYPES.get(value("dtype").lower(), "float32"),
                "" if algorithm in ("", "auto") else algorithm,
                value("proto").lower(),
            )
        except ValueError as error:
            raise MeasurementError(f"{where}:{rows.line_num}: {error}") from error


def _whole(column: str, text: str, most: int) -> int:
    number = int(text)
    if not 0 < number <= most:
        raise ValueError(f"{column} is {text}; expected a number from 1 to {most}")
    return number


def _nccl_tests(where: str, text: str, operation: str, ranks: int, nodes: int) -> Iterable[Measurement]:
    """Parse the table of any program of nccl-tests. The header line gives the columns, which differ between programs
    and versions: some have `redop` and `root`, some not; some end with `#wrong`, some with `error`."""
    lines = text.splitlines()
    hosts = {match[1]: match[2] for line in lines if (match := _RANK.search(line))}
    ranks = len(hosts) or ranks
    nodes = len(set(hosts.values())) or nodes
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if found := _COMMAND.search(line):  # several programs may have written to one file
            operation = found[1]
        plain = line.lstrip("# ").split()
        if plain[:2] == ["size", "count"] and "time" in plain:
            columns = plain
            continue
        words = line.split()
        if not columns or line.lstrip().startswith("#") or len(words) < 5 or not words[0].isdigit():
            continue
        if not operation or not ranks:
            raise MeasurementError(
                f"{where}: the text does not say which operation or how many ranks it is of; give both: "
                "--op all_reduce --ranks 8 --nodes 1"
            )
        # Old versions leave redop, or redop and root, blank where an operation has none.
        blank = ("redop", "root")[: max(0, len(columns) - len(words))]
        named = [column for column in columns if column not in blank]
        try:
            size, kind, us = int(words[0]), words[named.index("type")], words[named.index("time")]
            if us.upper() == "N/A":
                continue
            if 0 < size <= _MOST_BYTES and 0 < float(us) < float("inf"):
                dtype = _TYPES.get(kind.lower(), "float32")
                yield Measurement(operation_of(operation), size, nodes or 1, ranks, float(us), dtype)
        except (ValueError, IndexError) as error:
            raise MeasurementError(
                f"{where}:{number}: {error}; expected a row under the columns {' '.join(columns)}"
            ) from error
