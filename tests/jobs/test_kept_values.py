"""Small values are right in any program; large contents that are not kept are reported as placeholders."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, runner_in

from maya.trace import count_records, read
from rank_runtime.build import Build

FULL = "contents of large floating-point copies become placeholders (zeros) from here on"


def room(size: int) -> dict[str, str]:
    return {"MAYA_KEPT_BYTES": str(size), "MAYA_OBJECT_BYTES": str(size)}


def test_copying_a_model_leaves_small_values_alone(maya_run: MayaRun) -> None:
    script = """
        import torch
        import torch.distributed as dist
        from torch import nn

        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8))).cuda()  # 256 KiB each
        assert torch.tensor([5]).cuda().item() == 5
        assert torch.tensor([5]).pin_memory().cuda(non_blocking=True).item() == 5
        x = torch.tensor([rank + 1.0]).cuda()
        dist.all_reduce(x)
        assert x.item() == 3.0
        gathered = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": 0}, {"rank": 1}]
        dist.destroy_process_group()
    """
    full = maya_run(script, "--nproc", "2", "--no-timeline", environment={**room(0), "MAYA_KEPT_BYTES": str(1 << 20)})
    assert full.exit_code == 0, full.output
    assert full.stderr.count(FULL) == 1
    assert "placeholder values" not in full.stderr
    limits = ("--copy-bytes", "0", "--collective-bytes", "0", "--compute-bytes", "8")
    none = maya_run(script, "--nproc", "2", "--no-timeline", *limits, environment=room(0))
    assert none.exit_code == 0, none.output


# The room is 1,000,000 bytes.
DISPLACED = Checks(
    """
    import torch

    # ---- integers and floating-point contents compete for the room ----

    weights = [torch.ones(50_000).cuda() for _ in range(7)]  # 200,000 bytes each
    held = {"tokens": torch.arange(100_000).cuda()}  # 800,000 bytes
    held["last"] = torch.ones(50_000, dtype=torch.int32).cuda()

    def integers_are_kept():
        assert torch.equal(held["tokens"].cpu(), torch.arange(100_000))
        assert held["last"].cpu().all()

    def floating_point_contents_make_room_for_integers():
        assert not any(weight.cpu().any() for weight in weights)  # GIVEN UP

    def integers_without_room_are_placeholders():
        more = torch.ones(50_000, dtype=torch.int32).cuda()
        assert not more[7:9].cpu().any()  # GIVEN UP

    def freed_contents_make_room():
        held.clear()
        held["weight"] = torch.ones(200_000).cuda()
        assert held["weight"].cpu().all()

    def replaced_contents_make_room():
        for number in range(3):
            held["weight"].copy_(torch.full((200_000,), float(number + 1)))
            assert (held["weight"].cpu() == number + 1).all()

    def contents_replaced_by_a_graph_make_room():
        source, graph = torch.full((200_000,), 7.0).pin_memory(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held["weight"].copy_(source, non_blocking=True)
        graph.replay()
        assert (held["weight"].cpu() == 7).all()

    def a_copy_on_the_device_takes_room():
        other = held["weight"].clone()
        assert (held["weight"].cpu() == 7).all()
        assert not other[:10].cpu().any() and not other.cpu().any()  # GIVEN UP
    """
)


@pytest.fixture(scope="module")
def displaced(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return DISPLACED.run(runner_in(tmp_path_factory.mktemp("displaced")), environment=room(1_000_000))


@pytest.mark.parametrize("check", DISPLACED.names)
def test_room_for_contents(displaced: Outcomes, check: str) -> None:
    displaced.require(check)


def test_lost_contents_are_warned_of_once(displaced: Outcomes) -> None:
    said = displaced.run.stderr
    assert said.count(FULL) == 1
    assert said.count("200000 bytes of integers written to the GPU become placeholders (zeros)") == 1
    assert "some of these values are from large copies whose contents were not kept: " in said


def test_reads_of_lost_contents_are_counted_with_their_lines(displaced: Outcomes) -> None:
    lines = (displaced.run.folder.parent / "script1.py").read_text(encoding="utf-8").splitlines()
    reads = count_records(read(displaced.run.trace)).placeholder_reads
    assert reads
    for placeholder in reads:
        assert "GIVEN UP" in lines[int(placeholder.at.rpartition(":")[2]) - 1]
        assert placeholder.given_up == placeholder.times


PROPERTY = """
    import torch
    import torch.distributed as dist
    from hypothesis import HealthCheck, Phase, given, settings, strategies as st

    SMALL, SLOTS = 65536, 6
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    side = torch.cuda.Stream()

    class Slot:
        '''A tensor on the GPU and its contents. Where these are small they must be right, elsewhere right or zero.'''

        def __init__(self, gpu, cpu, small):
            self.gpu, self.cpu, self.small = gpu, cpu, torch.full(cpu.shape, small)

        def check(self):
            if self.small.all():
                assert torch.equal(self.gpu.cpu(), self.cpu)
                return
            found = self.gpu.cpu()  # LARGE
            right = found == self.cpu
            assert right[self.small].all()
            assert (right | (found == 0)).all()

    def numbers(count, dtype, seed):
        return (torch.arange(count) % 97 + 1 + seed).to(dtype)

    # large: three of them fill the room to the last byte, others leave some
    sizes = {False: st.sampled_from((25_000, 25_000, 50_000, 75_000, 20_001)), True: st.integers(1, SMALL // 8)}
    dtypes = st.sampled_from((torch.float32, torch.int64, torch.int32, torch.uint8))
    place = st.integers(0, SLOTS - 1)

    def copies(small):
        # a uint8 tensor is large only if it has that many bytes
        make = lambda slot, count, dtype, seed, way: (
            "copy", slot, count * (4 if dtype is torch.uint8 and not small else 1), dtype, seed, way, small)
        ways = st.sampled_from(("pageable", "pinned", "side"))
        return st.builds(make, place, sizes[small], dtypes, st.integers(0, 9), ways)

    steps = st.one_of(
        copies(False),
        copies(False),
        copies(True),
        st.tuples(st.just("into"), place, st.integers(0, 9_000), st.integers(1, 2_000)),
        st.tuples(st.just("fill"), place, st.integers(0, 9_000), st.integers(1, 2_000)),
        st.tuples(st.just("zero"), place),
        st.tuples(st.just("clone"), place, place),
        st.tuples(st.just("slice"), place, place, st.integers(0, 9_000), st.integers(1, 2_000)),
        st.tuples(st.just("reduce"), place),
        st.tuples(st.just("gather"), place, place),
        st.tuples(st.just("free"), place),
    )

    def to_gpu(cpu, way):
        if way == "pageable":
            return cpu.cuda()
        with torch.cuda.stream(side if way == "side" else torch.cuda.current_stream()):
            gpu = cpu.pin_memory().cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        return gpu

    def part(slot, start, count):
        start = min(start, len(slot.cpu) - 1)
        return slice(start, start + count)

    def run(slots, kind, target, *rest):
        slot = slots.get(target)
        if kind == "copy":
            count, dtype, seed, way, small = rest
            cpu = numbers(count, dtype, seed + rank)
            slots[target] = Slot(to_gpu(cpu, way), cpu, small)
        elif slot is None:
            return
        elif kind == "into":
            where = part(slot, *rest)
            slot.cpu[where] = 5 + rank
            slot.gpu[where].copy_(slot.cpu[where].clone())
            slot.small[where] = True
        elif kind == "fill":
            where = part(slot, *rest)
            slot.gpu[where].fill_(3)
            slot.cpu[where] = 3
            slot.small[where] = True
        elif kind == "zero":
            slot.gpu.zero_()
            slot.cpu.zero_()
        elif kind == "clone":
            made = slots[rest[0]] = Slot(slot.gpu.clone(), slot.cpu.clone(), False)
            made.small = slot.small.clone()
        elif kind == "slice":
            where = part(slot, *rest[1:])
            if slot.small[where].all():
                slots[rest[0]] = Slot(slot.gpu[where].clone(), slot.cpu[where].clone(), True)
        elif kind == "free":
            slot.check()
            del slots[target]
        elif slot.cpu.nbytes <= SMALL // 2 and slot.small.all():
            both = [slot.cpu.clone() for _ in range(2)]
            dist.all_gather(both, slot.cpu, group=gloo)
            if kind == "reduce":
                dist.all_reduce(slot.gpu)
                slot.cpu = (both[0] + both[1]).to(slot.cpu.dtype)
            else:
                gathered = torch.empty(2 * len(slot.cpu), dtype=slot.cpu.dtype, device="cuda")
                dist.all_gather_into_tensor(gathered, slot.gpu)
                slots[rest[0]] = Slot(gathered, torch.cat(both), True)

    @settings(max_examples=40, deadline=None, database=None, derandomize=True, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, min_size=5, max_size=30))
    def check(program):
        slots = {}
        for step in program:
            run(slots, *step)
        for slot in slots.values():
            slot.check()

    gloo = dist.new_group(backend="gloo")
    check()
    dist.destroy_process_group()
    print("right\\n", end="")  # in one piece: ranks share the stream
"""


def test_small_values_are_right_in_random_programs(maya_run: MayaRun) -> None:
    """Random copies, fills, collectives and frees, while there is room for a few of the large contents only."""
    run = maya_run(PROPERTY, "--nproc", "2", "--no-timeline", environment=room(300_000))
    assert (run.exit_code, run.stdout.count("right\n")) == (0, 2), run.output
    assert FULL in run.stderr
    lines = (run.folder.parent / "script1.py").read_text(encoding="utf-8").splitlines()
    (placeholder,) = count_records(read(run.trace)).placeholder_reads
    assert "LARGE" in lines[int(placeholder.at.rpartition(":")[2]) - 1]


EXCHANGE = """
import random
import torch
import torch.distributed as dist

FEATURES, BATCH = 26, 8192
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(rank)
for _ in range(2):
    lengths = torch.randint(0, 5, (FEATURES * BATCH,))
    ids = torch.randint(0, 1 << 40, (int(lengths.sum()),))
    on_gpu, ids_on_gpu = lengths.cuda(), ids.cuda()
    offsets = torch.cumsum(on_gpu, 0)
    assert torch.equal(offsets.cpu(), lengths.cumsum(0))
    per_rank = on_gpu.view(world, -1).sum(1)
    received = torch.empty_like(per_rank)
    dist.all_to_all_single(received, per_rank)
    sent, expected = per_rank.tolist(), received.tolist()
    assert sent == lengths.view(world, -1).sum(1).tolist() and sum(sent) == ids.numel()
    lengths_there = torch.empty_like(on_gpu)
    dist.all_to_all_single(lengths_there, on_gpu)
    assert lengths_there.view(world, -1).sum(1).tolist() == expected
    ids_there = ids_on_gpu.new_empty(sum(expected))
    dist.all_to_all_single(ids_there, ids_on_gpu, expected, sent)
    bins = (ids_there % world).bincount(minlength=world).tolist()
    assert sum(bins) == sum(expected) and min(bins) > 0
    kept = ids_there[(ids_there % 2).bool()]
    assert kept.numel() == (ids_there % 2).sum().item()
dist.destroy_process_group()
print("exchanged\\n", end="")
"""


def test_large_integers_from_the_host_decide_sizes(maya_run: MayaRun) -> None:
    """A recommendation model's identifiers and lengths, of a batch of its usual size."""
    run = maya_run(EXCHANGE, "--nproc", "2", "--no-timeline", "--strict-values")
    assert (run.exit_code, run.stdout.count("exchanged\n")) == (0, 2), run.output


MASKS = """
import torch
tokens = torch.randint(1, 1000, (4, 2048)).cuda()
padding = (tokens > 0)[:, None, None, :]
causal = torch.ones(2048, 2048, dtype=torch.bool, device="cuda").tril()
def private():
    lines = open("/proc/self/smaps_rollup").readlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
before = private()
masks = [causal & padding for _ in range(8)]  # 128 MiB
assert private() - before < 16 << 10
assert (tokens != 7).sum().item() == (tokens.cpu() != 7).sum().item()
"""


def test_masks_of_attention_are_not_computed(maya_run: MayaRun) -> None:
    run = maya_run(MASKS, "--no-timeline")
    assert run.exit_code == 0, run.output
