"""A trace as pandas DataFrames: a row for each record, with kind and name as text, or a row for each op.

In: the records and ops of a `Trace`, and its signatures. Out: DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from maya.trace.format import Flag, RecordKind
from maya.trace.signature_names import kind_name, readable_kernel_names, signature_name
from maya.util.dataframes import dataframe

if TYPE_CHECKING:
    import pandas

_OPS = (RecordKind.OP, RecordKind.ANNOTATION)


def records_dataframe(
    records: npt.NDArray[np.void],
    ops: npt.NDArray[np.void],
    signature: Callable[[int], dict[str, Any]],
    *,
    demangle: bool,
) -> pandas.DataFrame:
    """The records without ops and annotations, in order."""
    records = records[~np.isin(records["kind"], np.array(_OPS, dtype=np.uint8))]
    numbers, which = np.unique(records["signature"], return_inverse=True)
    signatures = [signature(number) for number in numbers.tolist()]
    kernels = [str(each["kernel"]) for each in signatures if "kernel" in each]
    readable = readable_kernel_names(kernels) if demangle else {}
    names = np.array([signature_name(each, readable) for each in signatures], dtype=object)
    kinds, kind = np.unique(records["kind"], return_inverse=True)
    kind_names = np.array([kind_name(number) for number in kinds.tolist()], dtype=object)
    op_names = dict(zip(ops["op"].tolist(), ops["name"].tolist(), strict=True))
    return dataframe(
        {
            "host_ns": records["host_ns"].astype(np.int64),
            "kind": kind_names[kind.reshape(-1)],
            "name": names[which.reshape(-1)],
            "stream": records["stream"],
            "thread": records["thread"],
            "value": records["value"],
            "op": records["op"],
            "op_name": [op_names.get(number, "") for number in records["op"].tolist()],
            "signature": records["signature"],
            "from_graph": (records["flags"] & Flag.FROM_GRAPH) != 0,
        }
    )


def ops_dataframe(ops: npt.NDArray[np.void]) -> pandas.DataFrame:
    """The ATen ops and annotations, in the order in which they began."""
    return dataframe(
        {
            "op": ops["op"],
            "name": ops["name"],
            "parent": ops["parent"],
            "start_ns": ops["start_ns"].astype(np.int64),
            "duration_ns": ops["duration_ns"].astype(np.int64),
            "thread": ops["thread"],
            "kind": [kind_name(kind) for kind in ops["kind"].tolist()],
            "sequence": ops["sequence"],
            "inputs": ops["inputs"],
        },
        "op",
    )
