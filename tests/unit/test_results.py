"""Results besides steps and the time breakdown: throughput, memory, traffic, origins, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.training_traces import COMMUNICATION, TrainingWriter, tensor, timeline_of

from maya.estimators.kernel import Origin
from maya.replay.timeline import Timeline
from maya.results import Options, conclude
from maya.results.memory import memory_curve, nccl_bytes
from maya.results.origins import top_items
from maya.results.predict import parse_trace_ranks
from maya.results.prediction_json import prediction_json
from maya.results.result import OptionError
from maya.results.terminal_text import lines_of
from maya.trace import RecordKind

MS = 1_000_000
VOCABULARY, WIDTH = 1000, 8


def look_up(rank: TrainingWriter, batch: int, sequence: int, table: int = VOCABULARY) -> None:
    """An embedding of this number of tokens."""
    inputs = [tensor(table, WIDTH), tensor(batch, sequence, dtype="int64")]
    with rank.opened("aten::embedding", inputs):
        rank.elementwise("indexSelect")


def training(
    folder: Path, ranks: int = 2, *, microbatches: int = 1, shared: int = 0, gradient: int = 1024, network_ns: int = MS
) -> Timeline:
    """Data parallel ranks; `shared`: elements of an activation that they add up, as in tensor parallelism; `gradient`:
    elements of the gradients that they add up."""
    writers = [TrainingWriter(number) for number in range(ranks)]
    for rank in writers:
        rank.join(1, range(ranks))
        rank.allocate(3 << 20, segment=20 << 20)
        for _ in range(3):
            for _ in range(microbatches):
                look_up(rank, 4, 16)
                look_up(rank, 4, 16, table=16)  # positions
                if shared:
                    with rank.opened("aten::linear", [tensor(64, 64), tensor(64, 64)]):
                        rank.gemm()
                    rank.reduce(1, count=shared)
                rank.batch(layers=1)
            rank.reduce(1, count=gradient)
            rank.join_streams()
            rank.optimizer()
    return timeline_of(folder, writers, network_ns=network_ns)


# ---- speed ----


def test_tokens_are_those_of_all_ranks(tmp_path: Path) -> None:
    speed = conclude(training(tmp_path)).throughput
    assert speed.samples is not None
    assert (speed.samples.per_step, speed.samples.unit, speed.samples.batch) == (2 * 4 * 16, "tokens", (4, 16))
    assert speed.samples_per_second == pytest.approx(128 / (speed.step_ns / 1e9))
    assert speed.samples_per_second_per_gpu == pytest.approx(64 / (speed.step_ns / 1e9))
    assert speed.gpu_hours_per_step == pytest.approx(2 * speed.step_ns / 1e9 / 3600)


def test_tokens_of_microbatches_add_up(tmp_path: Path) -> None:
    speed = conclude(training(tmp_path, microbatches=3)).throughput
    assert speed.samples is not None
    assert speed.samples.per_step == 2 * 3 * 4 * 16


def test_ranks_that_add_up_activations_share_their_tokens(tmp_path: Path) -> None:
    speed = conclude(training(tmp_path, ranks=4, shared=4 * 16 * WIDTH)).throughput
    assert speed.samples is not None
    assert speed.samples.per_step == 4 * 16


def test_gradients_of_the_size_of_activations_are_not_taken_for_them(tmp_path: Path) -> None:
    speed = conclude(training(tmp_path, ranks=4, gradient=4 * 16 * WIDTH)).throughput
    assert speed.samples is not None
    assert speed.samples.per_step == 4 * 4 * 16


def test_given_tokens_and_prices_are_used(tmp_path: Path) -> None:
    speed = conclude(training(tmp_path), Options(tokens_per_step=1000, price_per_gpu_hour=3.0)).throughput
    assert speed.samples is not None
    assert (speed.samples.per_step, speed.samples.source) == (1000, "given")
    assert speed.price_per_step == pytest.approx(3 * speed.gpu_hours_per_step)


def test_without_token_inputs_no_tokens_are_claimed(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.train(steps=3)
    result = conclude(timeline_of(tmp_path, [rank]))
    assert result.throughput.samples is None
    (said,) = [line for line in lines_of(result) if line.startswith("speed")]
    assert said.endswith(
        "tokens unknown: no embedding of [batch, sequence] and no convolution over images was recorded; "
        "use --tokens-per-step N"
    )
    assert prediction_json(result)["throughput"]["not_known"] in said


def looked_up(folder: Path, forward: Callable[[TrainingWriter], None]) -> tuple[int | None, str]:
    """Tokens of a step with such a forward pass, or the reason why they are unknown."""
    rank = TrainingWriter(0)
    for _ in range(3):
        forward(rank)
        rank.batch()
        rank.optimizer()
    speed = conclude(timeline_of(folder, [rank])).throughput
    return (speed.samples.per_step if speed.samples else None), speed.no_samples


def add(rank: TrainingWriter, *batches: int) -> None:
    """Add tensors of such batches to one of a batch of 4."""
    for batch in batches:
        with rank.opened("aten::add", [tensor(4, 16, WIDTH), tensor(batch, 16, WIDTH)]):
            rank.elementwise("add")


def test_tokens_whose_embeddings_are_added_up_count_once(tmp_path: Path) -> None:
    """Tokens and positions, in tables of the same size; positions of one sequence serve the whole batch."""

    def forward(rank: TrainingWriter) -> None:
        look_up(rank, 4, 16)
        look_up(rank, 4, 16)
        look_up(rank, 1, 16)
        add(rank, 4, 1)

    assert looked_up(tmp_path, forward) == (64, "")


def test_tokens_of_embeddings_side_by_side_are_unknown(tmp_path: Path) -> None:
    """As before an encoder and a decoder; positions that no table has are added to each."""

    def forward(rank: TrainingWriter) -> None:
        look_up(rank, 4, 16)
        look_up(rank, 4, 16)
        add(rank, 1, 1)

    tokens, reason = looked_up(tmp_path, forward)
    assert tokens is None
    assert "2 embeddings, of [4, 16]," in reason


def test_tokens_that_are_looked_up_again_for_backward_count_once(tmp_path: Path) -> None:
    def forward(rank: TrainingWriter) -> None:
        look_up(rank, 4, 16)
        rank.gemm()
        with rank.opened("CheckpointFunctionBackward"):
            look_up(rank, 4, 16)
            rank.gemm()

    assert looked_up(tmp_path, forward) == (64, "")


@pytest.mark.parametrize(
    ("sequence", "listed"), [(16, "2 embeddings, of [4, 16],"), (8, "2 embeddings, of [4, 16] and [4, 8],")]
)
def test_tokens_of_an_encoder_and_a_decoder_are_unknown(tmp_path: Path, sequence: int, listed: str) -> None:
    def forward(rank: TrainingWriter) -> None:
        look_up(rank, 4, 16)
        rank.gemm()
        look_up(rank, 4, sequence)

    tokens, reason = looked_up(tmp_path, forward)
    assert tokens is None
    assert listed in reason


def test_tokens_of_optimizers_that_take_turns_are_not_known(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        for number in (1, 2):
            look_up(rank, 4, 16)
            rank.batch()
            rank.optimizer(number=number)
    speed = conclude(timeline_of(tmp_path, [rank])).throughput
    assert speed.samples is None
    assert "2 optimizers take turns" in speed.no_samples


def test_tokens_of_compiled_code_are_found(tmp_path: Path) -> None:
    """How many is not seen, and the user is told what to do."""
    rank = TrainingWriter(0)
    for _ in range(3):
        rank.kernel("triton_per_fused_add_embedding_native_layer_norm_0")
        rank.gemm()
        rank.optimizer()
    timeline = timeline_of(tmp_path, [rank])
    (said,) = [line for line in lines_of(conclude(timeline)) if line.startswith("speed")]
    assert "--tokens-per-step N" in said
    told = conclude(timeline, Options(tokens_per_step=1000))
    assert any(line.startswith("speed") and "tokens/s" in line for line in lines_of(told))


def test_images_are_what_the_first_convolution_gets(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        with rank.opened("aten::cudnn_convolution", [tensor(32, 3, 224, 224), tensor(64, 3, 7, 7)]):
            rank.gemm()
        with rank.opened("aten::cudnn_convolution", [tensor(32, 64, 56, 56), tensor(64, 64, 3, 3)]):
            rank.gemm()
        rank.batch()
        rank.optimizer()
    samples = conclude(timeline_of(tmp_path, [rank])).throughput.samples
    assert samples is not None
    assert (samples.per_step, samples.unit) == (32, "images")


def test_utilisation_counts_recomputation_apart(tmp_path: Path) -> None:
    """Forward 1 GEMM, backward 2, and the forward one again: a quarter of the work is not the model's."""
    rank = TrainingWriter(0)
    inputs = [tensor(512, 512), tensor(512, 512)]
    for _ in range(3):
        with rank.opened("aten::addmm", inputs, sequence=1):
            rank.gemm(512, 512, 512)
        with rank.opened("AddmmBackward0", sequence=1):
            with rank.opened("aten::addmm", inputs, sequence=1):
                rank.gemm(512, 512, 512)
            with rank.opened("aten::mm", inputs, sequence=1):
                rank.gemm(512, 512, 512, layout="NN")
                rank.gemm(512, 512, 512, layout="NT")
        rank.optimizer()
    timeline = timeline_of(tmp_path, [rank])
    speed = conclude(timeline).throughput
    assert speed.flops_per_step == 4 * 2 * 512**3
    assert speed.recomputed_flops_per_step == 2 * 512**3
    peak = timeline.device.bf16_flops
    assert peak is not None
    assert speed.hfu == pytest.approx(4 * 2 * 512**3 / (peak * speed.step_ns / 1e9))
    assert speed.hfu is not None
    assert speed.mfu == pytest.approx(0.75 * speed.hfu)


# ---- memory ----


def test_peak_memory_of_a_rank_is_found(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.join(1, range(2))
    first = rank.allocate(1 << 20, segment=2 << 20)
    rank.add(RecordKind.MALLOC, {"bytes": 32 << 20}, value=7)  # a library's workspace: no block is handed out from it
    rank.gemm()
    second = rank.allocate(15 << 20, segment=20 << 20)
    rank.release(first)
    rank.release(second)
    rank.add(RecordKind.FREE, value=7)
    other = TrainingWriter(1)
    other.join(1, range(2))
    other.gemm()
    timeline = timeline_of(tmp_path, [rank, other])
    memory = conclude(timeline).memory
    peak = memory.of_rank(0)
    assert peak is not None
    assert (peak.allocated, peak.reserved, peak.workspaces) == (16 << 20, 22 << 20, 32 << 20)
    assert peak.nccl == nccl_bytes(2, {}) == 155189248
    assert peak.total == (54 << 20) + peak.nccl + timeline.device.context_bytes
    assert memory.worst_rank == 0
    course = memory_curve(timeline, 0)
    assert int(course.allocated.max()) == 16 << 20
    assert (np.diff(course.ns) >= 0).all()
    assert int(memory_curve(timeline, 0, most_points=2).allocated.max()) == 16 << 20


def test_memory_mapped_by_expandable_segments_counts(tmp_path: Path) -> None:
    """It is reserved when its physical memory is made, in several pieces before a block is handed out."""
    rank = TrainingWriter(0)

    def piece(kind: RecordKind, handle: int) -> None:
        rank.add(kind, {"bytes": 20 << 20, "mapped": True}, value=handle)

    for handle in (1, 2, 3):
        piece(RecordKind.MALLOC, handle)
    block = rank.allocate(50 << 20)
    rank.release(block)
    piece(RecordKind.FREE, 3)  # to make room
    for handle in (4, 5, 6):
        piece(RecordKind.MALLOC, handle)
    rank.allocate(90 << 20)
    piece(RecordKind.MALLOC, 7)  # symmetric memory: no block of it is handed out
    rank.gemm()
    peak = conclude(timeline_of(tmp_path, [rank])).memory.of_rank(0)
    assert peak is not None
    assert peak.reserved_known
    assert (peak.allocated, peak.reserved, peak.workspaces) == (90 << 20, 100 << 20, 20 << 20)


def test_memory_reserved_without_a_record_counts(tmp_path: Path) -> None:
    """As by PyTorch's allocator on cudaMallocAsync: blocks are handed out that no cudaMalloc has taken."""
    rank = TrainingWriter(0)
    rank.allocate(64 << 20)
    rank.gemm()
    peak = conclude(timeline_of(tmp_path, [rank])).memory.of_rank(0)
    assert peak is not None
    assert not peak.reserved_known
    assert peak.reserved == 64 << 20


def test_nccl_buffers_follow_the_variables() -> None:
    assert nccl_bytes(1, {}) == 0
    assert nccl_bytes(8, {"NCCL_MAX_NCHANNELS": "8"}) < nccl_bytes(8, {})
    assert nccl_bytes(8, {"NCCL_BUFFSIZE": str(8 << 20)}) > nccl_bytes(8, {})


# ---- traffic and origins ----


def test_traffic_is_a_matrix_of_ranks(tmp_path: Path) -> None:
    ranks = [TrainingWriter(number) for number in range(3)]
    for rank in ranks:
        rank.join(1, range(3))
        for _ in range(3):
            rank.batch(layers=1)
            rank.collective(1, "ncclAllReduce", count=3000, stream=COMMUNICATION)
            if rank.rank == 0:
                rank.send(1, to=2, count=10, stream=COMMUNICATION)
            if rank.rank == 2:
                rank.receive(1, source=0, count=10, stream=COMMUNICATION)
            rank.optimizer()
    traffic = conclude(timeline_of(tmp_path, ranks)).traffic
    assert traffic.between == "ranks"
    assert traffic.matrix.tolist() == [[0, 16000, 40], [0, 0, 16000], [16000, 0, 0]]
    assert (traffic.sent_within_nodes, traffic.sent_between_nodes) == (48040, 0)


def test_many_ranks_have_a_matrix_of_nodes(tmp_path: Path) -> None:
    writers = [TrainingWriter(number) for number in range(72)]
    for rank in writers:
        rank.join(1, range(72))
        for _ in range(3):
            rank.batch(layers=1)
            rank.collective(1, count=72, stream=COMMUNICATION)
            rank.optimizer()
    result = conclude(timeline_of(tmp_path, writers))
    assert result.traffic.between == "nodes"
    assert result.traffic.matrix.shape == (9, 9)
    sent = 2 * 71 * 4  # bytes of a rank
    assert result.traffic.matrix[0, 0] == 7 * sent
    assert result.traffic.matrix[0, 1] == sent
    assert result.traffic.sent_between_nodes == 9 * sent
    assert len(lines_of(result)) <= 19


def test_origins_of_times_add_up_to_one(tmp_path: Path) -> None:
    origins = conclude(training(tmp_path)).origins
    assert list(origins.kernels) == [Origin.DEFAULT]
    assert list(origins.network) == ["null"]
    assert sum(origins.shares().values()) == pytest.approx(1.0)


def test_the_top_items_are_the_longest_ops(tmp_path: Path) -> None:
    result = conclude(training(tmp_path, network_ns=10 * MS))
    items = top_items(result.timeline, result.steps, 0)
    assert (items[0].what, items[0].times, items[0].ns) == ("ncclAllReduce", 1, 10 * MS)
    assert "2 ranks" in items[0].detail
    assert sum(item.ns for item in items) == 16 * MS  # 3 GEMMs, 2 look-ups, 1 update


# ---- terminal text and JSON ----


def test_the_terminal_shows_the_main_figures_in_order(tmp_path: Path) -> None:
    result = conclude(training(tmp_path))
    text = lines_of(result)
    assert len(text) <= 19
    labels = [line.split()[0] for line in text if not line.startswith(" ")]
    assert labels == ["step", "speed", "of", "cost", "time", "stragglers", "memory", "network", "based", "no"]
    assert text[0].startswith("step       7 ms, median of 2 (7 ms to 7 ms); 1 of 3 left out as warm-up")
    assert "128 tokens a step (from the embedding input, 4 x 16)" in text[1]


def test_the_json_is_complete_and_always_the_same(tmp_path: Path) -> None:
    first, second = (json.dumps(prediction_json(conclude(training(tmp_path)))) for _ in range(2))
    assert first == second
    content = json.loads(first)
    assert content["steps"]["median_ns"] == 7 * MS
    assert [sum(rank["time_ns"]) for rank in content["ranks"]] == [7 * MS, 7 * MS]
    assert len(content["classes"]) == len(content["ranks"][0]["time_ns"])
    assert content["rank_classes"][0]["ranks"] == [0, 1]
    assert content["memory"]["worst"]["allocated_bytes"] == 3 << 20
    assert content["throughput"]["samples_per_step"] == 128


def test_a_rank_that_does_more_after_the_steps_spends_its_steps_like_others(tmp_path: Path) -> None:
    writers = [TrainingWriter(number) for number in range(2)]
    for rank in writers:
        for _ in range(3):
            rank.batch(layers=1)
            rank.optimizer()
    writers[0].elementwise()  # it logs
    timeline = timeline_of(tmp_path, writers)
    assert len(timeline.rank_classes) == 2
    assert [each["ranks"] for each in prediction_json(conclude(timeline))["rank_classes"]] == [[0, 1]]


def test_options_come_from_the_run(tmp_path: Path) -> None:
    timeline = training(tmp_path)
    asked = replace(timeline, settings=replace(timeline.settings, options={"tokens_per_step": 7}))
    samples = conclude(asked).throughput.samples
    assert samples is not None
    assert samples.per_step == 7


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r'"token_per_step".*tokens_per_step'):
        Options.of({"token_per_step": 7})
    assert Options.of({"tokens_per_step": 7}).table() == {"tokens_per_step": 7}


def test_rank_ranges_are_parsed() -> None:
    assert parse_trace_ranks("3,0-1,1", 8) == (0, 1, 3)
    with pytest.raises(OptionError, match="there is no rank 8; ranks are 0 to 7"):
        parse_trace_ranks("6-8", 8)
    with pytest.raises(OptionError, match="expected ranks"):
        parse_trace_ranks("first", 8)
