"""Representatives of a job: the mesh of its process groups, who stands for whom, and which ranks have to be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.trace_writer import TraceWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.replay.mesh import mesh_of
from maya.replay.mesh_blocks import MeshBlock, SurveyResult
from maya.replay.rank_class import trace_facts
from maya.replay.representatives import RepresentativeSearch, changes_of_shares
from maya.replay.represented_ranks import GroupOfCommunicator, RepresentedJob
from maya.util.ranks import format_strided, parse_strided


def _mesh_groups(*sizes: int) -> list[tuple[int, ...]]:
    """The world, and the groups of each dimension of a mesh whose last dimension varies fastest."""
    world = 1
    for size in sizes:
        world *= size
    groups = [tuple(range(world))]
    stride = world
    for size in sizes:
        stride //= size
        for first in range(world):
            if first // stride % size == 0 and size > 1:
                groups.append(tuple(range(first, first + size * stride, stride)))
    return groups


def _job(*sizes: int, present: tuple[int, ...] = (0,)) -> RepresentedJob:
    groups = _mesh_groups(*sizes)
    communicators = {(members, 0): GroupOfCommunicator(number) for number, members in enumerate(groups)}
    return RepresentedJob(len(groups[0]), present, groups, communicators)


Traces = Callable[[tuple[int, ...]], object]  # a rank's trace, if it depends on its coordinates like this


def _survey(
    job: RepresentedJob, trace_of: Traces, p2p: Sequence[tuple[int, ...]] = (), lengths: Sequence[int] = ()
) -> tuple[tuple[int, ...], SurveyResult]:
    """The representatives that a search finds, and its result."""
    search = RepresentativeSearch(job, p2p, lengths)
    coordinates = job.mesh.coordinates.tolist()
    digests: dict[int, bytes] = {}
    for number in range(20):
        missing = search.next_ranks(digests)
        if not missing:
            result = search.result(digests, number)
            return search.present(result), result
        digests.update({rank: repr(trace_of(tuple(coordinates[rank]))).encode() for rank in missing})
    raise AssertionError("the search does not end")


def _found(job: RepresentedJob, trace_of: Traces) -> tuple[int, ...]:
    return _survey(job, trace_of)[0]


def _represented_rightly(job: RepresentedJob, trace_of: Traces) -> bool:
    present, survey = _survey(job, trace_of)
    coordinates = [tuple(row) for row in job.mesh.coordinates.tolist()]
    digests = {rank: repr(trace_of(coordinates[rank])).encode() for rank in present}
    chosen = replace(job, present=present, survey=survey).representatives(digests)
    return all(trace_of(coordinates[rank]) == trace_of(coordinates[other]) for rank, other in chosen.items())


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (4, 2, 8), (3, 5)])
def test_a_mesh_has_the_sizes_of_its_groups(sizes: tuple[int, ...]) -> None:
    mesh = mesh_of(len(_mesh_groups(*sizes)[0]), _mesh_groups(*sizes))
    assert sorted(mesh.sizes) == sorted(sizes)
    assert len({tuple(row) for row in mesh.coordinates.tolist()}) == len(mesh.coordinates)


def test_a_group_of_combined_dimensions_adds_none() -> None:
    groups = [*_mesh_groups(2, 4), (0, 1, 2, 3, 4, 5, 6, 7)]
    assert sorted(mesh_of(8, groups).sizes) == [2, 4]


def test_the_world_gives_the_dimension_that_no_group_has() -> None:
    nodes = [tuple(range(8)), (0, 1, 2, 3), (4, 5, 6, 7)]
    assert mesh_of(8, nodes).sizes == (4, 2)


@pytest.mark.parametrize("embeddings", ["alone", "shared"])
def test_groups_that_some_stages_lack_add_no_dimension(embeddings: str) -> None:
    """Four stages of two by two ranks. The first and the last stage have groups for their embeddings, created between
    others, so the k-th groups of a rank of the stages between are of another kind."""
    groups: list[tuple[int, ...]] = []
    names: list[str] = []
    for name, size, stride in (("dp", 2, 2), ("tp", 2, 1)):
        for first in range(16):
            if first // stride % size == 0:
                groups.append(tuple(range(first, first + size * stride, stride)))
                names.append(name)
    for first in range(4):
        groups.append(tuple(range(first, 16, 4)))
        names.append("pp")
        ends = [(first,), (first + 12,)] if embeddings == "alone" else [(first, first + 12)]
        groups += ends
        names += ["embeddings"] * len(ends)
    groups += [(2 * pair, 2 * pair + 1) for pair in range(8)]
    names += ["experts"] * 8
    mesh = mesh_of(16, groups, names)
    assert str(mesh) == "pp 4 x dp 2 x tp 2"
    assert mesh.coordinates[:, mesh.names.index("pp")].tolist() == [rank // 4 for rank in range(16)]


def test_a_mesh_has_the_names_of_its_groups() -> None:
    groups = _mesh_groups(4, 2)
    descriptions = ["default_pg", *["mesh_pp"] * 2, *["TENSOR"] * 4]
    assert str(mesh_of(8, groups, descriptions)) == "pp 4 x TENSOR 2"
    assert str(mesh_of(8, groups, [])) == "4 x 2"


def test_the_summary_says_which_ranks_are_represented() -> None:
    job = _job(4, 8)
    job = replace(job, descriptions=["default_pg", *["mesh_pp"] * 8, *["mesh_dp"] * 4])
    stage = job.mesh.names.index("pp")
    present, survey = _survey(job, lambda place: (place[stage] == 3, not any(place)))
    assert replace(job, present=present, survey=survey).lines([])[:3] == [
        "3 of 32 ranks were processes; mesh pp 4 x dp 8",
        "pp 0 of 4, dp 1-7 of 8 or pp 1-2 of 4: 23 ranks, assumed to be like rank 9",
        "pp 3 of 4: 8 ranks, assumed to be like rank 25",
    ]


def test_the_summary_says_that_named_representatives_are_not_checked() -> None:
    assert _job(4, 8, present=(0, 1)).lines([[0], range(1, 32)]) == [
        "2 of 32 ranks were processes; mesh 4 x 8",
        "30 absent ranks are assumed to be like rank 1",
        "not checked: the ranks were named by hand",
    ]


def test_a_symmetric_job_needs_rank_0_and_one_that_represents_the_others() -> None:
    job = _job(16, 8)
    present, survey = _survey(job, lambda place: "same")
    assert len(present) == 2
    assert set(survey.representatives(job.mesh.coordinates).tolist()) == {present[1]}


def test_a_rank_0_that_logs_is_a_class_of_its_own() -> None:
    assert _found(_job(64), lambda place: place == (0,)) == (0, 1)


def test_every_stage_of_a_pipeline_is_run() -> None:
    job = _job(4, 8, 2)
    dimension = job.mesh.sizes.index(8)
    present = _found(job, lambda place: place[dimension])
    assert {int(job.mesh.coordinates[rank][dimension]) for rank in present} == set(range(8))
    assert len(present) == 9  # rank 0 represents no other rank


def test_boundaries_of_uneven_shards_are_found() -> None:
    job = _job(1024)
    present = _found(job, lambda place: (place[0] < 128, place[0] < 512, place == (0,)))
    assert set(present) == {0, 1, 128, 512}


@pytest.mark.parametrize(
    ("length", "changes"),
    [(515, {171, 172}), (512, set()), (192, {192}), (255, {255}), (1, {1}), (0, set()), (50368, {255}), (1000, {250})],
)
def test_shares_change_where_the_parts_of_a_tensor_end(length: int, changes: set[int]) -> None:
    assert changes_of_shares(256, [length]) == changes


_LENGTHS = (64, 192, 256, 515, 50368)  # of tensors that ranks have shares of


@pytest.mark.parametrize(("ranks", "most"), [(256, 30), (1024, 30), (4096, 40)])
def test_uneven_shards_of_many_ranks_need_few(ranks: int, most: int) -> None:
    """A fully sharded job: rank 0 logs, and every tensor is divided in parts of one size, a smaller one, and none."""

    def trace_of(place: tuple[int, ...]) -> object:
        parts = [-(-length // ranks) for length in _LENGTHS]
        return place == (0,), [
            max(0, min(part, length - place[0] * part)) for part, length in zip(parts, _LENGTHS, strict=True)
        ]

    job = _job(ranks)
    present, survey = _survey(job, trace_of, lengths=[1, 3, 8, 27, 128, 2048, *_LENGTHS])
    assert survey.rounds <= 3
    assert len(survey.compared) <= most
    assert len(present) == len({repr(trace_of((rank,))) for rank in range(ranks)})
    chosen = survey.representatives(job.mesh.coordinates).tolist()
    assert all(trace_of((rank,)) == trace_of((chosen[rank],)) for rank in range(ranks))


def test_boundaries_that_no_tensor_explains_are_found() -> None:
    """With lengths that say nothing, with very many, and with one whose shares change next to the boundary."""
    for lengths in ([300, 700], range(1, 2000), [701]):
        survey = _survey(_job(1024), lambda place: place[0] < 700, lengths=lengths)[1]
        assert [(block.first, block.last) for block, _ in survey.blocks] == [((0,), (699,)), ((700,), (1023,))]


@pytest.mark.parametrize(
    "trace_of",
    [
        lambda place: "same",
        lambda place: place[0],
        lambda place: (place[0], place[2] == 0),
        lambda place: place == (0, 0, 0),
        lambda place: (place[1] > 2, place[0] == 1),
        lambda place: place[2] >= 5,
    ],
)
def test_every_rank_is_represented_by_one_with_its_trace(trace_of: Traces) -> None:
    assert _represented_rightly(_job(2, 4, 8), trace_of)


def test_an_odd_rank_in_the_middle_is_found_if_it_is_drawn() -> None:
    job = _job(64)
    odd = _survey(job, lambda place: "same")[1].checked[1]  # it has a larger batch, say
    present, survey = _survey(job, lambda place: place == (odd,))
    chosen = survey.representatives(job.mesh.coordinates).tolist()
    assert {rank for rank in range(64) if chosen[rank] == odd} == {odd}
    assert odd in present


def test_the_summary_says_that_an_odd_rank_in_the_middle_may_be_missed() -> None:
    job = _job(64)
    known = _survey(job, lambda place: "same")[1].compared
    odd = next(rank for rank in range(2, 63) if rank not in known)
    present, survey = _survey(job, lambda place: place == (odd,))
    assert odd not in present
    never = f"{64 - len(survey.compared)} ranks were never run: one of them that differs, or a rank that differs after"
    assert any(line.startswith(never) for line in replace(job, present=present, survey=survey).lines([]))


def _pipelined() -> tuple[RepresentedJob, tuple[int, ...]]:
    """A mesh of 32 x 16 x 8, and one of its pipelines, along the second dimension."""
    job = _job(32, 16, 8)
    return job, next(members for members in job.groups if len(members) == 16)


@pytest.mark.parametrize("odd", [(), (0,), (0, 15 * 8), (0, 32 * 16 * 8 - 1)])
def test_a_few_ranks_that_log_do_not_make_the_survey_run_many(odd: tuple[int, ...]) -> None:
    job, pipeline = _pipelined()
    coordinates = [tuple(row) for row in job.mesh.coordinates.tolist()]
    dimension, logging = job.mesh.sizes.index(16), {coordinates[rank] for rank in odd}
    present, survey = _survey(job, lambda place: (place[dimension], place in logging), [pipeline])
    assert set(odd) <= set(present)
    assert len(present) <= 16 + 1 + len(odd)
    assert survey.rounds <= 2
    assert len(survey.compared) < 80


def test_a_rank_that_logs_in_every_stage_is_found() -> None:
    job, pipeline = _pipelined()
    stage = job.mesh.sizes.index(16)

    def logs(place: tuple[int, ...]) -> bool:
        return not any(index for dimension, index in enumerate(place) if dimension != stage)

    present, survey = _survey(job, lambda place: (place[stage], logs(place)), [pipeline])
    alike = survey.representatives(job.mesh.coordinates).tolist()
    places = [tuple(row) for row in job.mesh.coordinates.tolist()]
    assert all(logs(places[rank]) == logs(places[alike[rank]]) for rank in range(job.world_size))
    assert len(present) == 32


@st.composite
def _jobs_with_traces(draw: st.DrawFn) -> tuple[RepresentedJob, Traces]:
    """A mesh, and traces that depend on some of its dimensions: on the index, or on whether it is below a boundary; in
    some jobs rank 0 does more than the others."""
    sizes = draw(st.lists(st.integers(2, 7), min_size=1, max_size=3))
    job = _job(*sizes)
    dimensions = range(len(job.mesh.sizes))
    boundaries = [draw(st.integers(0, job.mesh.sizes[each])) for each in dimensions]
    kinds = [draw(st.sampled_from(["symmetric", "index", "boundary"])) for _ in dimensions]
    rank_0_logs = draw(st.booleans())

    def trace_of(place: tuple[int, ...]) -> object:
        parts: list[object] = [rank_0_logs and not any(place)]
        for kind, index, boundary in zip(kinds, place, boundaries, strict=True):
            parts.append({"symmetric": 0, "index": index, "boundary": index < boundary}[kind])
        return parts

    return job, trace_of


@given(_jobs_with_traces())
@settings(max_examples=100, deadline=None)
def test_any_dimension_that_matters_is_found(drawn: tuple[RepresentedJob, Traces]) -> None:
    assert _represented_rightly(*drawn)


def test_an_absent_rank_has_the_communicators_of_its_own_groups() -> None:
    job = _job(4, 8)
    mine = {1: (tuple(range(32)), 0), 2: (tuple(range(8)), 0), 3: (tuple(range(0, 32, 8)), 0)}
    found = job.communicators_of(13, 0, mine)
    assert found == {1: (tuple(range(32)), 0), 2: (tuple(range(8, 16)), 0), 3: ((5, 13, 21, 29), 0)}


def test_a_communicator_of_two_places_is_translated() -> None:
    job = _job(2, 4)
    pipeline = job.groups.index((0, 1, 2, 3))
    job = RepresentedJob(8, (0,), job.groups, {((1, 2), 0): GroupOfCommunicator(pipeline, (1, 2))})
    assert job.communicators_of(5, 1, {4: ((1, 2), 0)}) == {4: ((5, 6), 0)}


def test_neighbours_in_a_chain_move_with_the_rank() -> None:
    """A pipeline of four stages, twice. Rank 6 is represented by a rank of the second stage."""
    job = _job(2, 4)
    number = job.groups.index((0, 1, 2, 3))
    pairs = [(low, low + 1) for low in range(3)]
    chain = replace(job, communicators={(pair, 0): GroupOfCommunicator(number, pair) for pair in pairs})
    assert chain.communicators_of(6, 1, {1: ((0, 1), 0), 2: ((1, 2), 0)}) == {1: ((5, 6), 0), 2: ((6, 7), 0)}


def test_the_root_of_a_star_stays() -> None:
    job = _job(4)
    pairs = [(0, other) for other in range(1, 4)]
    star = replace(job, communicators={(pair, 0): GroupOfCommunicator(0, pair) for pair in pairs})
    assert star.communicators_of(3, 1, {1: ((0, 1), 0)}) == {1: ((0, 3), 0)}


def test_a_rank_with_other_groups_is_not_represented() -> None:
    job = RepresentedJob(4, (0,), [(0, 1, 2, 3), (1, 2)], {})
    with pytest.raises(ValueError, match="no present rank has the same process groups as ranks 1-2"):
        job.representatives({0: b"trace"})


def test_a_communicator_without_a_process_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="belongs to no process group"):
        _job(4).communicators_of(1, 0, {1: ((0, 3), 0)})


def test_the_file_keeps_everything(tmp_path: Path) -> None:
    job = _job(2, 4, present=(0, 1))
    job.save(tmp_path)
    loaded = RepresentedJob.load(tmp_path)
    assert loaded is not None
    assert (loaded.world_size, loaded.present, list(loaded.groups)) == (8, (0, 1), list(job.groups))
    assert dict(loaded.communicators) == dict(job.communicators)


def test_the_file_of_a_survey_keeps_everything(tmp_path: Path) -> None:
    blocks = [(MeshBlock((0, 0), (0, 3)), 0), (MeshBlock((1, 0), (1, 3)), 5)]
    survey = SurveyResult((2, 4), blocks, (3,), (0, 3, 5), 2)
    survey.save(tmp_path)
    assert SurveyResult.load(tmp_path) == survey


def test_a_run_with_all_ranks_has_no_file(tmp_path: Path) -> None:
    assert RepresentedJob.load(tmp_path) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "process_groups.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"process_groups\.json.*run the job again"):
        RepresentedJob.load(tmp_path)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 1, 2, 3), "0-3"),
        ((0, 8, 16, 24), "0-24:8"),
        ((3, 1), "3,1"),
        ((5,), "5"),
        ((0, 1, 2, 8, 9, 10), "0-2,8-10"),
    ],
)
def test_members_as_text(numbers: tuple[int, ...], text: str) -> None:
    assert format_strided(numbers) == text
    assert parse_strided(text) == numbers


def test_rank_0_represents_others_only_if_no_other_rank_fits() -> None:
    """Tensor 2 x data 2 x pipeline 2. Rank 0 logs; ranks 4 and 5 show that the dimension of 0 and 1 does not matter."""
    job = _job(2, 2, 2, present=(0, 1, 4, 5))
    assert job.representatives({0: b"first, logs", 1: b"first", 4: b"last", 5: b"last"}) == {2: 1, 3: 1, 6: 4, 7: 5}


def test_rank_0_represents_its_stage_of_a_pipeline() -> None:
    """It differs from rank 4, which it sends to."""
    job = _job(2, 4, present=(0, 4))
    assert job.representatives({0: b"first", 4: b"last"}, peers=[4]) == {1: 0, 2: 0, 3: 0, 5: 4, 6: 4, 7: 4}


def test_a_rank_0_that_is_like_others_shows_which_dimension_matters() -> None:
    job = _job(4, 2, present=(0, 1, 2))
    assert set(job.representatives({0: b"first", 1: b"first", 2: b"other"}).values()) == {2}
    assert job.representatives({0: b"logs", 1: b"odd", 2: b"even"}) == {3: 1, 4: 2, 5: 1, 6: 2, 7: 1}


def test_a_dimension_along_which_some_ranks_agree_matters_less() -> None:
    """Pipeline of four stages, two of them; the last rank logs."""
    job = _job(2, 4, present=(0, 1, 2, 3, 4, 7))
    digests = {0: b"0", 1: b"1", 2: b"2", 3: b"3", 4: b"0", 7: b"3, logs"}
    assert job.representatives(digests, peers=[1]) == {5: 1, 6: 2}


def test_a_rank_after_the_absent_one_fits_better_than_rank_0() -> None:
    assert _job(4, present=(0, 3)).representatives({0: b"logs", 3: b"trains"}) == {1: 3, 2: 3}


def test_the_summary_warns_if_rank_0_represents_others() -> None:
    warning = "rank 0 may do more than the ranks it represents (log, save, gather): add one of them to --represent, "
    assert f"{warning}such as 2" in _job(4, present=(0, 1)).lines([[0, 2], [1, 3]])
    assert not any("may do more" in line for line in _job(4, present=(0, 1)).lines([[0, 1, 2, 3]]))


def test_a_survey_that_saw_other_groups_is_not_used() -> None:
    """The script creates pairs of ranks after the survey's steps."""
    survey = SurveyResult((8,), [(MeshBlock((0,), (7,)), 1)], (), (0, 1, 7), 2)
    job = replace(_job(4, 2, present=(0, 1)), survey=survey)
    assert job.representatives({0: b"logs", 1: b"trains"}) == dict.fromkeys(range(2, 8), 1)
    assert any("saw a mesh of 8" in line for line in job.lines([[0], range(1, 8)]))


def test_traces_show_pipelines_and_lengths_of_tensors(tmp_path: Path) -> None:
    """Stages of a pipeline are told from the members of an all-to-all."""
    rank = TraceWriter(1)
    rank.join(1, range(4))
    rank.join(2, (1, 5))
    for peer in range(4):
        rank.send(1, peer)
        rank.receive(1, peer)
    rank.send(2, 5)
    rank.op("aten::mm", [{"shape": [515, 64], "dtype": "float32"}, {"shape": [64, 64], "dtype": "float32"}])
    rank.op("aten::cat", [[{"shape": [7], "dtype": "float32"}, {"shape": [], "dtype": "float32"}], 0])
    rank.save(tmp_path)
    facts = trace_facts(tmp_path, {})
    assert facts.p2p == {(1, 5)}
    assert facts.lengths == {515, 64, 7}
