"""The parts of a prediction as plain objects: integers of nanoseconds and bytes, floats, text.

In: nothing; prediction_figures.py fills them in. Out: frozen dataclasses with `to_dict()`, some with `to_pandas()`, and
`FigureTable`s of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, overload

from maya.util.dataframes import dataframe, dataframe_of_rows

if TYPE_CHECKING:
    import pandas

RowT = TypeVar("RowT", bound="PlainFigures")


@dataclass(frozen=True)
class PlainFigures:
    """What all of them can do."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as dicts, tuples, numbers and text."""
        return asdict(self)


@dataclass(frozen=True)
class JobSettings(PlainFigures):
    """Where and how a job runs: the settings of run.json that decide its times."""

    script: str
    world_size: int
    ranks_per_node: int
    gpu: str  # a name in the catalogue, or a file
    cluster: str
    network: str  # "analytic" or "flow"
    host: str
    host_time: str  # "model", "zero" or "measured"
    clock: str  # "virtual" or "wall"
    changes: Mapping[str, str] = field(default_factory=dict)  # by --set
    nccl: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables
    packs: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()  # of links
    injected: tuple[str, ...] = ()  # by --inject
    schedule_seed: int | None = None

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.ranks_per_node)


@dataclass(frozen=True)
class StepFigures(PlainFigures):
    """The training steps of a job."""

    step_time_ns: int  # the median of the measured steps
    lengths_ns: tuple[int, ...]  # of every step
    measured: tuple[int, ...]  # indices of the steps that count: neither warm-up nor skipped
    warm_up: int  # steps at the beginning that do not count
    skipped: tuple[int, ...]  # steps with a batch after which no optimizer stepped
    source: str  # what marks a step: "optimizer", "update", …, "run", or an annotation's name
    note: str

    def __len__(self) -> int:
        return len(self.lengths_ns)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each step: length_ns, measured."""
        numbers = range(len(self.lengths_ns))
        measured = [number in self.measured for number in numbers]
        return dataframe({"step": numbers, "length_ns": self.lengths_ns, "measured": measured}, "step")


@dataclass(frozen=True)
class BreakdownFigures(PlainFigures):
    """Where the time of a step goes: the mean over the measured steps, by class. The classes of a rank add up to its
    step; hidden communication runs beside computation and is no part of it."""

    mean_ns: Mapping[str, int]  # mean over all ranks, by class: "gemm", "communication", "host_bound", …
    hidden_communication_ns: int  # mean over all ranks
    ranks: tuple[Mapping[str, int], ...]  # by rank
    rank_hidden_communication_ns: tuple[int, ...]

    def __getitem__(self, name: str) -> int:
        return self.mean_ns[name]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each rank and a column for each class, all in nanoseconds."""
        columns = {f"{name}_ns": [rank[name] for rank in self.ranks] for name in self.mean_ns}
        hidden = {"hidden_communication_ns": self.rank_hidden_communication_ns}
        return dataframe({"rank": range(len(self.ranks)), **columns, **hidden}, "rank")


@dataclass(frozen=True)
class RankFigures(PlainFigures):
    """One rank in the mean measured step."""

    rank: int
    step_time_ns: int
    own_ns: int  # its own work: without communication, waiting and idle time
    communication_ns: int
    hidden_communication_ns: int
    peak_memory_bytes: int | None  # None: the rank did not use its GPU


@dataclass(frozen=True)
class RankMemory(PlainFigures):
    """The memory that one rank needs, at its peak."""

    rank: int
    allocated_bytes: int  # torch.cuda.max_memory_allocated
    reserved_bytes: int  # torch.cuda.max_memory_reserved
    workspaces_bytes: int  # allocated without PyTorch's allocator
    nccl_bytes: int
    context_bytes: int
    total_bytes: int  # as nvidia-smi would show it


@dataclass(frozen=True)
class MemoryFigures(PlainFigures):
    """The memory that the job needs."""

    capacity_bytes: int  # of a GPU
    peak_bytes: int  # of the rank that needs most
    peak_rank: int
    ranks: tuple[RankMemory, ...]  # those that used their GPU

    @property
    def fits(self) -> bool:
        """Whether every rank's memory fits, without the cache of PyTorch's allocator."""
        needs = (rank.total_bytes - rank.reserved_bytes + rank.allocated_bytes for rank in self.ranks)
        return max(needs, default=0) <= self.capacity_bytes

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each rank."""
        return dataframe_of_rows(self.ranks, [each.name for each in fields(RankMemory)], "rank")


@dataclass(frozen=True)
class SpeedFigures(PlainFigures):
    """Throughput, utilisation and cost. None: not known, and `unknown` says why."""

    gpus: int
    unit: str | None  # "tokens" or "images"
    samples_per_step: int | None
    samples_per_second: float | None
    samples_per_second_per_gpu: float | None
    unknown: str
    flops_per_step: float
    recomputed_flops_per_step: float
    mfu: float | None
    hfu: float | None
    gpu_hours_per_step: float
    price_per_step: float | None


@dataclass(frozen=True)
class CollectiveFigures(PlainFigures):
    """All calls of one collective, by size and number of members, of all ranks in the typical step."""

    call: str
    size_bytes: int
    ranks: int  # members
    calls: int
    total_ns: int
    mean_ns: int
    bus_bytes_per_second: int  # as nccl-tests counts; 0: no link is used
    waiting_ns: int  # until the last member arrived, in all calls together


@dataclass(frozen=True)
class KernelFigures(PlainFigures):
    """All launches of one kernel with the same sizes, of all ranks in the typical step."""

    name: str
    detail: str  # op and sizes
    time_class: str  # a key of `breakdown`
    total_ns: int
    share: float  # of the time of all kernels
    launches: int
    mean_ns: int
    origin: str  # of the duration: "measured", "model", "roofline" or "default"
    spread: float  # expected relative error


class FigureTable(Sequence[RowT]):
    """Rows of the same kind, in order."""

    def __init__(self, row_type: type[RowT], rows: Iterable[RowT], index: str | None = None) -> None:
        self._columns = [each.name for each in fields(row_type)]
        self._rows = tuple(rows)
        self._index = index

    @overload
    def __getitem__(self, index: int) -> RowT: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RowT, ...]: ...
    def __getitem__(self, index: int | slice) -> RowT | tuple[RowT, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self._columns)}>"

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict for each row."""
        return [row.to_dict() for row in self._rows]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with the fields of the rows as columns."""
        return dataframe_of_rows(self._rows, self._columns, self._index)
