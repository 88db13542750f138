"""Values: what a program reads back is what was computed or what it put there; everything else is zero, and counted."""

from __future__ import annotations

from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, count_records, read


def test_with_everything_computed_losses_are_those_of_the_cpu(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        from torch import nn
        from torch.nn import functional as F

        class Block(nn.Module):
            def __init__(self, hidden, heads):
                super().__init__()
                self.heads = heads
                self.first, self.second = nn.LayerNorm(hidden), nn.RMSNorm(hidden)
                self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
                self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

            def forward(self, x):
                batch, sequence, hidden = x.shape
                shape = batch, sequence, 3, self.heads, hidden // self.heads
                q, k, v = self.qkv(self.first(x)).view(shape).permute(2, 0, 3, 1, 4)
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.projection(attended.transpose(1, 2).reshape(x.shape))
                return x + self.mlp(self.second(x))

        class GPT(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.positions = nn.Embedding(101, 64), nn.Embedding(32, 64)
                self.blocks = nn.Sequential(Block(64, 4), Block(64, 4))
                self.head = nn.Linear(64, 101)

            def forward(self, tokens):
                x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
                return self.head(self.blocks(x)).flatten(0, 1)

        class CNN(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(
                    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                    nn.Flatten(), nn.Linear(32, 10),
                )

            def forward(self, images):
                return self.layers(images)

        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(101, 24)
                self.lstm = nn.LSTM(24, 40, num_layers=2, batch_first=True, bidirectional=True)
                self.head = nn.Linear(80, 101)

            def forward(self, tokens):
                return self.head(self.lstm(self.embedding(tokens))[0]).flatten(0, 1)

        def losses(kind, data, targets, device, make_optimizer):
            torch.manual_seed(0)
            model = kind().to(device)
            optimizer = make_optimizer(model.parameters())
            found = []
            for _ in range(10):
                loss = F.cross_entropy(model(data.to(device)), targets.to(device).flatten())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                found.append(loss.item())
            return found

        torch.manual_seed(1)
        tokens = torch.randint(101, (4, 33))
        images, classes = torch.randn(8, 3, 20, 20), torch.randint(10, (8,))
        adam = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)
        momentum = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        for kind, data, targets, make_optimizer in (
            (GPT, tokens[:, :-1], tokens[:, 1:], adam),
            (CNN, images, classes, momentum),
            (Recurrent, tokens[:, :-1], tokens[:, 1:], adam),
        ):
            on_cpu = losses(kind, data, targets, "cpu", make_optimizer)
            on_gpu = losses(kind, data, targets, "cuda", make_optimizer)
            assert on_cpu[-1] < on_cpu[0], on_cpu
            largest = max(abs(a - b) for a, b in zip(on_cpu, on_gpu))
            assert largest < 1e-5, (kind.__name__, largest, on_cpu, on_gpu)
        print("the same")
        """,
        "--compute",
        "all",
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "the same\n"
    assert "cannot be computed" not in run.stderr


def test_zeros_that_are_changed_in_place(maya_run: MayaRun) -> None:
    """Memory that was set to zero takes no page until something else is written there, by whatever op."""
    run = maya_run(
        """
        import ctypes, torch

        def zeros(*shape):
            made = torch.empty(shape, device="cuda")
            assert ctypes.CDLL(None).cudaMemset(ctypes.c_void_p(made.data_ptr()), 0, made.nbytes) == 0
            return made

        assert zeros(3).add_(2).tolist() == [2, 2, 2]
        steps = [zeros(), zeros()]
        for _ in range(3):
            torch._foreach_add_(steps, 1)
        assert [step.item() for step in steps] == [3, 3]
        assert zeros(4).scatter_(0, torch.tensor([1, 3], device="cuda"), 7.0).tolist() == [0, 7, 0, 7]
        part_of_much = zeros(1 << 24)[5:8]
        assert part_of_much.sub_(1).tolist() == [-1, -1, -1]
        print("changed")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "changed\n"


def test_programs_steer_by_small_tensors(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import io, pickle
        import torch

        # reading back what was put there, and a little arithmetic
        assert torch.tensor([1, 2]).cuda().sum().item() == 3
        assert torch.ones(3, device="cuda").cumsum(0).tolist() == [1, 2, 3]
        assert (torch.arange(10, device="cuda") % 3 == 0).nonzero().flatten().tolist() == [0, 3, 6, 9]

        # as torch.distributed.all_gather_object does before it communicates: sizes of pickles, on the GPU
        objects = [{"rank": 0, "name": "a" * 100}, [1, 2, 3]]
        pickles = [torch.frombuffer(bytearray(pickle.dumps(each)), dtype=torch.uint8).cuda() for each in objects]
        sizes = torch.zeros(len(objects), dtype=torch.long, device="cuda")
        for index, each in enumerate(pickles):
            sizes[index].fill_(each.numel())
        largest = int(sizes.max().item())
        gathered = torch.empty(largest * len(objects), dtype=torch.uint8, device="cuda")
        for index, each in enumerate(pickles):
            gathered[index * largest : index * largest + each.numel()].copy_(each)
        for index, size in enumerate(sizes.tolist()):
            stored = gathered[index * largest : index * largest + size].cpu().numpy().tobytes()
            assert pickle.loads(stored) == objects[index]

        # a GradScaler grows, backs off when a gradient overflows, and skips that step
        parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0], device="cuda"))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=3)
        scales = []
        for step in range(8):
            optimizer.zero_grad()
            scaler.scale((parameter * parameter).sum()).backward()
            if step == 4:
                parameter.grad[0] = float("inf")
            before = parameter.detach().cpu()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(parameter.detach().cpu(), before) == (step == 4 or not before.any()), step
            scales.append(scaler.get_scale())
        assert scales == [1024.0, 1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 1024.0, 2048.0], scales

        # early stopping by a counter on the device
        best = torch.full((), float("inf"), device="cuda")
        patience = torch.zeros((), dtype=torch.int32, device="cuda")
        for step, validation in enumerate([3.0, 2.0, 2.5, 1.0, 1.5, 1.25, 1.125, 0.5]):
            validation = torch.tensor(validation, device="cuda")
            improved = validation < best
            best = torch.where(improved, validation, best)
            patience = torch.where(improved, torch.zeros_like(patience), patience + 1)
            if patience >= 3:
                break
        assert step == 6 and best.item() == 1.0

        # a learning rate and a step counter that live on the device
        weights = [torch.nn.Parameter(torch.full((4,), 3.0, device="cuda"))]
        optimizer = torch.optim.Adam(weights, lr=torch.tensor(0.5, device="cuda"), capturable=True)
        for _ in range(5):
            weights[0].grad = torch.ones_like(weights[0])
            optimizer.step()
        assert optimizer.state[weights[0]]["step"].item() == 5
        print("steered")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "steered\n"
    assert count_records(read(run.trace)).made_up_reads == ()


def test_ops_on_small_tensors_give_what_the_cpu_gives(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        from hypothesis import HealthCheck, given, settings, strategies as st

        DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)

        @st.composite
        def tensors(draw):
            '''On the CPU and the same on the GPU: contiguous, transposed, strided, offset or expanded.'''
            shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
            dtype = draw(st.sampled_from(DTYPES))
            base = torch.tensor(draw(st.lists(st.integers(0, 9), min_size=24, max_size=24)))
            count = 1
            for size in shape:
                count *= size
            cpu = base.repeat(count // 24 + 1)[:count].view(shape).to(dtype)
            gpu = cpu.cuda()
            for change in draw(st.lists(st.sampled_from(("transpose", "slice", "offset", "expand")), max_size=2)):
                if change == "transpose":
                    cpu, gpu = cpu.transpose(0, -1), gpu.transpose(0, -1)
                elif change == "slice":
                    cpu, gpu = cpu[..., ::2], gpu[..., ::2]
                elif change == "offset" and cpu.shape[0] > 1:
                    cpu, gpu = cpu[1:], gpu[1:]
                elif change == "expand" and cpu.dim() < 3:
                    cpu, gpu = cpu.unsqueeze(0).expand(2, *cpu.shape), gpu.unsqueeze(0).expand(2, *gpu.shape)
            return cpu, gpu

        def scattered(x):
            index = torch.zeros(x.shape, dtype=torch.long, device=x.device)
            return torch.zeros_like(x).scatter(-1, index, x[..., :1].expand(x.shape))

        def put(x):
            y = x.clone()
            y[torch.tensor([0], device=x.device)] = 7
            return y

        def accumulated(x):
            index = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
            return torch.zeros_like(x).index_add(0, index, x)

        def updated(x):
            y = x.clone()
            y.mul_(2).add_(1)
            y[..., 0] = 5
            return y.clamp_(max=9)

        def product_alone(x):
            rows = x.double().reshape(x.shape[0], -1)
            return torch.addmm(torch.empty(1, dtype=torch.double, device=x.device), rows, rows.T, beta=0)

        OPS = {
            "addmm that adds nothing": product_alone,
            "nonzero": lambda x: x.nonzero(),
            "nonzero of a comparison": lambda x: (x > 4).nonzero(),
            "argwhere": lambda x: torch.argwhere(x == 3),
            "unique": lambda x: x.unique(),
            "unique with all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            "unique_consecutive": lambda x: torch.unique_consecutive(x),
            "unique of rows": lambda x: x.unique(dim=0),
            "masked_select": lambda x: x.masked_select(x > 2),
            "boolean indexing": lambda x: x[x > 2],
            "boolean assignment": lambda x: torch.where(x > 2, x, torch.zeros_like(x)),
            "masked_fill": lambda x: x.masked_fill(x > 2, 1),
            "bincount": lambda x: x.flatten().long().bincount(minlength=4),
            "histc": lambda x: x.float().histc(5, 0, 10),
            "topk": lambda x: x.topk(min(2, x.shape[-1])).values,
            "sort": lambda x: x.sort(dim=0).values,
            "stable argsort": lambda x: x.flatten().argsort(stable=True),
            "cumsum": lambda x: x.cumsum(-1),
            "cumprod": lambda x: x.double().cumprod(0),
            "argmax": lambda x: x.double().flatten().argmax(),
            "max": lambda x: (x.max(), x.amin(0)),
            "where": lambda x: torch.where(x == 3),
            "scatter": scattered,
            "gather": lambda x: x.gather(0, torch.zeros((1, *x.shape[1:]), dtype=torch.long, device=x.device)),
            "index_put": put,
            "index_add": accumulated,
            "index_select": lambda x: x.index_select(-1, torch.tensor([0, 0], device=x.device)),
            "take": lambda x: x.take(torch.tensor([0], device=x.device)),
            "repeat_interleave": lambda x: x.flatten().repeat_interleave(2),
            "repeat_interleave by counts": lambda x: torch.repeat_interleave(x.flatten().long().clamp(max=3)),
            "one_hot": lambda x: torch.nn.functional.one_hot(x.long(), 10),
            "one_hot of as many classes as there are": lambda x: torch.nn.functional.one_hot(x.long()),
            "in place": updated,
            "cat": lambda x: torch.cat([x, x], -1),
            "stack and flip": lambda x: torch.stack([x, x.flip(0)]),
            "roll": lambda x: x.roll(1, 0),
            "sum": lambda x: (x.sum(), x.sum(0), x.double().mean(-1)),
            "softmax": lambda x: x.double().softmax(-1),
            "norm": lambda x: torch.linalg.vector_norm(x.double()),
            "matmul": lambda x: x.double().flatten() @ x.double().flatten(),
            "comparison": lambda x: (x.eq(3).any(), (x >= 0).all(), x.bool().logical_not()),
            "isin": lambda x: torch.isin(x, torch.tensor([1, 2], device=x.device).to(x.dtype)),
            "searchsorted": lambda x: torch.searchsorted(x.flatten().double().sort().values, torch.tensor(
                [3.0], dtype=torch.double, device=x.device)),
            "tril": lambda x: torch.tril(x.reshape(x.shape[0], -1)),
            "conversion": lambda x: (x.half(), x.long(), x.bool()),
            "item": lambda x: x.flatten()[0].item(),
            "tolist": lambda x: x.tolist(),
            "division": lambda x: (x.double() / 3, x // 2, x % 2),
        }

        def host(result):
            if isinstance(result, tuple):
                return tuple(host(each) for each in result)
            return result.cpu() if isinstance(result, torch.Tensor) else result

        def same(a, b):
            if isinstance(a, tuple):
                return len(a) == len(b) and all(map(same, a, b))
            if not isinstance(a, torch.Tensor):
                return a == b
            if a.shape != b.shape or a.dtype != b.dtype:
                return False
            return torch.allclose(a, b, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)

        wrong, compared = {}, 0

        @settings(max_examples=60, deadline=None, database=None, derandomize=True,
                  suppress_health_check=list(HealthCheck))
        @given(tensors())
        def check(pair):
            global compared
            cpu, gpu = pair
            assert torch.equal(gpu.cpu(), cpu)
            for name, op in OPS.items():
                try:
                    expected = op(cpu)
                except (RuntimeError, NotImplementedError):
                    continue  # torch does not define it for this dtype
                try:
                    found = host(op(gpu))
                except Exception as error:
                    wrong.setdefault(name, f"{cpu.dtype} {tuple(cpu.shape)} {cpu.stride()}: {error}")
                    continue
                compared += 1
                if not same(expected, found):
                    wrong.setdefault(name, f"{cpu.dtype} {tuple(cpu.shape)} {cpu.stride()}: {found} not {expected}")

        check()
        for name, problem in wrong.items():
            print(name, problem)
        assert not wrong
        print(compared)
        """,
    )
    assert run.exit_code == 0, run.output
    assert int(run.stdout) > 1000
    assert count_records(read(run.trace)).made_up_reads == ()


def test_list_ops_and_fused_optimizers(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch

        def values(device):
            generator = torch.Generator().manual_seed(3)
            return [torch.randn(shape, generator=generator).to(device) for shape in ((3,), (2, 5), (1,), (4, 2, 2))]

        def close(a, b, what):
            for left, right in zip(a, b, strict=True):
                assert torch.allclose(left.cpu(), right.cpu(), atol=1e-6), (what, left, right)

        def listed(device):
            a, b = values(device), [each.abs() + 1 for each in values(device)]
            yield torch._foreach_add(a, b, alpha=2)
            yield torch._foreach_mul(a, 3.0)
            yield torch._foreach_div(a, b)
            yield torch._foreach_sqrt(b)
            yield torch._foreach_norm(a)
            yield torch._foreach_max(a)
            yield torch._foreach_addcmul(a, b, b, value=0.5)
            yield torch._foreach_lerp(a, b, 0.25)
            torch._foreach_add_(a, 1.0)
            torch._foreach_mul_(a, torch.tensor(2.0, device=device))
            torch._foreach_addcdiv_(a, b, b, [1.0, 2.0, 3.0, 4.0])
            torch._foreach_copy_(b, a)
            yield a
            yield b
            torch._foreach_zero_(a)
            yield a

        for number, (on_cpu, on_gpu) in enumerate(zip(listed("cpu"), listed("cuda"), strict=True)):
            close(on_cpu, on_gpu, number)

        def trained(device, make):
            weights = [torch.nn.Parameter(each) for each in values(device)]
            optimizer = make(weights)
            for _ in range(4):
                optimizer.zero_grad()
                sum((each ** 2).sum() for each in weights).backward()
                norm = torch.nn.utils.clip_grad_norm_(weights, 0.5)
                optimizer.step()
            return [*weights, norm]

        SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
        for kind, options in (
            (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
            (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
            (Adam, {"lr": 0.1, "amsgrad": True}),
            (AdamW, {"lr": 0.1, "foreach": True}),
            (AdamW, {"lr": 0.1, "foreach": False}),
            (AdamW, {"lr": 0.1, "fused": True}),
            (torch.optim.Adagrad, {"lr": 0.1}),
            (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
            (torch.optim.NAdam, {"lr": 0.1}),
            (torch.optim.Adadelta, {"lr": 0.1}),
        ):
            expected, found = (trained(device, lambda weights: kind(weights, **options)) for device in ("cpu", "cuda"))
            close(expected, found, (kind.__name__, options))
        print("the same")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "the same\n"


def test_random_numbers(maya_run: MayaRun) -> None:
    script = """
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint

        def draws():
            return [
                torch.rand(5, device="cuda"), torch.randn(7, device="cuda"), torch.randperm(9, device="cuda"),
                torch.randint(100, (6,), device="cuda"), torch.empty(4, device="cuda").exponential_(),
                torch.bernoulli(torch.full((8,), 0.5, device="cuda")), nn.Dropout(0.5)(torch.ones(16, device="cuda")),
                torch.multinomial(torch.ones(6, device="cuda"), 3),
            ]

        def equal(a, b):
            return all(torch.equal(left.cpu(), right.cpu()) for left, right in zip(a, b, strict=True))

        torch.manual_seed(5)
        first, after = draws(), draws()
        torch.manual_seed(5)
        assert equal(first, draws())
        assert equal(after, draws())
        assert not equal(first, after)
        assert first[2].sort().values.tolist() == list(range(9))
        assert 0 <= first[0].min().item() and first[0].max().item() < 1
        kept = set(first[6].tolist())
        assert kept <= {0.0, 2.0} and len(kept) == 2, kept

        # a state that is saved and restored
        state = torch.cuda.get_rng_state()
        once = draws()
        torch.cuda.set_rng_state(state)
        assert equal(once, draws())

        # a generator of one's own does not disturb the default one
        state = torch.cuda.get_rng_state()
        own = torch.Generator("cuda").manual_seed(9)
        drawn = torch.rand(3, device="cuda", generator=own).tolist()
        assert torch.equal(state, torch.cuda.get_rng_state())
        assert drawn == torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(9)).tolist()

        # what is recomputed in backward drops the same elements as forward did, whatever the region ends in:
        # recomputing stops with an exception out of its last op
        def gradients(last, checkpointed):
            torch.manual_seed(7)
            kinds = lambda: (nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), last())
            layers = nn.ModuleList(nn.Sequential(*kinds()) for _ in range(4)).cuda()
            x = torch.ones(4, 8, device="cuda", requires_grad=True)
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if checkpointed else layer(y)
            y.sum().backward()
            return [y.detach(), x.grad, *(parameter.grad for parameter in layers.parameters())]

        for last in lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Softmax(-1), nn.Dropout, lambda: nn.LayerNorm(8):
            assert equal(gradients(last, False), gradients(last, True)), last

        # and none of it disturbs what the program draws on the CPU
        torch.manual_seed(11)
        expected = torch.rand(3)
        torch.manual_seed(11)
        draws()
        assert torch.equal(torch.rand(3), expected)
        print(*(each.tolist() for each in first))
    """
    run = maya_run(script, "--compute", "all")
    assert run.exit_code == 0, run.output
    again = maya_run(script)  # all of it is small, so the default computes it, too
    assert again.exit_code == 0, again.output
    assert again.stdout == run.stdout


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


def test_what_a_large_op_wrote_is_not_taken_for_known(maya_run: MayaRun) -> None:
    """Wherever the result lies: in an argument, in new memory, in memory that was set to zero before."""
    run = maya_run(
        """
        import torch

        def known():
            return torch.arange(1, 100_001, dtype=torch.float32).cuda()

        def made_up(result):
            assert not result.cpu().any()

        there = known()
        there.mul_(2)
        made_up(there)
        made_up(torch.exp(there, out=known()))
        made_up(torch.exp(there, out=torch.empty(0, device="cuda")))
        torch._foreach_add_(several := [known(), known()], 1)
        for each in several:
            made_up(each)
        every_second = known()[::2]
        every_second.add_(1)
        made_up(every_second)
        for _ in range(3):
            known()
            made_up(torch.tanh(there))
        for each in torch._foreach_exp([there] * 40):
            made_up(each)
        weight = torch.zeros(5_000, 40, device="cuda", requires_grad=True)
        torch.nn.functional.embedding(torch.arange(5_000).cuda(), weight).sum().backward()
        made_up(weight.grad)

        captured, graph = known(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.exp(captured)
        result.copy_(known())
        graph.replay()
        made_up(result)
        print("made up")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "made up\n"
    assert len(read(run.trace).select(RecordKind.MADE_UP_READ)) == 51


def test_how_much_is_kept(maya_run: MayaRun) -> None:
    script = """
        import sys, torch

        copy_bytes, kept_bytes = map(int, sys.argv[1:])

        def survives(size):
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

        assert survives(copy_bytes)
        assert not survives(copy_bytes + 4)
        # of many copies that are small enough, as many as there is room for
        data = torch.arange(copy_bytes // 4, dtype=torch.int32) + 1
        many = [data.cuda() for _ in range(kept_bytes // copy_bytes + 2)]
        kept = sum(bool(each[:4].cpu().any()) for each in many)
        assert kept == kept_bytes // copy_bytes, kept
        del many
        assert survives(copy_bytes), "room that was freed"
    """
    defaults = maya_run(script, script_arguments=[str(16 << 20), str(256 << 20)])
    assert defaults.exit_code == 0, defaults.output
    chosen = maya_run(
        script,
        "--copy-bytes",
        "100000",
        script_arguments=["100000", "1000000"],
        environment={"MAYA_KEPT_BYTES": "1000000"},
    )
    assert chosen.exit_code == 0, chosen.output


MADE_UP = """
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
    script = next(run.folder.parent.glob("script*.py"))
    lines = script.read_text(encoding="utf-8").splitlines()
    return f"{script}:{next(number for number, line in enumerate(lines, 1) if line.endswith(f'# {mark}'))}"


def test_made_up_values_are_benign_and_counted(maya_run: MayaRun) -> None:
    run = maya_run(MADE_UP)
    assert run.exit_code == 0, run.output
    assert run.stdout == "benign\n"
    places = {read.at: read for read in count_records(read(run.trace)).made_up_reads}
    for mark in ("LOSS", "NORM", "FINITE", "NAN", "NONZERO", "UNIQUE", "MASK"):
        assert _line_of(run, mark) in places, f"{mark}: {run.stderr}"
    assert places[_line_of(run, "LOSS")].times == 1
    assert places[_line_of(run, "LOSS")].read == "aten::_local_scalar_dense"
    assert places[_line_of(run, "LOSS")].bytes == 4
    assert "the script reads placeholder values, which say nothing about a real run: " in run.stderr


def test_strict_values_make_it_an_error_that_names_the_line(maya_run: MayaRun) -> None:
    run = maya_run(MADE_UP, "--strict-values")
    assert run.exit_code == 1
    assert f"reads 4 bytes that were not computed, at {_line_of(run, 'LOSS')}" in run.stderr
    assert "loss.item(),  # LOSS" in run.stderr, "Python's own traceback points there, too"
    known = maya_run("import torch; print(torch.tensor([1.0, 2.0]).cuda().sum().item())", "--strict-values")
    assert known.exit_code == 0, known.output
    assert known.stdout == "3.0\n"
