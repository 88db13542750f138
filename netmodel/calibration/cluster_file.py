"""A cluster's file with other parameters: everything in it stays as its author wrote it but the calibration.

In: the text of a cluster's file and `Parameters`. Out: the text with a new `[calibration]` table at its end.
"""

from __future__ import annotations

import re

from netmodel.cluster.parameters import Parameters, written_parameters

_TABLE = re.compile(r"\s*\[+\s*([A-Za-z0-9_-]+)")


def with_calibration(text: str, parameters: Parameters) -> str:
    """The text of a cluster's file with these parameters."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        table = _TABLE.match(line)
        if table:
            inside = table[1] == "calibration"
        if not inside:
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n\n" + written_parameters(parameters)
