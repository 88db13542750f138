"""Routers of mixtures of experts: choices among placeholder scores follow a rule, and their consequences are known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import Flag, RecordKind, count_records, read

_START = """
    import json
    import torch
    import torch.nn.functional as F

    TOKENS, EXPERTS, TAKEN = 8192, 64, 6
    EACH = TOKENS * TAKEN // EXPERTS
    hidden = torch.randn(TOKENS, 128, device="cuda")
    router = torch.nn.Linear(128, EXPERTS, bias=False, device="cuda")
    scores = F.softmax(router(hidden), -1)
    weights, chosen = scores.topk(TAKEN, -1)
"""

ROUTERS = Checks(
    _START
    + """
    def _mask():
        return torch.zeros(TOKENS, EXPERTS, dtype=torch.int32, device="cuda").scatter(1, chosen, 1).bool()

    def _even(counts):
        assert counts.tolist() == [EACH] * EXPERTS, counts.tolist()

    def the_choices_of_a_token_differ():
        assert (chosen.sort(-1)[0].diff() > 0).all().item()

    def choices_lie_apart():
        assert (chosen.sort(-1)[0].diff() > 1).all().item()

    def counts_by_bincount():
        _even(torch.bincount(chosen.flatten(), minlength=EXPERTS))

    def counts_by_histc():
        _even(torch.histc(chosen.flatten(), bins=EXPERTS, min=0, max=EXPERTS))
        _even(torch.histc(chosen.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS))

    def counts_by_one_hot():
        _even(F.one_hot(chosen, EXPERTS).sum((0, 1)))

    def counts_by_a_mask():
        _even(_mask().sum(0))
        assert (_mask().sum(1) == TAKEN).all().item()
        _even((torch.zeros_like(scores).int().scatter(1, chosen, 1) > 0).sum(0))

    def counts_by_comparison():
        _even(torch.stack([(chosen == expert).sum() for expert in range(EXPERTS)]))

    def counts_by_unique():
        found, counts = torch.unique(chosen, return_counts=True)
        assert found.tolist() == list(range(EXPERTS))
        _even(counts)

    def counts_by_scatter_add():
        flat = chosen.flatten()
        _even(torch.zeros(EXPERTS, dtype=torch.long, device="cuda").scatter_add_(0, flat, torch.ones_like(flat)))

    def rows_by_nonzero():
        assert torch.nonzero(_mask()[:, 5]).shape == (EACH, 1)
        token, place = torch.where(chosen == 5)
        assert len(token) == EACH and hidden[token].shape == (EACH, 128)

    def rows_by_a_mask():
        assert hidden[_mask()[:, 5]].shape == (EACH, 128)
        assert scores.masked_select(_mask()).shape == (TOKENS * TAKEN,)
        numbers = torch.arange(TOKENS, device="cuda").expand(EXPERTS, -1).masked_select(_mask().T.contiguous())
        assert (numbers.view(EXPERTS, EACH).diff() > 0).all().item()

    def an_order_by_expert():
        order = chosen.flatten().argsort(stable=True)
        assert (chosen.flatten()[order].diff() >= 0).all().item()
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device="cuda")
        assert (back[order] == torch.arange(len(order), device="cuda")).all().item()
        assert sorted(back.tolist()) == list(range(len(order)))

    def places_in_the_experts_buffers():
        mask = F.one_hot(chosen[:, 0], EXPERTS)
        place = (mask.cumsum(0) * mask).sum(-1) - 1
        assert place.max().item() == TOKENS // EXPERTS - 1

    def the_tokens_that_an_expert_drops():
        kept = torch.zeros_like(scores).scatter(1, chosen, weights).topk(EACH // 2, dim=0)[1]
        kept = torch.zeros_like(scores).scatter(0, kept, 1).bool() & _mask()
        assert kept.sum(0).tolist() == [EACH // 2] * EXPERTS

    def weights_add_up():
        assert torch.allclose((weights / weights.sum(-1, keepdim=True)).sum(-1).cpu(), torch.ones(TOKENS))

    def one_expert_by_argmax():
        for one in (scores.argmax(-1), scores.max(-1)[1], scores.argsort(-1, descending=True)[:, 0]):
            assert torch.bincount(one, minlength=EXPERTS).tolist() == [TOKENS // EXPERTS] * EXPERTS

    def a_number_of_tokens_that_is_no_multiple():
        counts = torch.bincount(scores[:1001].topk(3)[1].flatten(), minlength=EXPERTS).tolist()
        assert sum(counts) == 3003 and max(counts) - min(counts) <= 1

    def integers_are_summed_sorted_and_selected_as_on_the_cpu():
        generator = torch.Generator().manual_seed(5)
        few = torch.randint(-40, 40, (300, 7, 20), generator=generator)
        mask = torch.rand(300, 7, 20, generator=generator) < 0.05
        ops = [
            *(lambda x, m, dims=dims: m.sum(dims) for dims in (0, 1, 2, (0, 1), (1, 2), (0, 2), -1)),
            *(lambda x, m, dims=dims: x.int().sum(dims, keepdim=True) for dims in (0, 1, 2, (0, 1))),
            lambda x, m: x.to(torch.uint8).sum(),
            lambda x, m: m.sum(dtype=torch.int32),
            lambda x, m: m.nonzero(),
            lambda x, m: x.masked_select(m),
            lambda x, m: x[:1].expand(300, -1, -1).masked_select(m),
            lambda x, m: x[m],
            lambda x, m: torch.stack(x.flatten().sort(stable=True)),
            lambda x, m: torch.stack(x.flatten().sort(stable=True, descending=True)),
            lambda x, m: (x.flatten() * 10**12).sort()[0],
        ]
        for number, op in enumerate(ops):
            expected, found = op(few, mask), op(few.cuda(), mask.cuda())
            assert expected.dtype == found.dtype and expected.shape == found.shape, number
            assert torch.equal(expected, found.cpu()), number

    def few_tokens():
        assert len(set(scores[:2].topk(4)[1].flatten().tolist())) == 8

    def tokens_that_choose_along_another_dimension():
        assert torch.equal(scores.T.contiguous().topk(TAKEN, 0)[1].T, chosen)

    def a_recomputation_chooses_the_same():
        assert torch.equal(F.softmax(router(hidden), -1).topk(TAKEN, -1)[1], chosen)

    def a_choice_while_its_stream_waits():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
        torch.cuda.current_stream().wait_stream(stream)
        _even(F.one_hot(scores.topk(TAKEN, -1)[1], EXPERTS).sum((0, 1)))

    def a_vocabulary_is_no_choice_of_experts():
        logits = torch.nn.Linear(128, 5000, device="cuda")(hidden)
        assert not logits.argmax(-1).any().item()

    def known_scores_are_really_compared():
        few = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]).cuda()
        assert few.topk(2)[1].tolist() == [[1, 2], [0, 2]]
    """
)


@pytest.fixture(scope="module")
def routers(maya_run_once: MayaRun) -> Outcomes:
    return ROUTERS.run(maya_run_once)


@pytest.mark.parametrize("check", ROUTERS.names)
def test_routing(routers: Outcomes, check: str) -> None:
    routers.require(check)


_COUNT = (
    _START
    + """
    print(json.dumps([torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist(), chosen[0].tolist()]))
    """
)


def test_reads_of_what_follows_from_a_choice_are_no_error_and_are_stated(maya_run: MayaRun) -> None:
    run = maya_run(_COUNT, "--strict-values")
    assert run.exit_code == 0, run.output
    totals = count_records(read(run.trace))
    assert totals.placeholder_reads == ()
    (choice,) = totals.choices
    assert (choice.op, choice.alternatives, choice.times, choice.skew) == ("aten::topk", 64, 1, 1.0)
    assert all(".py:" in at for at in (choice.at, *(each.at for each in totals.assumed_reads)))
    assert "even routing" in run.stderr
    assert "reads placeholder values" not in run.stderr


def test_a_skew_loads_one_expert_and_the_seed_says_which(maya_run: MayaRun) -> None:
    loads = []
    for seed in ("0", "1"):
        run = maya_run(_COUNT, "--moe-skew", "3", "--moe-seed", seed)
        assert run.exit_code == 0, run.output
        assert "3 times as often as on average" in run.stderr
        counts, first = json.loads(run.stdout)
        assert len(set(first)) == 6
        assert sum(counts) == 8192 * 6
        assert max(counts) == pytest.approx(3 * 8192 * 6 / 64, rel=0.01)
        assert min(counts) > 0
        loads.append(counts)
    assert sorted(loads[0]) == sorted(loads[1])
    assert loads[0] != loads[1]


def test_computing_everything_leaves_the_choice_to_the_scores(maya_run: MayaRun) -> None:
    run = maya_run(_COUNT, "--compute", "all")
    assert run.exit_code == 0, run.output
    assert len(set(json.loads(run.stdout)[0])) > 1
    assert count_records(read(run.trace)).choices == ()


def test_a_skew_below_one_is_refused(maya_run: MayaRun) -> None:
    run = maya_run("print()", "--moe-skew", "0.5")
    assert run.exit_code == 2
    assert "is not a number from 1 on" in run.stderr


METRICS = """
    import torch
    import torch.nn.functional as F

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        labels = torch.randint(100, (512,), device="cuda")
        logits = model(torch.randn(512, 256, device="cuda"))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predicted = logits.argmax(-1)
        right = predicted == labels
        accuracy = right.float().mean().item()
        correct = logits.topk(5, 1)[1].t().eq(labels.view(1, -1).expand(5, -1))
        accuracy5 = correct[:5].reshape(-1).float().sum(0).mul_(100 / 512).item()
        most = (logits.max(1)[1] == labels).sum().item()
        confusion = torch.bincount(labels * 100 + predicted, minlength=10_000).cpu()
"""


def test_metrics_are_placeholder_reads_and_no_routing(maya_run: MayaRun) -> None:
    run = maya_run(METRICS)
    assert run.exit_code == 0, run.output
    totals = count_records(read(run.trace))
    assert [choice.routes for choice in totals.choices] == [False] * 3
    assert totals.assumed_reads == ()
    assert len({each.at for each in totals.placeholder_reads}) == 4
    kinds = [each["kind"] for each in _summary(run)["assumptions"]]
    assert "placeholder_reads" in kinds
    assert not {"routing", "routing_reads"} & set(kinds)
    assert _summary(run)["prediction"]["routing"] is None


MIXTURE = (
    METRICS.split("for step")[0]
    + """
    TOKENS, HIDDEN, EXPERTS = 4096, 512, 8
    before, after, head = (torch.nn.Linear(HIDDEN, HIDDEN, device="cuda") for _ in range(3))
    router = torch.nn.Linear(HIDDEN, EXPERTS, bias=False, device="cuda")
    experts = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN, device="cuda") for _ in range(EXPERTS))
    modules = torch.nn.ModuleList([before, after, head, router, experts])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=0.1)

    def mixture(x):
        weights, chosen = router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out

    for step in range(3):
        labels = torch.randint(HIDDEN, (TOKENS,), device="cuda")
        x = F.relu(before(torch.randn(TOKENS, HIDDEN, device="cuda")))
        x = x + mixture(x)
        logits = head(F.relu(after(x)))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
    """
)


@pytest.fixture(scope="module")
def mixture(maya_run_once: MayaRun) -> ScriptRun:
    run = maya_run_once(MIXTURE)
    assert run.exit_code == 0, run.output
    return run


def test_a_router_beside_a_metric_is_told_from_it(mixture: ScriptRun) -> None:
    totals = count_records(read(mixture.trace))
    assert {choice.op: choice.routes for choice in totals.choices} == {"aten::topk": True, "aten::argmax": False}
    assert [each.times for each in totals.placeholder_reads] == [3]
    assert sum(each.times for each in totals.assumed_reads) == 3 * 8


def test_work_on_picked_rows_has_a_flag(mixture: ScriptRun) -> None:
    trace = read(mixture.trace)
    step = trace.select(RecordKind.LIBRARY)
    step = step[len(step) * 2 // 3 :]
    routed = (step["flags"] & Flag.ROUTED) != 0
    # forward, gradients of input and weight: 8 experts; before (without a gradient of its input), after, head, router
    assert (int(routed.sum()), int((~routed).sum())) == (3 * 8, 2 + 3 * 3)
    ops = {int(op["op"]): trace.signature(int(op["signature"]))["op"] for op in trace.select(RecordKind.OP)}
    kernels = trace.select(RecordKind.KERNEL)
    names = [ops.get(int(op), "") for op in kernels["op"][(kernels["flags"] & Flag.ROUTED) != 0]]
    assert {"aten::index_add_", "aten::index", "aten::topk"} <= set(names)
    assert not [name for name in names if "adam" in name]


def test_the_share_of_time_that_hangs_on_routing_is_stated(mixture: ScriptRun) -> None:
    found = _summary(mixture)
    routing = found["prediction"]["routing"]
    assert 0.2 < routing["time_share"] < 0.9
    assert routing["network_ns"] == 0
    (stated,) = (each for each in found["assumptions"] if each["kind"] == "routing")
    assert f"{100 * routing['time_share']:.1f} % of device time works on what they pick" in stated["text"]
    assert [place["what"] for place in stated["places"]] == ["topk of 8"]


def _summary(run: ScriptRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    return found
