"""Tables and figures of commands as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click


def print_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> None:
    """Rows as aligned columns, of which those in `right` are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())
