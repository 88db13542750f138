"""Parts of error messages: similar names, and lists of words.

In: a word and the valid words. Out: text for the end of a message.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Known words similar to `word`, for the end of a message; "" if there are none."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f" (did you mean {listed(near, 'or')}?)" if near else ""


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """Words as in a sentence: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
