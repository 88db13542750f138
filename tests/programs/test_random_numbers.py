"""Random numbers of the virtual GPU: seeds, states, generators and recomputation, as on a real one."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun

RANDOM_NUMBERS = Checks(
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    def _draws():
        return [
            torch.rand(5, device="cuda"), torch.randn(7, device="cuda"), torch.randperm(9, device="cuda"),
            torch.randint(100, (6,), device="cuda"), torch.empty(4, device="cuda").exponential_(),
            torch.bernoulli(torch.full((8,), 0.5, device="cuda")), nn.Dropout(0.5)(torch.ones(16, device="cuda")),
            torch.multinomial(torch.ones(6, device="cuda"), 3),
        ]

    def equal(a, b):
        return all(torch.equal(left.cpu(), right.cpu()) for left, right in zip(a, b, strict=True))

    torch.manual_seed(5)
    first, after = _draws(), _draws()
    print(*(each.tolist() for each in first))

    def the_same_seed_gives_the_same_numbers():
        torch.manual_seed(5)
        assert equal(first, _draws())
        assert equal(after, _draws())

    def numbers_go_on_after_the_first():
        assert not equal(first, after)

    def numbers_are_in_their_ranges():
        assert first[2].sort().values.tolist() == list(range(9))
        assert 0 <= first[0].min().item() and first[0].max().item() < 1

    def dropout_drops_some_and_scales_the_others():
        kept = set(first[6].tolist())
        assert kept <= {0.0, 2.0} and len(kept) == 2, kept

    def a_restored_state_gives_the_same_numbers():
        state = torch.cuda.get_rng_state()
        once = _draws()
        torch.cuda.set_rng_state(state)
        assert equal(once, _draws())

    def an_own_generator_leaves_the_default_one_alone():
        state = torch.cuda.get_rng_state()
        own = torch.Generator("cuda").manual_seed(9)
        drawn = torch.rand(3, device="cuda", generator=own).tolist()
        assert torch.equal(state, torch.cuda.get_rng_state())
        assert drawn == torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(9)).tolist()

    # Recomputing stops with an exception out of the last op of the region, so the region ends in several ways.
    def _gradients(last, checkpointed):
        torch.manual_seed(7)
        kinds = lambda: (nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), last())
        layers = nn.ModuleList(nn.Sequential(*kinds()) for _ in range(4)).cuda()
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=False) if checkpointed else layer(y)
        y.sum().backward()
        return [y.detach(), x.grad, *(parameter.grad for parameter in layers.parameters())]

    def a_recomputed_region_drops_the_same_elements_again():
        for last in lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Softmax(-1), nn.Dropout, lambda: nn.LayerNorm(8):
            assert equal(_gradients(last, False), _gradients(last, True)), last

    def numbers_of_the_device_leave_those_of_the_cpu_alone():
        torch.manual_seed(11)
        expected = torch.rand(3)
        torch.manual_seed(11)
        _draws()
        assert torch.equal(torch.rand(3), expected)
    """
)


@pytest.fixture(scope="module")
def random_numbers(maya_run_once: MayaRun) -> Outcomes:
    return RANDOM_NUMBERS.run(maya_run_once, "--compute", "all")


@pytest.mark.parametrize("check", RANDOM_NUMBERS.names)
def test_random_numbers(random_numbers: Outcomes, check: str) -> None:
    random_numbers.require(check)


def test_random_numbers_are_the_same_where_only_small_tensors_are_computed(
    random_numbers: Outcomes, maya_run_once: MayaRun
) -> None:
    small = RANDOM_NUMBERS.run(maya_run_once)
    assert (small.run.exit_code, small.run.stdout) == (0, random_numbers.run.stdout), small.run.output
