"""Recognizes well-known mistakes in a report.

In: a report (hang_report.py), and values of variables in some ranks. Out: sentences, the most likely first. A hint says
where to look; it is not a proof. Hints from the source (source_hints.py) come first, and only the most certain of them;
a pattern that they explain better gives no hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.hangs.frame_values import RankValues
from coordinator.hangs.source_hints import CERTAIN, LIKELY, POSSIBLE, Side, UnsharedCall, differing_values, hints_about
from coordinator.hangs.user_source import with_contexts
from coordinator.membership import DUPLICATE_GPU
from maya.hangs.python_stacks import Frame, users_frames
from maya.util.ranks import ranks_text

_MOST = 3
_OWN_GPU = (
    'every rank needs a GPU of its own: call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first '
    "collective, and do not let CUDA_VISIBLE_DEVICES show the ranks of a node the same GPU only"
)
_NO_SYNC = "DDP reduces gradients in every backward() outside no_sync(): all ranks must enter and leave it alike"

Values = Mapping[int, RankValues]


def hints_for(report: dict[str, Any], values: Values | None = None) -> list[str]:
    """The most likely mistakes, at most three."""
    groups = report["groups"]
    if (report["problem"] or "").startswith(DUPLICATE_GPU):
        return [_OWN_GPU]
    source = [hint for call in _unshared_calls(report, values or {}) for hint in hints_about(call)]
    best = min((certainty for certainty, _ in source), default=CERTAIN)
    if best == POSSIBLE and (_no_sync(groups) or report["shift"] is not None):
        source = []
    found = [
        *_locks(groups),
        *_no_sync(groups),
        *((_data_parallel(groups) or _p2p(groups)) if source and best == POSSIBLE else ()),
        *(text for certainty, text in source if certainty == best),
        *(_data_parallel(groups) if source and best == LIKELY else ()),
        *_new_groups(groups),
        *_store_keys(groups),
    ]
    if not source and not _no_sync(groups) and report["shift"] is None:
        found += _second_communicator(groups)
        found += _mismatch(report, values or {})
        found += [*_different_groups(groups), *_matched(report["divergence"])]
        found += _p2p(groups) or _data_parallel(groups) or _ended(groups)
    return list(dict.fromkeys(found))[:_MOST]


# ---- calls that some ranks made and others did not ----


def _has_posted_p2p(group: dict[str, Any]) -> bool:
    """Whether a group of a mismatch posted a send or recv."""
    return bool(group["doing"].startswith(("posted send", "posted receive")))


def _is_p2p(group: dict[str, Any]) -> bool:
    if _has_posted_p2p(group):
        return True
    return (group["call"] or {}).get("peer") is not None or group["function"] in ("send", "recv", "isend", "irecv")


def _unshared_calls(report: dict[str, Any], values: Values) -> Iterator[UnsharedCall]:
    shift = report["shift"]
    if shift is not None and shift["calls"]:
        callers, others = (
            (shift["others"], shift["odd"]) if shift["difference"] == "skipped" else (shift["odd"], shift["others"])
        )
        frames = tuple(map(_frame, shift["calls"][0]["callers"]))
        yield UnsharedCall(frames, Side(tuple(callers)), Side(tuple(others)))  # past: values may have changed
    for group in report["groups"]:
        if group["state"] not in ("waits", "posted") and "other ranks" not in group["doing"]:
            continue
        other = _other_side(group, report)
        if other is None:
            continue
        frames, inside = _frames_of(group), _frames_inside(group)
        if other["state"] != "ended" and frames == _frames_of(other):
            frames = ()  # the program went the same way: only loops of libraries may differ
        yield UnsharedCall(frames, _side(group, values), _side(other, values), _is_p2p(group), inside)


def _other_side(group: dict[str, Any], report: dict[str, Any]) -> dict[str, Any] | None:
    """The group that the ranks of a group wait for, or that posted another call."""
    others: list[dict[str, Any]] = [each for each in report["groups"] if each is not group]
    if group["state"] == "posted":
        posted = [each for each in others if each["state"] == "posted"]
        return max(posted, key=lambda each: len(each["ranks"]), default=None)
    missing = set(group["missing"])
    awaited = [each for each in others if missing.intersection(each["ranks"])]
    if awaited:
        return awaited[0]
    odd = [each for each in others if set(report["odd"]).intersection(each["ranks"])]
    return odd[0] if odd else others[0] if len(others) == 1 else None


def _side(group: dict[str, Any], values: Values) -> Side:
    known = next((values[rank] for rank in group["ranks"] if rank in values), None)
    return Side(tuple(group["ranks"]), known, group["state"] == "ended" or group["draining"])


def _frame(place: dict[str, Any]) -> Frame:
    return Frame(place["file"], place["line"], place["function"])


def _frames_of(group: dict[str, Any]) -> tuple[Frame, ...]:
    """The program's frames of a group's call; of a call that autograd made, those of the line of backward()."""
    called = users_frames([_frame(place) for place in group["call_stack"]])
    if called or group["called_at"] is None:
        return called
    stands = users_frames([_frame(place) for place in group["stack"]])
    return (_frame(group["called_at"]), *stands[1:])


def _frames_inside(group: dict[str, Any]) -> tuple[Frame, ...]:
    """The frames of libraries in a group's call, without Python's own and the logging wrappers of torch."""
    stack = [_frame(place) for place in group["call_stack"] or group["stack"]]
    users = users_frames(stack)
    inside = stack[: stack.index(users[0])] if users else []
    return tuple(frame for frame in inside if frame.is_installed)


# ---- patterns ----


def _in_stack(group: dict[str, Any], *words: str) -> bool:
    return any(all(word in f"{frame['file']} {frame['function']}" for word in words) for frame in group["stack"])


def _mismatch(report: dict[str, Any], values: Values) -> list[str]:
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
    if len({repr(group["called_at"]) for group in report["groups"] if group["state"] == "posted"}) > 1:
        return ["the ranks make different calls of one group: one of them calls one more, or one less"]
    if different[1]:
        posted = [group for group in report["groups"] if group["state"] == "posted"]
        frames, sides = _frames_of(posted[0]), (_side(posted[0], values), _side(posted[1], values))
        differing = differing_values(frames[0], sides) if frames else ""
        return [f"the ranks pass tensors of different sizes: parameters, an uneven batch, or another call{differing}"]
    if different[2]:
        return ["the ranks pass tensors of different types: mixed precision on some of them only"]
    if posts[0][0] in ("broadcast", "reduce", "gather", "scatter"):
        return ["all ranks of the group must name the same root, by its global rank; not each its own"]
    return ["the ranks ask for different reductions"]


def _second_communicator(groups: list[dict[str, Any]]) -> list[str]:
    """Ranks in the same call as others, which make a communicator for it instead of joining in that of the others."""
    for waiting in groups:
        if waiting["call"] is None or waiting["state"] != "waits" or not _frames_of(waiting):
            continue
        for other in groups:
            if other["call"] is not None or other["function"] != waiting["call"]["name"]:
                continue
            if set(other["ranks"]) <= set(waiting["missing"]) and _frames_of(other)[:1] == _frames_of(waiting)[:1]:
                which = f"{ranks_text(other['ranks'])} {'makes' if len(other['ranks']) == 1 else 'make'}"
                return [
                    f"{which} another communicator for this call: the tensor is on another "
                    "GPU than that of the group's first call. Call "
                    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first collective, also before a '
                    "barrier, or pass device_id to init_process_group()"
                ]
    return []


def _matched(divergence: dict[str, Any] | None) -> list[str]:
    """Different calls of the same size, which NCCL matches with each other."""
    calls = [each["called"] for each in divergence["then"] if each["called"]] if divergence else []
    if len({call["name"] for call in calls}) < 2 or not all(call["completed"] for call in calls):
        return []
    names = " and ".join(sorted({call["name"] for call in calls}))
    return [
        f"{names} #{calls[0]['number']} were matched although they are different calls, and so were all later calls"
    ]


def _runs_data_parallel(group: dict[str, Any]) -> bool:
    is_waiting = group["state"] in ("waits", "posted")
    return is_waiting and (_in_stack(group, "/nn/parallel/distributed.py") or group["in_backward"])


def _no_sync(groups: list[dict[str, Any]]) -> list[str]:
    """A call of DDP's that the program's own `with` statements around it may leave out."""
    fits = any(
        "no_sync" in context
        for group in groups
        if _runs_data_parallel(group)
        for frame in _frames_of(group)
        for context in with_contexts(frame)
    )
    return [_NO_SYNC] if fits else []


def _data_parallel(groups: list[dict[str, Any]]) -> list[str]:
    ended = [rank for group in groups if group["state"] == "ended" for rank in group["ranks"]]
    if not ended or not any(map(_runs_data_parallel, groups)):
        return []
    return [
        f"{ranks_text(ended)} had fewer batches: give all ranks the same number (DistributedSampler, drop_last), "
        "or use `with Join([model])`"
    ]


def _p2p(groups: list[dict[str, Any]]) -> list[str]:
    calls = [group["call"] for group in groups if group["call"] and group["call"].get("peer") is not None]
    if not calls and any(_is_p2p(group) and not _has_posted_p2p(group) for group in groups):
        return ["a send and its receive must name each other's rank: check the peers"]
    if not calls:
        return []
    ended = {rank for group in groups if group["state"] == "ended" for rank in group["ranks"]}
    gone = sorted({call["peer"] for call in calls} & ended)
    if gone:
        word = "it sends and receives" if len(gone) == 1 else "they send and receive"
        return [
            f"{ranks_text(gone)} ended: {word} less often than the peers expect; compare the number of rounds or "
            "micro-batches on both sides, and check the peers"
        ]
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
    """Locks of files, and of the own process."""
    found = []
    for group in groups:
        waits = "waits" if len(group["ranks"]) == 1 else "wait"
        if group["lock"]:
            found.append(f"{ranks_text(group['ranks'])} {waits} for a file lock: {group['lock']}")
        elif group["state"] == "stands" and group["call"] is None and _waits_for_thread(group):
            found.append(f"{ranks_text(group['ranks'])} {waits} for {_helper(group)}")
    return found


_LOCK_CALLS = re.compile(r"\.(acquire|join|get|put|wait|result)\(|\bwith\b.*lock", re.IGNORECASE)


def _waits_for_thread(group: dict[str, Any]) -> bool:
    if group["store_keys"] or "other ranks" in group["doing"] or "device" in group["doing"] or not group["stack"]:
        return False
    innermost = group["stack"][0]
    return _in_stack(group, "threading.py") or _LOCK_CALLS.search(innermost["source"]) is not None


def _helper(group: dict[str, Any]) -> str:
    """The thread that a group's ranks wait for."""
    others = [users_frames([_frame(place) for place in stack]) for stack in group["other_stacks"]]
    places = [frames[0].place for frames in others if frames and not frames[0].is_installed]
    own = "its" if len(group["ranks"]) == 1 else "their"
    if places:
        return f"a thread or lock of {own} own process; other threads are at {', '.join(places[:3])}"
    return (
        f"a thread or lock of {own} own process, and no other thread runs the program: a helper thread has ended "
        "without an answer, or the main thread holds the lock itself"
    )


def _store_keys(groups: list[dict[str, Any]]) -> list[str]:
    keys = sorted({key for group in groups for key in group["store_keys"]})
    stuck = [key for group in groups if group["stuck"] for key in group["store_keys"]]
    if len(keys) < 2:
        return [f"no rank can set the key {key!r} any more: all others wait, or have ended" for key in stuck[:1]]
    shown = ", ".join(map(repr, keys[:3])) + (", …" if len(keys) > 3 else "")
    return [f"the ranks wait for different keys of the store: {shown}"]
