"""Shows what ranks write to standard error after they have failed, equal lines of several ranks once.

In: the files that failed ranks write to (maya_fold_errors in rank_runtime/shim/device/report.c). Out: each line on the
console as soon as a first rank has written it, and sentences at the end about lines that are not shown. Lines are equal
if they differ only in the rank's own number, times and addresses. Of lines that differ in other numbers as well, the
first two are shown, and the files are kept.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rank_runtime.zygote.equal_tracebacks import without_own

_NAME = re.compile(r"stderr-(\d+)")
_MOST_VARIANTS = 2  # of lines that differ in numbers only


class FoldedLines:
    """The standard error of failed ranks. A `Follower` calls `show`."""

    def __init__(self, folder: Path, console: TextIO) -> None:
        """`folder` is created for the ranks."""
        self._folder = folder
        self._console = console
        self._files: dict[int, _RankFile] = {}
        self._known: set[tuple[str, int]] = set()  # line, and how often its rank has written it before
        self._variants: Counter[tuple[str, int]] = Counter()  # of such a line without numbers
        self._equal = 0  # lines that are not shown because another rank's are equal
        self._similar = 0  # ... or differ in numbers only
        folder.mkdir(parents=True, exist_ok=True)

    def show(self, *, complete: bool) -> bool:
        """Write lines to the console that no rank has written before; return whether there are any."""
        shown = [text for rank in self._ranks() for text in self._new_lines(rank, complete)]
        if shown:
            self._console.write("".join(f"{text}\n" for text in shown))
            self._console.flush()
        return bool(shown)

    def close(self) -> list[str]:
        """Say which lines were not shown; remove the folder, unless some of them say something else."""
        if not self._similar:
            shutil.rmtree(self._folder, ignore_errors=True)
        sentences = (
            (self._equal, "equal to those of other ranks"),
            (self._similar, f"but for numbers equal to those of other ranks; all lines are in {self._folder}"),
        )
        return [f"{count} more lines on standard error were {which}" for count, which in sentences if count]

    def _ranks(self) -> list[int]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - twenty times a second
        except OSError:
            return []
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def _new_lines(self, rank: int, complete: bool) -> Iterator[str]:
        file = self._files.setdefault(rank, _RankFile(self._folder / f"stderr-{rank}"))
        for line in file.new_lines(complete):
            text = without_own(line, str(rank))
            file.written[text] += 1
            occurrence = file.written[text]
            rough = (re.sub(r"\d+", "0", text), occurrence)
            if (text, occurrence) in self._known:
                self._equal += bool(line.strip())
            elif self._variants[rough] == _MOST_VARIANTS:
                self._similar += 1
            else:
                self._known.add((text, occurrence))
                self._variants[rough] += 1
                yield _with_rank(line, rank)


class _RankFile:
    """The file of one rank, read up to a position."""

    def __init__(self, path: Path) -> None:
        self.written: Counter[str] = Counter()  # how often the rank has written a line
        self._path = path
        self._position = 0
        self._begun = b""

    def new_lines(self, complete: bool) -> list[str]:
        """An unfinished last line counts only when the file is complete."""
        try:
            if self._path.stat().st_size > self._position:
                with self._path.open("rb") as file:  # not kept open: there may be thousands
                    file.seek(self._position)
                    content = file.read()
                self._position += len(content)
                self._begun += content
        except OSError:
            return []
        *lines, self._begun = self._begun.split(b"\n")
        if complete and self._begun:
            lines.append(self._begun)
            self._begun = b""
        return [line.decode(errors="replace") for line in lines]


def _with_rank(line: str, rank: int) -> str:
    """The line as torch shows it, which begins lines with the rank."""
    named = not line.strip() or line.startswith((f"[rank{rank}]", f"maya: [rank {rank}]"))
    return line if named else f"[rank{rank}]: {line}"
