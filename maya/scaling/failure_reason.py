"""Why a size of a study has no figures, in one line.

In: the job's output and how it ended. Out: the first Python exception with its source line, an error message of the
script's own, or Maya's own message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 240
_PREFIX = r"(?P<who>(?:\[[\w ]+\]: ?)*)"  # "[rank0]: ", "[default0]:"
_PLACE = re.compile(rf'^{_PREFIX}\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(rf"^{_PREFIX}(?P<text>(?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)$")
_USAGE = re.compile(rf"^{_PREFIX}(?P<text>\S+: error: .+)$")
_FAILED = re.compile(r"^\S.* FAILED$")
_EXIT_CODE = re.compile(r"^\s*exitcode  : (?P<text>-?\d+)")
_ROOT_CAUSE = re.compile(r"^\s*traceback : (?P<text>.+)$")
_OWN = re.compile(r"^maya-torchrun: (?P<text>.+)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")


def reason(lines: Sequence[str], exit_code: int, *, hang: str = "", unpredicted: str = "") -> str:
    """`hang`: the first line of the hang's report; `unpredicted`: why a job that succeeded has no prediction."""
    if exit_code == 0:
        return f"no prediction: {unpredicted or 'the run left no summary.json'}"
    usage = next((found["text"] for line in lines if (found := _USAGE.match(line))), "")
    own = next((found["text"] for line in reversed(lines) if (found := _OWN.match(line))), "")
    return hang or exception_in(lines) or _cut(usage or _rank_exit(lines) or own or f"exit code {exit_code}")


def _rank_exit(lines: Sequence[str]) -> str:
    """A rank that ended without an exception, as the block at the end of a failed job describes it."""
    end = next((at for at, line in enumerate(lines) if _FAILED.match(line)), None)
    if end is None:
        return ""
    causes = [found["text"] for line in lines[end:] if (found := _ROOT_CAUSE.match(line))]
    if causes and causes[-1].startswith("Signal"):
        return causes[-1]
    codes = [found["text"] for line in lines[end:] if (found := _EXIT_CODE.match(line))]
    last = next((line for line in reversed(lines[: end - 1]) if line.strip() and not _OWN.match(line)), "")
    text = f"a rank ended with exit code {codes[-1]}" if codes else "a rank failed"
    return f"{text}; the last line before: {last}" if last else text


def exception_in(lines: Sequence[str]) -> str:
    """The first exception in the output, with the line that raised it: the user's own, or else the innermost."""
    places: dict[str, list[tuple[str, str]]] = {}  # ranks write at the same time, each with its own prefix
    for line in lines:
        if found := _PLACE.match(line):
            places.setdefault(found["who"], []).append((found["file"], found["line"]))
        elif (found := _EXCEPTION.match(line)) and (seen := places.get(found["who"])):
            file, number = next((each for each in reversed(seen) if not _LIBRARY.search(each[0])), seen[-1])
            return f"{_cut(found['text'])} ({file.rpartition('/')[2]}:{number})"
    return ""


def _cut(text: str) -> str:
    """A long text up to the end of a sentence."""
    if len(text) <= _LONGEST:
        return text
    end = text.rfind(". ", _LONGEST // 2, _LONGEST)
    return f"{text[: end + 1 if end > 0 else _LONGEST]} …"
