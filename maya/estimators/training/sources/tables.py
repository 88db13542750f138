"""Tables as columns of text: CSV, CSV packed with gzip, and Parquet where pyarrow is installed.

In: the path of a table. Out: its columns by name. A table that is absent raises FileNotFoundError.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path


def find_table(folder: Path, name: str) -> Path:
    """The table `name` in a folder: as .csv, .csv.gz or .parquet."""
    for suffix in (".csv", ".csv.gz", ".parquet"):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder / name}.csv (or .csv.gz, .parquet) does not exist")


def read_columns(path: Path, wanted: tuple[str, ...]) -> dict[str, list[str]]:
    """Some columns of a table, as text."""
    if path.suffix == ".parquet":
        return _read_parquet(path, wanted)
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as stream:
        rows = csv.reader(stream)
        names = next(rows, [])
        positions = [_position(path, names, name) for name in wanted]
        columns: list[list[str]] = [[] for _ in wanted]
        for row in rows:
            for column, position in zip(columns, positions, strict=True):
                column.append(row[position] if position < len(row) else "")
    return dict(zip(wanted, columns, strict=True))


def rows_of(columns: dict[str, list[str]]) -> Iterator[tuple[str, ...]]:
    return zip(*columns.values(), strict=True)


def _position(path: Path, names: list[str], name: str) -> int:
    if name not in names:
        raise ValueError(f"{path}: no column {name!r}; it has: {', '.join(names)}")
    return names.index(name)


def _read_parquet(path: Path, wanted: tuple[str, ...]) -> dict[str, list[str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: reading Parquet needs pyarrow; install it, or convert the table to CSV under the same name"
        ) from None
    table = parquet.read_table(path, columns=list(wanted))
    return {name: ["" if value is None else str(value) for value in table[name].to_pylist()] for name in wanted}
