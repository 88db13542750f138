"""Large host tensors without contents: random ones take no memory, real ones stay real."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun

from maya.trace import count_records, read

PROGRAM = Checks(
    """
    import copy, ctypes, io, math, os, sys, tempfile
    import numpy, torch
    from torch import nn

    MiB = 1 << 20
    nn.init.trunc_normal_(torch.empty(MiB)).cuda()  # torch imports its functions for the Meta device

    def _private():
        lines = open("/proc/self/smaps_rollup").readlines()
        # Not Private_Clean: pages of libraries count there once no other process maps them.
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))

    class TakesNoMemory:
        def __enter__(self):
            self.before = _private()
        def __exit__(self, *_):
            grown = _private() - self.before
            assert grown < 24 * MiB, grown

    def _model():
        return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))  # 128 MiB

    def a_model_is_built_and_copied_without_pages():
        with TakesNoMemory():
            built = _model()
            for parameter in built.parameters():
                if parameter.dim() > 1:
                    nn.init.trunc_normal_(parameter, std=0.02)
                    nn.init.kaiming_normal_(parameter)
            other = copy.deepcopy(built)
            other.load_state_dict({name: value.clone() for name, value in built.state_dict().items()})
            half = copy.deepcopy(built).to(torch.bfloat16)
            moved = half.cuda().cpu()

    def ops_on_placeholders_have_the_right_shapes():
        with TakesNoMemory():
            w = torch.randn(2048, 2048)
            assert (w @ w.t()).shape == (2048, 2048)
            assert torch.cat([w, w]).shape == (4096, 2048)
            assert w[[1, 2, 3]].shape == (3, 2048)
            assert w.to(torch.float16).dtype == torch.float16
            assert w.add_(1).mul_(2) is w
            q, r = torch.linalg.qr(w)
            assert q.shape == r.shape == (2048, 2048)

    def optimizers_on_the_host_step_without_pages():
        built = _model()
        for make in (
            torch.optim.AdamW,
            torch.optim.SGD,
            lambda parameters: torch.optim.Adam(parameters, amsgrad=True, foreach=True),
            lambda parameters: torch.optim.AdamW(parameters, fused=True),
            lambda parameters: torch.optim.SGD(parameters, momentum=0.9, fused=True),
            lambda parameters: torch.optim.Adagrad(parameters, fused=True),
        ):
            with TakesNoMemory():
                optimizer = make(built.parameters())
                for _ in range(2):
                    for parameter in built.parameters():
                        parameter.grad = torch.randn_like(parameter)
                    optimizer.step()
                optimizer.load_state_dict(optimizer.state_dict())

    def scaled_zeros_are_known_and_take_no_pages():
        with TakesNoMemory():
            zeros = torch.zeros(16 * MiB).mul_(0.9).div_(3)
            torch._foreach_mul_([zeros], 2.0)
            zeros.mul_(torch.tensor(0.5))
        assert zeros[7].item() == 0.0
        assert torch.zeros(MiB).mul_(math.inf).isnan().all()
        assert torch.zeros(MiB).div_(0).isnan().all()

    def autograd_works_on_placeholders():
        w = torch.randn(1024, 1024, requires_grad=True)
        (w.t() @ torch.randn(1024, 512)).relu().sum().backward()
        assert w.grad.shape == w.shape

    def zeros_are_known():
        with TakesNoMemory():
            zeros = torch.zeros(64 * MiB)
        assert zeros[12345].item() == 0.0
        zeros[7] = 3.0
        assert zeros[:16].sum() == 3.0
        accumulated = torch.zeros(MiB)
        accumulated += torch.arange(MiB)
        assert accumulated[5].item() == 5.0

    def numbers_of_the_program_are_real():
        assert torch.full((MiB,), 2.5).sum().item() == 2.5 * MiB
        assert torch.arange(MiB).sum().item() == MiB * (MiB - 1) // 2
        assert torch.ones(2048, 2048).tril().sum().item() == 2048 * 2049 // 2
        assert torch.randint(5, 6, (MiB,)).float().mean().item() == 5.0
        assert len(set(torch.randperm(MiB).tolist())) == MiB

    def small_random_tensors_are_real():
        torch.manual_seed(0)
        small = torch.randn(1000)
        assert 0.9 < small.std().item() < 1.1
        assert torch.randn(1000).std().item() > 0.9

    def random_numbers_repeat_with_the_seed():
        def draw():
            torch.manual_seed(3)
            torch.randn(MiB)
            return torch.randn(4)
        assert torch.equal(draw(), draw())

    def files_are_real():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "real.pt")
            torch.save({"weight": torch.arange(MiB, dtype=torch.float32)}, path)
            for mapped in (False, True):
                layer = nn.Linear(1024, 1024, bias=False)
                weight = torch.load(path, mmap=mapped)["weight"]
                layer.load_state_dict({"weight": weight.view(1024, 1024)})
                assert layer.weight[0, 5].item() == 5.0
            raw = os.path.join(folder, "raw")
            numpy.full(MiB, 7, dtype=numpy.float32).tofile(raw)
            assert torch.from_file(raw, size=MiB, dtype=torch.float32).mean().item() == 7.0
            assert (torch.from_numpy(numpy.fromfile(raw, dtype=numpy.float32)) * 2)[9].item() == 14.0

    def values_written_past_torch_are_real():
        for tensor in (torch.empty(MiB), torch.randn(MiB)):
            tensor.numpy()[:] = 3
            assert (tensor * 2).mean().item() == 6.0
            assert tensor.cuda()[:16].cpu().sum().item() == 48.0

    def real_values_replace_placeholders():
        w = torch.randn(1024, 1024)
        w.copy_(torch.arange(MiB).view(1024, 1024))
        assert w[1, 1].item() == 1025.0
        w.normal_()
        w.fill_(2.0)
        assert w.mean().item() == 2.0

    def a_row_is_written():
        embedding = nn.Embedding(4096, 1024, padding_idx=3)
        with torch.no_grad():
            embedding.weight[5] = 2.0
        assert embedding.weight[5].sum().item() == 2048.0

    def pinned_staging_takes_no_pages():
        with TakesNoMemory():
            pinned = torch.randn(64 * MiB // 4).pin_memory()
            device = pinned.to("cuda", non_blocking=True)
            back = torch.empty(64 * MiB // 4, pin_memory=True)
            back.copy_(device, non_blocking=True)
            torch.cuda.synchronize()

    def types_are_those_of_torch():
        w = torch.randn(MiB)
        assert isinstance(w, torch.FloatTensor) and w.type() == "torch.FloatTensor"
        assert w.new_tensor(3.0, device="cpu").item() == 3.0
        assert w.new(2, 2).shape == (2, 2)
        assert nn.Parameter(w).data_ptr() == w.data_ptr()

    def checkpoints_are_sparse_and_load():
        built = _model().cuda()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.pt")
            with TakesNoMemory():
                torch.save(built.state_dict(), path)
                with open(path + "2", "wb") as file:
                    torch.save(built.cpu().state_dict(), file)
            for name in (path, path + "2"):
                status = os.stat(name)
                assert status.st_size > 128 * MiB and status.st_blocks * 512 < 8 * MiB, status
            built.load_state_dict(torch.load(path))
            assert built[0].weight.abs().max().item() == 0.0

    def checkpoints_put_together_in_memory_are_sparse():
        weights = {"first": torch.randn(4 * MiB), "real": torch.arange(MiB), "last": torch.randn(4 * MiB)}
        content = io.BytesIO()
        torch.save(weights, content)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.pt")
            with open(path, "wb") as file:
                file.write(content.getvalue())
            assert os.stat(path).st_blocks * 512 < 12 * MiB  # the integers take 8 MiB
            with open(path, "rb") as file:
                assert file.read() == content.getvalue()
            assert torch.equal(torch.load(path)["real"], weights["real"])

    def saved_placeholders_are_loaded_as_placeholders_without_pages():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.pt")
            known = torch.arange(2 * MiB, dtype=torch.float32)
            torch.save({"random": torch.randn(64 * MiB), "known": known}, path)
            for open_it in (lambda: path, lambda: open(path, "rb")):
                with TakesNoMemory():
                    loaded = torch.load(open_it())
                assert torch.equal(loaded["known"], known)
                device = loaded["random"].cuda()
                assert torch.equal(loaded["known"].cuda()[-3:].cpu(), known[-3:])

    def holes_of_the_program_are_known_zeros():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "raw")
            with open(path, "wb") as file:
                file.truncate(64 * MiB)
                file.seek(32 * MiB)
                file.write(numpy.full(4, 7, dtype=numpy.float32).tobytes())
            target = torch.ones(16 * MiB)
            with open(path, "rb") as file:
                assert file.readinto(target.numpy()) == 64 * MiB
            assert target.sum() == 28.0 and target[8 * MiB + 3] == 7.0

    def copies_of_zeros_take_no_pages():
        zeros = torch.from_numpy(numpy.zeros(16 * MiB, dtype=numpy.float32))
        with TakesNoMemory():
            half = zeros.to(torch.bfloat16)
            filled = torch.empty(16 * MiB).copy_(zeros)
            device = zeros.cuda()
        assert half[5] == 0 and device[7].item() == 0.0
    """
)


@pytest.fixture(scope="module")
def outcomes(maya_run_once: MayaRun) -> Outcomes:
    return PROGRAM.run(maya_run_once)


@pytest.mark.parametrize("check", PROGRAM.names)
def test_host_tensors(outcomes: Outcomes, check: str) -> None:
    outcomes.require(check)


READS = """
import pickle
import torch
weight = torch.randn(1024, 1024)
total = weight.sum()
if total.item() > 5:
    print("large")
weight.tolist()
weight.numpy()
pickle.dumps(weight)
"""


def test_reads_of_placeholders_are_named_with_their_lines(maya_run: MayaRun) -> None:
    run = maya_run(READS + "torch.zeros(1, device='cuda')\n")
    assert run.exit_code == 0, run.output
    reads = {(each.read, int(each.at.rsplit(":")[-1])) for each in count_records(read(run.trace)).placeholder_reads}
    assert reads == {("aten::_local_scalar_dense", 6), ("tolist", 8), ("numpy", 9), ("pickle", 10)}


STRICT = """
import io
import math
import pickle
import numpy
import torch

weight = torch.randn(1024, 1024)
total = weight.sum()
for name, read in {
    "item": total.item,
    "float": lambda: float(total),
    "int": lambda: int(total),
    "bool": lambda: bool(total > 5),
    "math": lambda: math.isnan(total),
    "tolist": weight.tolist,
    "tolist of a small one": total.tolist,
    "numpy": weight.numpy,
    "numpy of a row": weight[3].numpy,
    "asarray": lambda: numpy.asarray(weight),
    "array of float64": lambda: numpy.array(weight, dtype=numpy.float64),
    "pickle": lambda: pickle.dumps(weight),
    "from the device": lambda: weight.cuda().cpu().numpy(),
}.items():
    try:
        read()
    except RuntimeError as error:
        assert "--strict-values" in str(error), (name, error)
    else:
        raise AssertionError(name)
torch.save(weight, io.BytesIO())  # not a read: whoever loads it gets placeholders or zeros
known = torch.arange(1 << 20)
assert known.tolist()[5] == known.numpy()[5] == pickle.loads(pickle.dumps(known))[5] == 5
print("all raise")
"""


def test_reads_of_placeholders_are_errors_with_strict_values(maya_run: MayaRun) -> None:
    run = maya_run(STRICT, "--strict-values")
    assert run.exit_code == 0, run.output
    assert "all raise" in run.stdout


LOADS = """
import tempfile
import torch
with tempfile.NamedTemporaryFile() as file:
    torch.save(torch.randn(1024, 1024), file.name)
    loaded = torch.load(file.name)
loaded[0, 0].item()
"""


def test_loaded_placeholders_count_as_placeholders(maya_run: MayaRun) -> None:
    run = maya_run(LOADS + "torch.zeros(1, device='cuda')\n")
    assert run.exit_code == 0, run.output
    assert "item() at" in run.stderr, run.stderr


def test_real_host_tensors_on_request(maya_run: MayaRun) -> None:
    script = """
        import torch
        torch.manual_seed(0)
        assert 0.99 < torch.randn(1 << 20).std().item() < 1.01
    """
    for options in (["--host-tensors", "real"], ["--compute", "all"]):
        run = maya_run(script, *options)
        assert run.exit_code == 0, run.output
        assert "placeholder values" not in run.stderr
