"""The error of a search that cannot be run as asked for."""

from __future__ import annotations


class SearchError(ValueError):
    """The text says what is wrong, where, and what to do."""
