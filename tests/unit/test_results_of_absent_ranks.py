"""Results of jobs with absent ranks: large ones are written compactly, and faults stay with their rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from helpers.training_traces import COMMUNICATION, TrainingWriter

from maya.replay.null_model import NullDurations, NullNetwork, null_settings
from maya.replay.represented_ranks import GroupOfCommunicator, RepresentedJob
from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.replay.trace_digest import digest_of, trace_files
from maya.results import Result, conclude
from maya.results.prediction_json import prediction_json
from maya.util.ranks import parse_strided

MS = 1_000_000


def writer(rank: int, world_size: int, kernels: int = 1) -> TrainingWriter:
    """Three steps of data parallel training."""
    made = TrainingWriter(rank)
    made.join(1, range(world_size))
    for _ in range(3):
        made.batch(layers=kernels)
        made.collective(1, count=world_size, stream=COMMUNICATION)
        made.join_streams()
        made.optimizer()
    return made


def represented(
    folder: Path, present: dict[int, TrainingWriter], world_size: int, injected: tuple[str, ...] = ()
) -> Result:
    """A data-parallel job in which only some ranks were processes."""
    for each in present.values():
        each.save(folder)
    world = tuple(range(world_size))
    inits = digest_of(trace_files(folder)[0][1], allocations=False).communicators.values()
    origins = {(parse_strided(text), instance): GroupOfCommunicator(0) for text, instance in inits}
    RepresentedJob(world_size, tuple(present), [world], origins).save(folder)
    settings: RunSettings = replace(null_settings(world_size), injected=injected)
    settings.save(folder)
    return conclude(simulate(folder, settings, durations=NullDurations(), network=NullNetwork(MS)))


def test_thousands_of_ranks_with_equal_figures_share_an_entry(tmp_path: Path) -> None:
    content = prediction_json(represented(tmp_path, {0: writer(0, 8192)}, 8192))
    assert [each["ranks"] for each in content["ranks"]] == ["0-8191"]
    assert [each["ranks"] for each in content["rank_classes"]] == ["0-8191"]


def test_a_slow_absent_rank_has_an_entry_of_its_own(tmp_path: Path) -> None:
    represented(tmp_path, {0: writer(0, 8192)}, 8192)
    slowed = simulate(tmp_path, durations=NullDurations(), network=NullNetwork(MS), slow_ranks={5000: 2000})
    content = prediction_json(conclude(slowed))
    assert [each["ranks"] for each in content["ranks"]] == ["0-4999,5001-8191", "5000"]
    assert content["slowest_rank"]["rank"] == 5000


def test_traffic_of_many_nodes_is_between_blocks_of_nodes(tmp_path: Path) -> None:
    traffic = represented(tmp_path, {0: writer(0, 8192)}, 8192).traffic
    sent = 2 * 8191 * 4  # bytes of a rank, in a ring
    assert traffic.between == "blocks of 4 nodes"
    assert traffic.matrix.shape == (256, 256)
    assert traffic.matrix[0, :3].tolist() == [31 * sent, sent, 0]
    assert (traffic.sent_within_nodes, traffic.sent_between_nodes) == (7168 * sent, 1024 * sent)


def test_an_all_to_all_of_many_ranks_counts_every_pair_once(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.join(1, range(72))
    for _ in range(3):
        rank.batch(layers=1)
        rank.collective(1, "ncclAlltoAll", count=10, stream=COMMUNICATION)
        rank.optimizer()
    traffic = represented(tmp_path, {0: rank}, 72).traffic
    assert traffic.matrix[0, :2].tolist() == [8 * 7 * 40, 8 * 8 * 40]
    assert (traffic.sent_within_nodes, traffic.sent_between_nodes) == (72 * 7 * 40, 72 * 64 * 40)


def test_a_rank_with_an_injected_fault_represents_no_other(tmp_path: Path) -> None:
    present = {0: writer(0, 16), 2: writer(2, 16, kernels=3)}
    result = represented(tmp_path, present, 16, injected=("delay:rank=2,step=1,seconds=1",))
    assert [list(each.ranks) for each in result.timeline.rank_classes] == [[0, 1, *range(3, 16)], [2]]
