"""Rows as pandas DataFrames. pandas is optional: it is imported here, on first use, and nowhere else.

In: columns by name. Out: a DataFrame, or an ImportError that says how to install pandas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def dataframe(columns: Mapping[str, Any], index: str | None = None) -> pandas.DataFrame:
    """A DataFrame of these columns, one of which may be its index."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_pandas() needs pandas, which is not installed: pip install pandas. Without it, use to_dict()."
        ) from error
    table = pandas.DataFrame(dict(columns))
    return table if index is None else table.set_index(index)


def dataframe_of_rows(rows: Sequence[Any], names: Sequence[str], index: str | None = None) -> pandas.DataFrame:
    """A DataFrame with a row for each object, and these attributes of it as columns."""
    return dataframe({name: [getattr(row, name) for row in rows] for name in names}, index)
