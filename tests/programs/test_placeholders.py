"""Contents that are not kept or not computed: they read as zero, and each read of a placeholder is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun, runner_in

from maya.trace import RecordKind, count_records, read
from rank_runtime.build import Build


def test_memory_never_written_reads_as_zero(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch

        def fill(size):
            return torch.arange(1, size + 1, dtype=torch.int32).cuda()

        # freed memory that held known values is handed out again
        for size in (3, 127, 128, 5000, 300_000, 700_000, 3_000_000):
            for round in range(20):
                held = [fill(size) for _ in range(4)]
                addresses = {each.data_ptr() for each in held}
                del held
                fresh = [torch.empty(size, dtype=torch.int32, device="cuda") for _ in range(4)]
                if round:
                    assert addresses & {each.data_ptr() for each in fresh}, "nothing was reused"
                for each in fresh[: 1 + 3 * (size < 10_000)]:
                    assert not each.cpu().any(), (size, round)
                # a part that is written is there; its neighbours stay zero
                fresh[0][: size // 2] = 7
                fresh[0][:1].copy_(torch.tensor([9], dtype=torch.int32))
                read = fresh[0].cpu()
                assert read[0] == 9 and not read[size // 2 + 1 :].any()
                del fresh
        torch.cuda.empty_cache()
        assert not torch.empty(1_000_000, device="cuda").cpu().any()
        print("zeros")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "zeros\n"


LARGE_OPS = Checks(
    """
    import torch

    there = torch.arange(1, 100_001, dtype=torch.float32).cuda()
    there.mul_(2)

    def _known():
        return torch.arange(1, 100_001, dtype=torch.float32).cuda()

    def _is_placeholder(result):
        assert not result.cpu().any()

    def an_argument_that_an_op_changed():
        _is_placeholder(there)

    def an_argument_that_an_op_wrote_to():
        _is_placeholder(torch.exp(there, out=_known()))

    def new_memory_that_an_op_wrote_to():
        _is_placeholder(torch.exp(there, out=torch.empty(0, device="cuda")))

    def a_list_of_arguments_that_an_op_changed():
        several = [_known(), _known()]
        torch._foreach_add_(several, 1)
        for each in several:
            _is_placeholder(each)

    def a_strided_part_that_an_op_changed():
        every_second = _known()[::2]
        every_second.add_(1)
        _is_placeholder(every_second)

    def a_result_in_memory_that_held_known_values():
        for _ in range(3):
            _known()
            _is_placeholder(torch.tanh(there))

    def a_list_of_results():
        for each in torch._foreach_exp([there] * 40):
            _is_placeholder(each)

    def a_gradient_in_memory_that_was_set_to_zero():
        weight = torch.zeros(5_000, 40, device="cuda", requires_grad=True)
        torch.nn.functional.embedding(torch.arange(5_000).cuda(), weight).sum().backward()
        _is_placeholder(weight.grad)

    def a_result_of_a_graph():
        captured, graph = _known(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.exp(captured)
        result.copy_(_known())
        graph.replay()
        _is_placeholder(result)
    """
)


@pytest.fixture(scope="module")
def large_ops(maya_run_once: MayaRun) -> Outcomes:
    return LARGE_OPS.run(maya_run_once)


@pytest.mark.parametrize("check", LARGE_OPS.names)
def test_large_ops_write_placeholders(large_ops: Outcomes, check: str) -> None:
    large_ops.require(check)


def test_every_read_of_a_placeholder_is_recorded(large_ops: Outcomes) -> None:
    assert len(read(large_ops.run.trace).select(RecordKind.PLACEHOLDER_READ)) == 51


KEPT_COPIES = Checks(
    """
    import sys, torch

    copy_bytes, kept_bytes = map(int, sys.argv[1:])

    def _survives(size):
        data = torch.arange(size // 4, dtype=torch.int32) + 1
        there = data.cuda()
        back = there.cpu()
        assert torch.equal(back, data) or not back.any(), "neither what was copied nor zeros"
        # a copy of it on the device, part of it, and back through pinned memory
        assert torch.equal(there.clone()[10:20].cpu(), back[10:20])
        pinned = torch.empty(size // 4, dtype=torch.int32, pin_memory=True).copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(pinned, back)
        return bool(back.any())

    def a_copy_of_the_largest_size_is_kept():
        assert _survives(copy_bytes)

    def a_larger_copy_is_not_kept():
        assert not _survives(copy_bytes + 4)

    def as_many_copies_are_kept_as_there_is_room_for():
        data = torch.arange(copy_bytes // 4, dtype=torch.int32) + 1
        many = [data.cuda() for _ in range(kept_bytes // copy_bytes + 2)]
        kept = sum(bool(each[:4].cpu().any()) for each in many)
        assert kept == kept_bytes // copy_bytes, kept

    def freed_room_is_used_again():
        assert _survives(copy_bytes)
    """
)


@pytest.fixture(scope="module", params=["default limits", "chosen limits"])
def kept_copies(request: pytest.FixtureRequest, maya_run_once: MayaRun) -> Outcomes:
    if request.param == "default limits":
        return KEPT_COPIES.run(maya_run_once, script_arguments=[str(16 << 20), str(256 << 20)])
    limits = ("--copy-bytes", "100000")
    room = {"MAYA_KEPT_BYTES": "1000000"}
    return KEPT_COPIES.run(maya_run_once, *limits, script_arguments=["100000", "1000000"], environment=room)


@pytest.mark.parametrize("check", KEPT_COPIES.names)
def test_kept_copies(kept_copies: Outcomes, check: str) -> None:
    kept_copies.require(check)


PLACEHOLDERS = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
    x = torch.randn(512, 1024, device="cuda")
    loss = model(x).pow(2).mean()
    loss.backward()
    values = [
        loss.item(),  # LOSS
        nn.utils.clip_grad_norm_(model.parameters(), 1.0).item(),  # NORM
    ]
    assert all(0 <= value < 10 for value in values), values
    y = model(x)
    assert torch.isfinite(y).all().item()  # FINITE
    assert torch.isfinite(loss).item()
    assert not torch.isnan(y).any().item()  # NAN
    assert not torch.isinf(y).any()
    assert y.nonzero().shape[1] == 2  # NONZERO
    assert y.unique().numel() >= 0  # UNIQUE
    assert y[y > 100].numel() == 0  # MASK
    assert torch.equal(y, x)  # EQUAL
    assert torch.equal(y[0, :150], x[0, :150])  # EQUAL_ROW
    assert torch.equal(y[0, :8], x[0, :8])  # EQUAL_FEW
    few = y[0, :6]
    assert few[torch.isfinite(few)].shape == (6,)  # FEW
    assert y.argmax(-1).max().item() < 1024
    best = y.topk(5).indices.cpu()
    assert 0 <= best.min() and best.max() < 1024
    assert model(y[y.mean(-1) > 1e9]).shape[1] == 1024
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536.0 * 4, scaler.get_scale()  # SCALE
    print("benign")
"""


def _line_of(run: ScriptRun, mark: str) -> str:
    (script,) = run.folder.parent.glob("script*.py")
    lines = script.read_text(encoding="utf-8").splitlines()
    return f"{script}:{next(number for number, line in enumerate(lines, 1) if line.endswith(f'# {mark}'))}"


@pytest.fixture(scope="module")
def placeholders(build: Build, tmp_path_factory: pytest.TempPathFactory) -> ScriptRun:
    return runner_in(tmp_path_factory.mktemp("placeholders"))(PLACEHOLDERS)


def test_placeholders_are_benign(placeholders: ScriptRun) -> None:
    assert (placeholders.exit_code, placeholders.stdout) == (0, "benign\n"), placeholders.output


@pytest.mark.parametrize(
    "mark", ["LOSS", "NORM", "FINITE", "NAN", "NONZERO", "UNIQUE", "MASK", "EQUAL", "EQUAL_ROW", "EQUAL_FEW"]
)
def test_lines_that_read_placeholders_are_counted(placeholders: ScriptRun, mark: str) -> None:
    places = {each.at for each in count_records(read(placeholders.trace)).placeholder_reads}
    assert _line_of(placeholders, mark) in places, placeholders.stderr


def test_a_read_of_a_placeholder_is_described(placeholders: ScriptRun) -> None:
    places = {each.at: each for each in count_records(read(placeholders.trace)).placeholder_reads}
    loss = places[_line_of(placeholders, "LOSS")]
    assert (loss.times, loss.read, loss.bytes) == (1, "aten::_local_scalar_dense", 4)


def test_reads_of_placeholders_are_warned_of(placeholders: ScriptRun) -> None:
    assert "the script reads placeholder values, which say nothing about a real run: " in placeholders.stderr


def test_branches_that_depend_on_placeholders_are_named(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch

        def loss():
            return (torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")).sum().item()

        best, waited = float("inf"), 0
        for epoch in range(100):
            now = loss()
            if now < best:
                best = now
            else:
                waited += 1
            if waited == 2:
                break
        print(epoch)
        """
    )
    assert run.stdout == "2\n"
    (line,) = (
        each for each in run.stderr.splitlines() if "branches of the script depend on placeholder values" in each
    )
    assert "if at script1.py:10 (3 times), if ... break at script1.py:14 (3 times); a real run may take others" in line
    (found,) = (each for each in _assumptions(run) if each["kind"] == "placeholder_branches")
    assert [place["what"] for place in found["places"]] == ["if", "if ... break"]


def test_values_that_are_only_printed_are_said_to_be(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        scores = torch.randn(1000, 1000, device="cuda").sigmoid()
        found = (scores > 0.5).sum() * 100 / 1000
        print(f"found {found.item():.2f}")
        """
    )
    (found,) = (each for each in _assumptions(run) if each["kind"] == "placeholder_reads")
    assert found["text"].endswith("script1.py:5 (once); they are printed, and no branch depends on them")


def _assumptions(run: ScriptRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))["assumptions"]
    return found


def test_strict_values_make_a_placeholder_an_error_that_names_the_line(maya_run: MayaRun) -> None:
    run = maya_run(PLACEHOLDERS, "--strict-values")
    assert run.exit_code == 1
    assert f"reads 4 bytes of placeholder values, at {_line_of(run, 'LOSS')}" in run.stderr
    assert "loss.item(),  # LOSS" in run.stderr, "Python's own traceback shows the line"


def test_strict_values_allow_computed_values(maya_run: MayaRun) -> None:
    run = maya_run("import torch; print(torch.tensor([1.0, 2.0]).cuda().sum().item())", "--strict-values")
    assert (run.exit_code, run.stdout) == (0, "3.0\n"), run.output
