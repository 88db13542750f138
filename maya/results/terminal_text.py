"""A result as lines for the terminal: assumptions, step time, throughput, time breakdown, memory, traffic."""

from __future__ import annotations

from collections.abc import Callable

from maya.results.result import Result
from maya.results.steps import NO_STEPS, WHOLE_RUN
from maya.results.steps_from_backward import MEANINGS
from maya.results.time_classes import CLASSES, TITLES
from maya.results.tokens_per_step import GIVEN
from maya.util.ranks import ranges
from maya.util.text import bytes_text, count_text, number_text, share_text, time_text

_LABEL = 11  # columns
_SMALLEST_SHARE = 0.005  # of a time class with a line of its own
_MOST_CLASSES = 6
_NAME = 26


def lines_of(result: Result, shorten: Callable[[str], str] = str) -> list[str]:
    """The assumptions, then at most twenty-one lines. `shorten` turns a path and line into "train.py:42"."""
    return [
        *(_line("assumes", each.text(shorten)) for each in result.assumptions),
        _line("step", _step(result)),
        _line("speed", _speed(result)),
        *([_line("of peak", used)] if (used := _utilisation(result)) else []),
        _line("cost", _cost(result)),
        *_time_table(result),
        *([_line("stragglers", result.breakdown.slowest.text)] if result.timeline.world_size > 1 else []),
        _line("memory", _memory(result)),
        *([_line("network", network)] if (network := _network(result)) else []),
        _line("based on", _origins(result)),
        *([_line("no model", lacking)] if (lacking := result.kernels_without_model.text) else []),
        *(_line("but", problem) for problem in list(result.timeline.problems)[:2]),
    ]


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _step(result: Result) -> str:
    steps = result.steps
    if steps.source == WHOLE_RUN:
        return f"{time_text(result.step_ns)} for the whole run: {NO_STEPS}"
    measured = steps.measured
    lengths = [steps.lengths_ns[step] for step in measured]
    text = time_text(result.step_ns)
    if len(measured) > 1:
        text += f", median of {len(measured)} ({time_text(min(lengths))} to {time_text(max(lengths))})"
    left_out = f"{steps.warm_up} of {steps.count} left out as warm-up" if steps.warm_up else ""
    skipped = f"optimizer not called after every batch in steps {ranges(list(steps.skipped))}" if steps.skipped else ""
    given = result.options.steps_from
    by_optimizers = "" if steps.source in MEANINGS else "step boundaries: torch.optim"  # others are assumptions
    source = by_optimizers if given is None else f"step boundaries: {given}"
    return "; ".join(filter(None, [text, left_out, skipped, source, steps.note]))


def _speed(result: Result) -> str:
    speed = result.throughput
    if speed.samples is None or speed.samples_per_second is None:
        return f"tokens unknown: {speed.no_samples}; use --tokens-per-step N"
    unit = speed.samples.unit
    shape = " x ".join(str(size) for size in speed.samples.batch)
    op = "embedding" if unit == "tokens" else "first convolution"
    found = "as given" if speed.samples.source == GIVEN else f"from the {op} input, {shape}"
    return (
        f"{speed.samples_per_second:,.0f} {unit}/s, {speed.samples_per_second / speed.gpus:,.0f} per GPU; "
        f"{speed.samples.per_step:,} {unit} a step ({found})"
    )


def _utilisation(result: Result) -> str:
    speed = result.throughput
    if speed.hfu is None or speed.mfu is None:
        return ""
    again = speed.recomputed_flops_per_step / speed.flops_per_step if speed.flops_per_step else 0.0
    repeated = f"{share_text(again)} of FLOPs are recomputation" if again else "no recomputation"
    per_gpu = count_text(speed.flops_per_step / speed.gpus / speed.step_ns * 1e9, "FLOPS")
    return f"MFU {share_text(speed.mfu)}, HFU {share_text(speed.hfu)} ({repeated}); {per_gpu} per GPU"


def _cost(result: Result) -> str:
    speed = result.throughput
    parts = [f"{number_text(1000 * speed.gpu_hours_per_step)} GPU-hours for 1,000 steps"]
    if speed.gpu_hours_per_billion is not None and speed.samples is not None:
        parts.append(f"{number_text(speed.gpu_hours_per_billion)} for a billion {speed.samples.unit}")
    if speed.price_per_step is not None:
        parts.append(f"price {number_text(1000 * speed.price_per_step)} for 1,000 steps")
        if speed.price_per_billion is not None and speed.samples is not None:
            parts.append(f"{number_text(speed.price_per_billion)} for a billion {speed.samples.unit}")
    return ", ".join(parts)


def _time_table(result: Result) -> list[str]:
    """Time classes, largest first on the median rank, and beside it the straggler if there is one."""
    breakdown = result.breakdown
    median, slowest = breakdown.median_rank, breakdown.slowest
    chosen = [median] if slowest.reason is None or slowest.rank == median else [median, slowest.rank]
    means = breakdown.mean_ns[chosen]
    whole = [max(int(total), 1) for total in means.sum(axis=1)]
    order = sorted(range(len(CLASSES)), key=lambda at: (-int(means[0, at]), at))
    large = [at for at in order if (means[:, at] / whole >= _SMALLEST_SHARE).any()][:_MOST_CLASSES]
    rest = [at for at in order if at not in large and means[:, at].any()]
    rows = [(TITLES[CLASSES[at]], [int(means[row, at]) for row in range(len(chosen))]) for at in large]
    if rest:
        rows.append(("all others", [int(means[row, rest].sum()) for row in range(len(chosen))]))
    titles = [f"rank {median}" if len(chosen) == 1 else f"rank {median} (median)", f"rank {slowest.rank} (straggler)"]
    if result.timeline.world_size == 1:
        titles = [""]
    head = "".join(f"{title:>20}" for title in titles[: len(chosen)])
    lines = [_line("time", f"{'':<{_NAME}}{head}".rstrip() if head.strip() else "of a step")]
    for name, values in rows:
        cells = "".join(
            f"{time_text(value):>11}{share_text(value / total):>9}" for value, total in zip(values, whole, strict=True)
        )
        lines.append(_line("", f"{name:<{_NAME}}{cells}"))
    hidden, communication = (
        int(array[median]) for array in (breakdown.mean_hidden_ns, breakdown.mean_communication_ns)
    )
    if communication:
        lines.append(
            _line("", f"communication {time_text(communication)}, {share_text(hidden / communication)} of it hidden")
        )
    return lines


def _memory(result: Result) -> str:
    memory = result.memory
    rank = memory.worst_rank
    peak = memory.of_rank(rank)
    if peak is None:
        return "none: no rank used its GPU"
    who = f"rank {rank} needs most: " if result.timeline.world_size > 1 else ""
    reserved = f"reserved {bytes_text(peak.reserved)}" if peak.reserved_known else "reserved unknown"
    beside = f"context {bytes_text(peak.context)}, NCCL {bytes_text(peak.nccl)}"
    return (
        f"{who}{bytes_text(peak.total)} of {bytes_text(memory.capacity)} "
        f"(allocated {bytes_text(peak.allocated)}, {reserved}, {beside}, workspaces {bytes_text(peak.workspaces)})"
    )


def _network(result: Result) -> str:
    traffic = result.traffic
    if not traffic.calls:
        return ""
    calls = ", ".join(f"{count} {name} ({bytes_text(size)})" for name, count, size in traffic.calls[:3])
    sent = f"{bytes_text(traffic.sent_within_nodes)} within nodes, {bytes_text(traffic.sent_between_nodes)} between"
    return f"{calls} per rank and step; {sent}"


def _origins(result: Result) -> str:
    shares = sorted(result.origins.shares().items(), key=lambda item: (-item[1], item[0]))
    spread = f"; a kernel's time is uncertain by {share_text(result.origins.spread)}" if result.origins.spread else ""
    measured = "; host time: measured" if result.timeline.settings.host_time == "measured" else ""
    return ", ".join(f"{name} {share_text(share)}" for name, share in shares) + f" of device time{spread}{measured}"
