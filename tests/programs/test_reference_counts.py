"""Tensors live as long as they do without Maya: boxing an op's arguments leaves reference counts alone."""

from __future__ import annotations

from helpers.script_run import MayaRun


def test_counts_are_the_same_after_ops_of_every_kind(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import gc, sys, weakref
        import torch

        x, y, host = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"), torch.ones(())
        weight = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
        counted = [x, y, host, weight]
        counts = lambda: [(sys.getrefcount(t), t._use_count()) for t in counted]
        before = counts()
        for _ in range(300):
            x.add_(y); x + y; x.mul_(host); torch.cat([x, y, x]); torch.where(x > 0, x, y)
            torch._foreach_add_([x, y], [y, x])
            (x @ weight).sum().backward(); weight.grad = None
            try:
                x + torch.ones(3, device="cuda")
            except RuntimeError:
                pass
        assert counts() == before, (counts(), before)
        counted.clear()
        gone = weakref.ref(x)
        kept = (weight * x).sum()       # the graph keeps x, and with it the object that Python knows
        x.mark = "mine"
        del x
        assert gone().mark == "mine"
        del kept
        gc.collect()
        assert gone() is None
        """
    )
    assert run.exit_code == 0, run.output


def test_threads_may_share_and_drop_tensors(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import sys, threading
        import torch

        sys.setswitchinterval(1e-6)
        shared = [torch.ones(32, device="cuda") for _ in range(4)]
        saved = {}

        def work(number):
            for i in range(1500):
                tensor = shared[(number + i) % len(shared)]
                fresh = tensor + i
                saved[number] = fresh, torch.stack([tensor, fresh])   # what another thread may be using
                other = saved.get((number + 1) % 4)
                if other is not None:
                    other[0].mul_(2.0); other[1].sum()
                shared[(number * 7 + i) % len(shared)] = fresh

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        saved.clear()
        assert all(sys.getrefcount(tensor) < 8 for tensor in shared)
        print("fine")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "fine\n"


def test_tensors_survive_while_torch_runs_no_callbacks(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch

        torch.ones(3, device="cuda")
        torch.autograd._enable_record_function(False)
        with torch.autograd.profiler.record_function("inactive"):
            base = torch.ones(8)
            view = base.view(2, 4)      # keeps its base, which Python then drops
            del base
        torch.autograd._enable_record_function(True)
        assert view.sum().item() == 8
        """
    )
    assert run.exit_code == 0, run.output
