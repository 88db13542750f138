"""Training steps are found by optimizers, or else by backward passes, in training loops of many kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.trace_writer import FROM_GRAPH
from helpers.training_traces import TrainingWriter, tensor, timeline_of

from maya.results.optimizer_turns import find_turns
from maya.results.steps import OPTIMIZER, WHOLE_RUN, find_steps, warm_up_of
from maya.results.steps_from_repetition import REPETITION
from maya.trace import RecordKind

MS = 1_000_000


def test_a_step_ends_when_its_optimizer_has_ended_on_the_device(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.elementwise("setup")  # is no part of the first step
    rank.train(steps=4)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.source == OPTIMIZER
    assert steps.lengths_ns == (7 * MS,) * 4  # two GEMMs forward, four backward, one update
    assert steps.warm_up == 1
    assert steps.measured == (1, 2, 3)
    assert steps.median_ns == 7 * MS


def test_optimizers_of_one_step_are_one(tmp_path: Path) -> None:
    """As for the chunks of a pipeline's rank: nothing is computed backward between their steps."""
    rank = TrainingWriter(0)
    for _ in range(4):
        rank.batch()
        rank.optimizer("AdamW", number=1)
        rank.elementwise("clip")
        rank.optimizer("AdamW", number=2)
        rank.optimizer("SGD", number=3)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.lengths_ns == (10 * MS,) * 4


def test_an_optimizer_that_calls_backward_itself(tmp_path: Path) -> None:
    """As LBFGS does, with a closure."""
    rank = TrainingWriter(0)
    for _ in range(3):
        with rank.annotated("Optimizer.step#LBFGS.step"):
            rank.batch()
            rank.batch()
            rank.elementwise("update")
    assert find_steps(timeline_of(tmp_path, [rank])).lengths_ns == (13 * MS,) * 3


def test_optimizers_that_take_turns_make_one_step(tmp_path: Path) -> None:
    """As in a GAN, whose last iteration was not completed."""
    rank = TrainingWriter(0)
    for _ in range(4):
        rank.batch(layers=1)
        rank.optimizer("Adam", kernels=2, number=1)
        rank.batch(layers=2)
        rank.optimizer("Adam", kernels=3, number=2)
    rank.batch(layers=1)
    rank.optimizer("Adam", kernels=2, number=1)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.lengths_ns == (14 * MS,) * 4
    assert steps.note == "a step has 2 optimizer turns"


def test_one_optimizer_whose_steps_differ_takes_no_turns(tmp_path: Path) -> None:
    """As with a log line every third step, inside of the closure that the optimizer calls."""
    rank = TrainingWriter(0)
    for step in range(9):
        with rank.annotated("Optimizer.step#AdamW.step", optimizer=1):
            rank.batch()
            if step % 3 == 0:
                rank.elementwise("log")
            rank.elementwise("update")
    assert find_steps(timeline_of(tmp_path, [rank])).count == 9


def test_an_optimizer_that_wraps_another_one_steps_once(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(4):
        with rank.annotated("Optimizer.step#Wrapper.step", optimizer=1):
            rank.elementwise("unscale")
            with rank.annotated("Optimizer.step#AdamW.step"):
                rank.batch()  # by a closure
                rank.elementwise("update")
            rank.elementwise("average")
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.lengths_ns == (8 * MS, *(9 * MS,) * 3)  # the first one begins with a GEMM
    assert steps.note == ""


def test_an_optimizer_for_each_parameter_that_steps_during_backward(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        for _ in range(20):
            rank.gemm()
        for layer in range(20):
            with rank.opened("AddmmBackward0"):
                rank.gemm(layout="NN")
            rank.optimizer("SGD", number=1 + layer)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.lengths_ns == (60 * MS,) * 3
    assert steps.note == ""  # they follow one forward pass


@pytest.mark.parametrize(
    ("sequence", "lengths", "regular"),
    [
        ("aaaaaa", [1] * 6, True),
        ("dgdgdg", [2] * 3, True),
        ("dgdgd", [2] * 2, True),
        ("dddgdddg", [4, 4], True),
        ("dg", [2], True),
        ("aaabbb", [1] * 6, True),  # another one for the second phase
        ("aaadgdg", [1, 1, 1, 2, 2], True),
        ("ddddgdgdg", [5, 2, 2], False),  # the first one is warmed up alone
        ("dgddgdg", [2, 3, 2], False),  # a gradient scaler skipped the second one
        ("", [], True),
    ],
)
def test_turns_of_optimizers_are_found(sequence: str, lengths: list[int], regular: bool) -> None:
    turns = find_turns(sequence)
    assert [len(each) for each in turns.iterations] == lengths
    assert turns.regular == regular


def hand_written_update(rank: TrainingWriter, *sizes: int) -> None:
    """p -= lr * p.grad"""
    for size in sizes:
        with rank.opened("aten::mul", [tensor(size)]):
            rank.elementwise("mul")
        with rank.opened("aten::sub_", [tensor(size), tensor(size)]):
            rank.elementwise("sub")


def test_steps_by_updates_that_the_script_makes_itself(tmp_path: Path) -> None:
    """After every second batch; the loss is added up after each."""
    rank = TrainingWriter(0)
    for batch in range(8):
        rank.batch()
        with rank.opened("aten::add_", [tensor(1), tensor(1)]):
            rank.elementwise("add")
        if batch % 2:
            hand_written_update(rank, 64, 4096)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.source == "update"
    assert steps.lengths_ns == ((2 * 7 + 4) * MS,) * 4


def test_steps_by_gradient_reductions(tmp_path: Path) -> None:
    """Of every second batch (DDP's no_sync); a single number is reduced after each, for a log line."""
    ranks = [TrainingWriter(0), TrainingWriter(1)]
    for rank in ranks:
        rank.join(1, range(2))
        for batch in range(6):
            rank.batch()
            rank.reduce(1, count=1)
            if batch % 2:
                rank.reduce(1, count=4096)
            rank.join_streams()
    steps = find_steps(timeline_of(tmp_path, ranks))
    assert (steps.source, steps.count) == ("gradient reduction", 3)


def test_steps_by_backward_passes(tmp_path: Path) -> None:
    """Nothing else is seen: the update may be in compiled code."""
    rank = TrainingWriter(0)
    for _ in range(4):
        rank.batch()
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert (steps.source, steps.lengths_ns) == ("backward", (6 * MS,) * 4)


def test_kernels_of_every_other_step_do_not_make_two_steps_one(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for step in range(6):
        rank.batch()
        rank.optimizer()
        if step % 2:
            rank.elementwise("evaluate")
    assert find_steps(timeline_of(tmp_path, [rank])).count == 6


def test_steps_that_a_gradient_scaler_skipped(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for step in range(6):
        rank.zero_grad()
        rank.batch()
        if step != 3:  # an overflow
            rank.optimizer()
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.count == 5
    assert steps.skipped == (3,)
    assert steps.measured == (1, 2, 4)
    assert steps.median_ns == 7 * MS


def test_gradients_zeroed_between_forward_and_backward(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(4):
        with rank.opened("aten::linear"):
            rank.gemm()
        rank.zero_grad()
        rank.batch()
        rank.optimizer()
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.count == 4
    assert steps.skipped == ()


def test_an_optimizer_in_a_graph_steps_with_every_launch(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):  # before the capture, which wants some
        rank.batch()
        rank.optimizer()
    rank.optimizer(kernels=0)  # captured: nothing is launched
    for _ in range(5):
        rank.copy("HtoD", 64)
        rank.add(RecordKind.GRAPH_LAUNCH, value=4)
        for _ in range(3):
            rank.gemm(flags=FROM_GRAPH)
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.lengths_ns == (7 * MS,) * 3 + (4 * MS,) * 5
    assert steps.measured == (3, 4, 5, 6, 7)


def test_without_a_backward_pass_the_whole_run_is_one_step(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        rank.gemm()
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert (steps.source, steps.lengths_ns, steps.measured) == (WHOLE_RUN, (3 * MS,), (0,))
    assert "no optimizer" in steps.note


def test_without_a_backward_pass_what_repeats_is_a_step(tmp_path: Path) -> None:
    """As inference does, whose first batch is different, and which does something else at the end."""
    rank = TrainingWriter(0)
    rank.gemm(m=128)
    for _ in range(5):
        rank.copy("HtoD", 1024)
        for _ in range(4):
            rank.gemm()
            rank.elementwise()
        rank.gemm(n=1000)
    rank.elementwise("report")
    steps = find_steps(timeline_of(tmp_path, [rank]))
    assert steps.source == REPETITION
    assert steps.lengths_ns == (11 * MS, *(10 * MS,) * 4)


def test_layers_that_repeat_are_no_steps(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.copy("HtoD", 1024)
    for _ in range(12):
        rank.gemm()
        rank.elementwise()
    assert find_steps(timeline_of(tmp_path, [rank])).source == WHOLE_RUN


def test_steps_from_an_annotation(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for batch in range(3):
        with rank.annotated(f"ProfilerStep#{batch}"):
            rank.gemm()
            rank.gemm()
    timeline = timeline_of(tmp_path, [rank])
    assert find_steps(timeline, "ProfilerStep").lengths_ns == (2 * MS,) * 3
    assert find_steps(timeline, "ProfilerStep#1").count == 1


def test_a_missing_annotation_is_named(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    with rank.annotated("generate"):
        rank.gemm()
    with pytest.raises(ValueError, match=r'no annotation "generat".*did you mean.*generate'):
        find_steps(timeline_of(tmp_path, [rank]), "generat")


def test_ranks_that_step_less_often(tmp_path: Path) -> None:
    ranks = [TrainingWriter(0), TrainingWriter(1), TrainingWriter(2)]
    ranks[0].train(steps=4)
    ranks[1].train(steps=3)
    ranks[2].gemm()  # has no optimizer, and takes part in the steps of the others
    steps = find_steps(timeline_of(tmp_path, ranks))
    assert steps.count == 3
    assert "3 to 4 steps" in steps.note
    assert len(steps.groups) == 3


@pytest.mark.parametrize(
    ("lengths", "warm_up"),
    [
        ([], 0),
        ([5], 0),
        ([900, 100], 1),
        ([100, 100], 0),
        ([100, 100, 100], 1),
        ([900, 500, 101, 100, 100], 2),
        ([100, 900, 100, 100], 2),
        ([100, 100, 100, 900], 1),
        ([900, 800, 700, 600], 3),
    ],
)
def test_warm_up_steps_are_found(lengths: list[int], warm_up: int) -> None:
    assert warm_up_of(lengths) == warm_up


def _data_parallel(steps_of_rank_one: int) -> list[TrainingWriter]:
    """Two ranks that wait for each other in every step; the trace of the second holds fewer of the four steps."""
    ranks = [TrainingWriter(0), TrainingWriter(1)]
    for rank, steps in zip(ranks, (4, steps_of_rank_one), strict=True):
        rank.join(1, range(2))
        for _ in range(steps):
            rank.batch()
            rank.collective(1, stream=0)
            rank.optimizer("SGD")
    return ranks


def test_a_step_counts_if_every_rank_recorded_it(tmp_path: Path) -> None:
    steps = find_steps(timeline_of(tmp_path, _data_parallel(2)))
    assert steps.count == 2
    assert all(steps.lengths_ns)


def test_a_run_without_a_common_step_is_refused(tmp_path: Path) -> None:
    """Not steps that take no time: the first rank waits for the second for ever."""
    timeline = timeline_of(tmp_path, _data_parallel(0))
    with pytest.raises(ValueError, match="no step was recorded to its end: rank 0: ncclAllReduce number 0 of ranks"):
        find_steps(timeline)
