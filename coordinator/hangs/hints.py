"""Recognizes well-known mistakes in a report.

In: a report (hang_report.py). Out: sentences, the most likely first. A hint says where to look; it is not a proof.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.hangs.user_source import mentions, rank_condition
from coordinator.membership import DUPLICATE_GPU
from maya.util.ranks import ranks_text

_MOST = 3
_OWN_GPU = (
    'every rank needs a GPU of its own: call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first '
    "collective, and do not let CUDA_VISIBLE_DEVICES show the ranks of a node the same GPU only"
)
_NO_SYNC = "DDP reduces gradients in every backward() outside no_sync(): all ranks must enter and leave it alike"


def hints_for(report: dict[str, Any]) -> list[str]:
    """The most likely mistakes, at most three."""
    groups = report["groups"]
    if (report["problem"] or "").startswith(DUPLICATE_GPU):
        return [_OWN_GPU]
    found = [
        *_conditions(groups),
        *_mismatch(report),
        *_shift(report["divergence"]),
        *_data_parallel(groups),
        *_p2p(groups),
        *_ended(groups),
        *_new_groups(groups),
        *_different_groups(groups),
        *_locks(groups),
    ]
    return list(dict.fromkeys(found))[:_MOST]


# ---- conditions on the rank around a call ----


def _has_posted_p2p(group: dict[str, Any]) -> bool:
    """Whether a group of a mismatch posted a send or recv."""
    return bool(group["doing"].startswith(("posted send", "posted receive")))


def _is_p2p(group: dict[str, Any]) -> bool:
    if _has_posted_p2p(group):
        return True
    return (group["call"] or {}).get("peer") is not None or group["function"] in ("send", "recv", "isend", "irecv")


def _conditions(groups: list[dict[str, Any]]) -> list[str]:
    found = []
    for group in groups:
        place = group["called_at"]
        if place is None or _is_p2p(group):
            continue
        if group["state"] not in ("waits", "posted") and "other ranks" not in group["doing"]:
            continue
        inside = rank_condition(place["file"], place["line"])
        if inside is not None:
            first, condition = inside
            name = Path(place["file"]).name
            found.append(
                f"{name}:{place['line']} is inside {condition} ({name}:{first}): a collective must be called by "
                "all ranks of its group"
            )
    return found


# ---- patterns ----


def _in_stack(group: dict[str, Any], *words: str) -> bool:
    return any(all(word in f"{frame['file']} {frame['function']}" for word in words) for frame in group["stack"])


def _mismatch(report: dict[str, Any]) -> list[str]:
    """Compare the words of the posts: `all_reduce of 8 fp32 sum`, `broadcast of 8 fp32 from rank 0`."""
    if report["kind"] != "mismatch":
        return []
    if any(_has_posted_p2p(group) for group in report["groups"]):
        return ["a send and its receive must have the same number of bytes"]
    posts = [group["doing"].removeprefix("posted ").split() for group in report["groups"] if group["state"] == "posted"]
    different = [len({tuple(post[start:end]) for post in posts}) > 1 for start, end in ((0, 1), (2, 3), (3, 4), (4, 9))]
    if len(posts) < 2 or not any(different):
        return []
    if different[0]:
        return ["the ranks call collectives of one group in different orders, or one of them calls one more"]
    if different[1]:
        return ["the ranks pass tensors of different sizes: parameters, an uneven batch, or another call"]
    if different[2]:
        return ["the ranks pass tensors of different types: mixed precision on some of them only"]
    if posts[0][0] in ("broadcast", "reduce", "gather", "scatter"):
        return ["all ranks of the group must name the same root, by its global rank; not each its own"]
    return ["the ranks ask for different reductions"]


def _shift(divergence: dict[str, Any] | None) -> list[str]:
    """Different calls of the same size, which NCCL matches with each other."""
    calls = [each["called"] for each in divergence["then"] if each["called"]] if divergence else []
    if len({call["name"] for call in calls}) < 2 or not all(call["completed"] for call in calls):
        return []
    names = " and ".join(sorted({call["name"] for call in calls}))
    return [
        f"{names} #{calls[0]['number']} were matched although they are different calls, and so were all later calls"
    ]


def _data_parallel(groups: list[dict[str, Any]]) -> list[str]:
    waiting = [group for group in groups if group["state"] in ("waits", "posted")]
    if not any(_in_stack(group, "/nn/parallel/distributed.py") or group["in_backward"] for group in waiting):
        return []
    places = [group["called_at"] for group in waiting if group["called_at"]]
    if any(mentions(place["file"], "no_sync") for place in places):
        return [_NO_SYNC]
    ended = [group for group in groups if group["state"] == "ended"]
    if ended:
        ranks = [rank for group in ended for rank in group["ranks"]]
        return [
            f"{ranks_text(ranks)} had fewer batches: give all ranks the same number (DistributedSampler, drop_last), "
            "or use `with Join([model])`"
        ]
    if len({(group["called_at"] or {}).get("line") for group in groups}) > 1:
        return [_NO_SYNC]
    return []


def _p2p(groups: list[dict[str, Any]]) -> list[str]:
    calls = [group["call"] for group in groups if group["call"] and group["call"].get("peer") is not None]
    if not calls and any(_is_p2p(group) and not _has_posted_p2p(group) for group in groups):
        return ["a send and its receive must name each other's rank: check the peers"]
    if not calls:
        return []
    receives = [call for call in calls if not call["name"].startswith("send")]
    if len(receives) == len(calls) and len(calls) > 1:
        return ["all of them receive and none sends: check the peers, and which rank of a pair sends first"]
    if not receives and len(calls) > 1:
        return ["all of them send large tensors and none receives: let one rank of a pair receive first, or use isend"]
    return ["a send and its receive must name each other's rank: check the peers"]


def _ended(groups: list[dict[str, Any]]) -> list[str]:
    ended = [rank for group in groups if group["state"] == "ended" for rank in group["ranks"]]
    missing = {rank for group in groups for rank in group["missing"]}
    gone = sorted(missing.intersection(ended))
    if not gone:
        return []
    return [f"{ranks_text(gone)} left early: fewer iterations than the others, or a return or exit on one rank only"]


def _new_groups(groups: list[dict[str, Any]]) -> list[str]:
    if any(_in_stack(group, "new_group") for group in groups):
        return ["all ranks must call new_group() in the same order, also those outside the group"]
    return []


def _different_groups(groups: list[dict[str, Any]]) -> list[str]:
    waiting = [group for group in groups if group["state"] == "waits" and group["call"] and group["call"]["group"]]
    if len({group["call"]["group"] for group in waiting}) > 1:
        return ["ranks wait in different process groups: collectives of several groups must be called in one order"]
    return []


def _locks(groups: list[dict[str, Any]]) -> list[str]:
    return [
        f"{ranks_text(group['ranks'])} waits for a thread or lock of its own process; the holder is unknown"
        for group in groups
        if group["state"] == "stands" and _in_stack(group, "threading.py")
    ]
