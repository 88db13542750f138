"""Searches the configurations of a published sweep, as a user would.

In: the jobs of a sweep (training_rows.py) and a folder. Out: a `SweepSearch`: what was chosen, how many trials ran, and
how long that took here. A search that is in the folder already is read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training_rows import TrainingJob

from maya.config_search.errors import SearchError
from maya.config_search.search_settings import SearchSettings
from maya.config_search.search_study import run_search

SCRIPT = Path(__file__).resolve().parent / "examples" / "train_gpt.py"
_RESULT = "sweep.json"


@dataclass(frozen=True)
class SweepSearch:
    """A finished search."""

    chosen: int  # number of the job in the table
    run: int  # trials, pruned ones included
    pruned: int
    inferred: int
    replayed: int
    minutes: float


def find_search(folder: Path) -> SweepSearch | None:
    """The search in a folder; None: there is none."""
    file = folder / _RESULT
    return SweepSearch(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def search_sweep(jobs: Sequence[TrainingJob], folder: Path) -> SweepSearch | None:
    """Search a sweep; None, with a line on stderr, if it cannot be searched as one job."""
    known = find_search(folder)
    if known is not None:
        return known
    places = {(job.gpus, job.gpu, job.cluster, job.host, job.host_op) for job in jobs}
    if len(places) > 1 or ":" in jobs[0].cluster:
        return None
    first = jobs[0]
    words = {shlex.join([*job.options, "--micro-batches", *[str(job.micro_batches)] * 3]): job.number for job in jobs}
    options: dict[str, object] = {"nproc": first.gpus, "gpu": first.gpu, "cluster": first.cluster, "host": first.host}
    if first.host_op:
        options["set"] = [f"host.op={first.host_op}"]
    settings = SearchSettings(str(SCRIPT), ("{row}",), options, space={"row": list(words)})
    try:
        found = run_search(settings, out=folder / "search")
    except SearchError as error:
        print(f"{first.sweep}: {error}")
        return None
    if found.best is None:
        return None
    answer = found.answer
    result = SweepSearch(
        chosen=words[str(found.best.configuration["row"])],
        run=answer.count("run"),
        pruned=len(answer.pruned),
        inferred=answer.count("inferred"),
        replayed=answer.count("replay"),
        minutes=round(sum(row.seconds for row in answer.rows) / 60, 1),
    )
    (folder / _RESULT).write_text(json.dumps(asdict(result)) + "\n", encoding="utf-8")
    return result
