"""Labels of kernels and collectives, which the page shows in tables and tooltips.

In: the rank classes of a timeline. Out: `Activity`s; those with the same texts are one.
"""

from __future__ import annotations

from maya.estimators.features.from_trace import TracedKernel
from maya.estimators.kernel import Estimate
from maya.replay.rank_class import CollectiveCall, RankClass, once_per_rank_class
from maya.report.content import Activity
from maya.results.time_classes import CLASSES, TimeClass, classify
from maya.trace.demangle import demangle
from maya.trace.describe import shortened
from maya.util.text import bytes_text

_LONGEST_NAME = 120
_LONGEST_DETAIL = 160
_MOST_TENSORS = 4
_USUAL_NAMESPACES = ("at::native::", "(anonymous namespace)::")  # in nearly every kernel of torch


class ActivityLabels:
    """All activities on a page, numbered."""

    def __init__(self, network_origin: str) -> None:
        self.activities: list[Activity] = []
        self._numbers: dict[Activity, int] = {}
        self._network_origin = network_origin

    def number(self, activity: Activity) -> int:
        """The position of an activity in `activities`."""
        if activity not in self._numbers:
            self._numbers[activity] = len(self.activities)
            self.activities.append(activity)
        return self._numbers[activity]

    def of_kernels(self, rank_class: RankClass) -> list[Activity]:
        """An activity for each kernel of a rank class."""
        return _activities_of_kernels(rank_class)

    def of_calls(self, rank_class: RankClass, communicators: dict[int, tuple[int, ...]]) -> list[Activity]:
        """An activity for each collective, send and recv of a rank class."""
        origin = f"network: {self._network_origin}"
        return [
            Activity(
                call_name(call), TimeClass.COMMUNICATION.value, _call_detail(call, members_of(call, communicators)),
                origin, "",
            )
            for call in rank_class.calls
        ]  # fmt: skip


@once_per_rank_class
def _activities_of_kernels(rank_class: RankClass) -> list[Activity]:
    names = demangle(item.launch.name for item in rank_class.kernels if item.launch.what == "kernel")
    classes = time_classes_of_kernels(rank_class)
    return [
        Activity(_name(item, names), of.value, _detail(item), _origin(estimate), _spread(estimate))
        for item, estimate, of in zip(rank_class.kernels, rank_class.estimates, classes, strict=True)
    ]


def time_classes_of_kernels(rank_class: RankClass) -> list[TimeClass]:
    """The time class of each kernel of a rank class."""
    found = [TimeClass.OTHER] * len(rank_class.kernels)
    for kernel, number in zip(rank_class.kernel.tolist(), classify(rank_class).tolist(), strict=True):
        if kernel >= 0:
            found[kernel] = CLASSES[number]
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
