"""Works and collectives in words: what a reader of the page sees when pointing at them.

In: programs of a timeline. Out: `Activity`, and rows that are the same text are one.
"""

from __future__ import annotations

from maya.estimators.features.from_trace import TracedKernel
from maya.estimators.kernel import Estimate
from maya.replay.rank_class import CollectiveCall, RankClass
from maya.report.content import Activity
from maya.results.time_classes import CLASSES, TimeClass, classify
from maya.trace.demangle import demangle
from maya.trace.describe import shortened
from maya.util.text import bytes_text

_LONGEST_NAME = 120
_LONGEST_DETAIL = 160
_MOST_TENSORS = 4
_USUAL_NAMESPACES = ("at::native::", "(anonymous namespace)::")  # of nearly every kernel of torch


class ActivityLabels:
    """Rows for everything that is shown."""

    def __init__(self, network_origin: str) -> None:
        self.activities: list[Activity] = []
        self._numbers: dict[Activity, int] = {}
        self._network_origin = network_origin
        self._of_kernels: dict[
            int, tuple[RankClass, list[Activity]]
        ] = {}  # by id; the program is kept, so that it stays its own

    def number(self, row: Activity) -> int:
        """Its place in `rows`."""
        if row not in self._numbers:
            self._numbers[row] = len(self.activities)
            self.activities.append(row)
        return self._numbers[row]

    def of_kernels(self, rank_class: RankClass) -> list[Activity]:
        """A row for each of the program's works."""
        known = self._of_kernels.get(id(rank_class))
        if known is None:
            known = self._of_kernels[id(rank_class)] = rank_class, _activities_of_kernels(rank_class)
        return known[1]

    def of_calls(self, rank_class: RankClass, communicators: dict[int, tuple[int, ...]]) -> list[Activity]:
        """A row for each of the program's collectives and messages."""
        origin = f"network: {self._network_origin}"
        return [
            Activity(
                call_name(call), TimeClass.COMMUNICATION.value, _call_detail(call, members_of(call, communicators)),
                origin, "",
            )
            for call in rank_class.calls
        ]  # fmt: skip


def _activities_of_kernels(rank_class: RankClass) -> list[Activity]:
    names = demangle(item.launch.name for item in rank_class.kernels if item.launch.what == "kernel")
    classes = time_classes_of_kernels(rank_class)
    return [
        Activity(_name(item, names), of.value, _detail(item), _origin(estimate), _spread(estimate))
        for item, estimate, of in zip(rank_class.kernels, rank_class.estimates, classes, strict=True)
    ]


def time_classes_of_kernels(rank_class: RankClass) -> list[TimeClass]:
    """For each of the program's works, its class."""
    found = [TimeClass.OTHER] * len(rank_class.kernels)
    for work, number in zip(rank_class.kernel.tolist(), classify(rank_class).tolist(), strict=True):
        if work >= 0:
            found[work] = CLASSES[number]
    return found


def call_name(call: CollectiveCall) -> str:
    return call.call.removeprefix("nccl")


def members_of(call: CollectiveCall, communicators: dict[int, tuple[int, ...]]) -> int:
    return len(communicators.get(call.communicator, ()))


def _name(item: TracedKernel, names: dict[str, str]) -> str:
    launch = item.launch
    if launch.what == "copy":
        return f"Memcpy {launch.name}"
    if launch.what == "memset":
        return "Memset"
    name = names.get(launch.name, launch.name)
    for namespace in _USUAL_NAMESPACES:
        name = name.replace(namespace, "")
    return shortened(name, _LONGEST_NAME)


def _detail(item: TracedKernel) -> str:
    launch = item.launch
    if launch.what in ("copy", "memset"):
        return bytes_text(launch.bytes)
    shown = launch.tensors[:_MOST_TENSORS]
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in shown))
    shapes = ["×".join(map(str, tensor.shape)) or "scalar" for tensor in shown]
    more = [f"{len(launch.tensors) - len(shown)} more"] if len(launch.tensors) > len(shown) else []
    parts = [launch.op.removeprefix("aten::"), "/".join(dtypes), " · ".join([*shapes, *more])]
    return shortened(" ".join(filter(None, parts)), _LONGEST_DETAIL)


def _origin(estimate: Estimate) -> str:
    return f"{estimate.origin.value} ({estimate.note})" if estimate.note else estimate.origin.value


def _spread(estimate: Estimate) -> str:
    return f"{100 * estimate.spread:.0f} %" if estimate.spread else ""


def _call_detail(call: CollectiveCall, members: int) -> str:
    who = f"{members} rank{'s' if members != 1 else ''}" if members else ""
    return " · ".join(filter(None, [bytes_text(call.size), call.dtype, who]))
