"""Streams, events and graphs: work happens in CUDA's order, waits where CUDA waits, and computes the right values."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun

from maya.trace import Flag, RecordKind, read

# torch has no host functions and no blocking streams, so these come from the loaded runtime itself. A host function
# that waits is how a test holds up a stream.
TOOLS = textwrap.dedent(
    """
    import ctypes, threading, time
    import torch

    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    driver = ctypes.CDLL("libcuda.so.1")
    HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    callbacks = []  # the runtime calls them later, so they must live

    def call_on(stream, function):
        callback = HostFunction(lambda _: function())
        callbacks.append(callback)
        assert runtime.cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), callback, None) == 0

    gates = []

    def hold(stream):
        gate = threading.Event()
        gates.append(gate)
        call_on(stream, gate.wait)
        return gate

    def after_each():
        for gate in gates:  # of a check that failed before it opened its own
            gate.set()
        gates.clear()
        torch.cuda.synchronize()

    def blocking_stream():
        handle = ctypes.c_void_p()
        assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 0) == 0
        return torch.cuda.ExternalStream(handle.value)

    def is_held(stream, seconds=0.03):
        time.sleep(seconds)
        return not stream.query()

    legacy = torch.cuda.default_stream()
    torch.zeros(1, device="cuda")
    """
)

STREAMS = Checks(
    """
    import numpy
    from torch.utils.checkpoint import checkpoint

    one, other, blocking = torch.cuda.Stream(), torch.cuda.Stream(), blocking_stream()

    # ---- which stream waits for which ----

    def a_held_stream_holds_up_no_other_stream():
        x = torch.arange(4.0).cuda()
        gate = hold(one)
        assert is_held(one) and other.query() and legacy.query()
        with torch.cuda.stream(other):
            y = x + 1
        other.synchronize()
        assert y.tolist() == [1, 2, 3, 4]
        gate.set()
        one.synchronize()
        assert one.query()

    def _legacy_waits_for(held):
        x = torch.arange(4.0).cuda()
        gate = hold(held)
        x.add_(1)
        waits = is_held(legacy)
        gate.set()
        torch.cuda.synchronize()
        assert x.tolist() == [1, 2, 3, 4]
        return waits

    def the_legacy_stream_waits_for_blocking_streams():
        assert _legacy_waits_for(blocking)

    def the_legacy_stream_does_not_wait_for_other_streams():
        assert not _legacy_waits_for(one)

    def blocking_streams_wait_for_the_legacy_stream():
        x = torch.arange(4.0).cuda()
        gate = hold(legacy)
        with torch.cuda.stream(blocking):
            x.record_stream(blocking)
            x.mul_(2)
        assert is_held(blocking)
        gate.set()
        blocking.synchronize()
        assert x.tolist() == [0, 2, 4, 6]

    def other_streams_do_not_wait_for_the_legacy_stream():
        gate = hold(legacy)
        with torch.cuda.stream(one):
            torch.zeros(3, device="cuda").add_(1)
        assert not is_held(one)
        gate.set()

    def blocking_streams_do_not_wait_for_each_other():
        second = blocking_stream()
        gate = hold(blocking)
        with torch.cuda.stream(second):
            torch.zeros(3, device="cuda").add_(1)
        assert not is_held(second)
        gate.set()
        torch.cuda.synchronize()
        assert blocking.query()

    def the_per_thread_stream_is_a_blocking_one():
        x = torch.arange(4.0).cuda()
        own = torch.cuda.ExternalStream(2)
        gate = hold(own)
        x.add_(1)
        assert is_held(own) and is_held(legacy)
        gate.set()
        torch.cuda.synchronize()
        assert x.tolist() == [1, 2, 3, 4]

    # ---- values ----

    def other_streams_do_not_see_queued_changes():
        x = torch.tensor([1.0, 2.0]).cuda()
        with torch.cuda.stream(one):
            gate = hold(one)
            x.add_(1)
            y = x * 10
            z = torch.cat([x, y]).sum()
        with torch.cuda.stream(other):
            assert x.tolist() == [1, 2]
        gate.set()
        one.synchronize()
        assert x.tolist() == [2, 3] and y.tolist() == [20, 30] and z.item() == 55

    def pageable_memory_may_change_after_the_copy_returns_and_pinned_memory_may_not():
        source, pinned = torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0]).pin_memory()
        with torch.cuda.stream(one):
            gate = hold(one)
            there = torch.empty(2, device="cuda").copy_(source, non_blocking=True)
            also = torch.empty(2, device="cuda").copy_(pinned, non_blocking=True)
            back = torch.zeros(2).pin_memory()
            back.copy_(there, non_blocking=True)
            source.zero_()
            pinned.add_(1)
            assert back.tolist() == [0, 0]
            gate.set()
            one.synchronize()
            assert there.tolist() == [5, 6] and also.tolist() == [8, 9] and back.tolist() == [5, 6]

    def a_value_passes_between_two_streams_many_times():
        counter = torch.zeros((), dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        gate = hold(one)
        for _ in range(50):
            with torch.cuda.stream(one):
                counter.add_(1)
                other.wait_stream(one)
            with torch.cuda.stream(other):
                counter.mul_(2).remainder_(1_000_003)
                one.wait_stream(other)
        threading.Timer(0.05, gate.set).start()
        one.synchronize()
        expected = 0
        for _ in range(50):
            expected = (expected + 1) * 2 % 1_000_003
        assert counter.item() == expected

    def a_queued_kernel_keeps_memory_that_the_program_has_freed():
        with torch.cuda.stream(one):
            gate = hold(one)
            kept = torch.tensor([1.0, 2.0]).pin_memory().to("cuda", non_blocking=True)
            result = (kept + 1).sum()
            del kept
            for _ in range(10):
                torch.zeros(2, device="cuda")
            gate.set()
            assert result.item() == 5

    def a_stream_waits_for_each_comparison_of_a_value_in_memory():
        x = torch.zeros(2, device="cuda")
        flag = torch.zeros(2, dtype=torch.int32).pin_memory()
        handle, address = ctypes.c_void_p(one.cuda_stream), ctypes.c_uint64(flag.data_ptr())
        for comparison, not_yet, now in ((0, 2, 3), (1, 4, 3), (2, 4, 1), (3, -1, 1)):
            flag[0] = not_yet
            assert driver.cuStreamWaitValue32_v2(handle, address, 3, comparison) == 0
            with torch.cuda.stream(one):
                x.fill_(comparison)
            assert is_held(one)
            flag[0] = now
            one.synchronize()
            assert x.tolist() == [comparison] * 2

    def a_stream_waits_for_a_value_that_another_stream_writes():
        flag = torch.zeros(2, dtype=torch.int32).pin_memory()
        address = ctypes.c_uint64(flag.data_ptr())
        assert driver.cuStreamWaitValue32_v2(ctypes.c_void_p(one.cuda_stream), address, 100, 0) == 0
        gate = hold(other)
        assert driver.cuStreamWriteValue32_v2(ctypes.c_void_p(other.cuda_stream), address, 100, 0) == 0
        assert is_held(one) and flag[0] == 0
        gate.set()
        one.synchronize()
        assert flag[0] == 100

    # ---- a host that needs the values of a held stream ----

    def _hold_for_a_while(stream):
        threading.Timer(0.2, hold(stream).set).start()

    def ops_whose_size_depends_on_values_wait_for_the_stream():
        with torch.cuda.stream(one):
            x = torch.zeros(8).cuda()
            ones = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]).cuda()
            _hold_for_a_while(one)
            x += ones
            assert x.nonzero().flatten().tolist() == [1, 3, 4]
            _hold_for_a_while(one)
            x += ones
            assert x.unique().tolist() == [0, 2] and (x[x > 0] == 2).all()

    def a_recomputation_that_ends_inside_its_last_op_gives_the_gradients_of_the_cpu():
        def block(x):
            return (x.exp() * 2).sin()

        with torch.cuda.stream(one):
            leaf = torch.linspace(0, 1, 8)
            on_cpu = leaf.clone().requires_grad_()
            block(on_cpu).sum().backward()
            on_gpu = leaf.cuda().requires_grad_()
            _hold_for_a_while(one)
            checkpoint(block, on_gpu, use_reentrant=False).sum().backward()
            assert torch.allclose(on_gpu.grad.cpu(), on_cpu.grad), (on_gpu.grad, on_cpu.grad)

    def pageable_memory_is_the_programs_again_when_the_copy_is_submitted():
        with torch.cuda.stream(one):
            rows = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
            flat, pitched = torch.zeros(3, 4).cuda(), torch.zeros(3, 4).cuda()
            _hold_for_a_while(one)
            flat.copy_(torch.from_numpy(rows), non_blocking=True)
            pitch, width = ctypes.c_size_t(16), ctypes.c_size_t(8)
            assert runtime.cudaMemcpy2DAsync(
                ctypes.c_void_p(pitched.data_ptr()), pitch, ctypes.c_void_p(rows.ctypes.data), pitch, width,
                ctypes.c_size_t(3), 1, ctypes.c_void_p(one.cuda_stream)
            ) == 0
            rows[:] = -1
            assert flat.tolist() == numpy.arange(12).reshape(3, 4).tolist()
            assert pitched.tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [8, 9, 0, 0]]

    def memory_freed_while_a_stream_is_held_is_used_again_afterwards():
        gate = hold(one)
        kept = torch.ones(1000, device="cuda")
        address = kept.data_ptr()
        del kept
        gate.set()
        one.synchronize()
        torch.empty(1, device="cuda")
        assert torch.empty(1000, device="cuda").data_ptr() == address
    """,
    TOOLS,
)

EVENTS = Checks(
    """
    one, other, third = (torch.cuda.Stream() for _ in range(3))

    def an_event_that_was_never_recorded_is_complete():
        assert torch.cuda.Event().query()

    def streams_wait_for_events_in_a_chain():
        order = []
        gate = hold(one)
        call_on(one, lambda: order.append("one"))
        first, second = one.record_event(), torch.cuda.Event()
        other.wait_event(first)
        call_on(other, lambda: order.append("other"))
        second.record(other)
        third.wait_event(second)
        call_on(third, lambda: order.append("third"))
        last = third.record_event()
        assert is_held(third) and not first.query() and not second.query() and not last.query()
        assert order == []
        gate.set()
        last.synchronize()
        assert order == ["one", "other", "third"] and last.query() and second.query()

    def recording_an_event_again_does_not_change_what_a_stream_waits_for():
        gate = hold(one)
        event = one.record_event()
        other.wait_event(event)
        event.record(torch.cuda.Stream())
        assert event.query() and is_held(other)
        gate.set()

    def _waits_and_lets_other_threads_run(wait):
        with torch.cuda.stream(one):
            known = torch.tensor([1.0]).cuda()
            gate = hold(one)
            known.add_(1)
            event = one.record_event()
            released = []
            timer = threading.Timer(0.1, lambda: (released.append(True), gate.set()))
            timer.start()
            wait(event, known)
            assert released and event.query() and known.item() == 2
            timer.join()

    def synchronising_a_stream_waits_and_lets_other_threads_run():
        _waits_and_lets_other_threads_run(lambda event, known: one.synchronize())

    def synchronising_an_event_waits_and_lets_other_threads_run():
        _waits_and_lets_other_threads_run(lambda event, known: event.synchronize())

    def synchronising_the_device_waits_and_lets_other_threads_run():
        _waits_and_lets_other_threads_run(lambda event, known: torch.cuda.synchronize())

    def copying_to_the_host_waits_and_lets_other_threads_run():
        _waits_and_lets_other_threads_run(lambda event, known: torch.empty(1).copy_(known))

    def reading_an_item_waits_and_lets_other_threads_run():
        _waits_and_lets_other_threads_run(lambda event, known: known.item())

    def host_functions_run_in_order_and_never_in_the_submitting_thread():
        order, threads = [], set()
        for number in range(200):
            call_on(one, lambda number=number: (order.append(number), threads.add(threading.get_ident())))
        one.synchronize()
        assert order == list(range(200)) and threading.get_ident() not in threads

    def the_time_between_events_is_refused_until_both_are_complete():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        gate = hold(legacy)
        end.record()
        threading.Timer(0.05, gate.set).start()
        try:
            start.elapsed_time(end)
        except RuntimeError as error:
            assert "must be completed" in str(error), error
        else:
            raise AssertionError("an event that has not happened yet has a time")
        end.synchronize()
        assert start.elapsed_time(end) >= 0
    """,
    TOOLS,
)

GRAPHS = Checks(
    """
    def model(x):
        return torch.relu(x @ weight - 1).cumsum(0)

    weight = torch.eye(3).cuda() * 2
    static = torch.zeros(2, 3).cuda()
    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):  # warm up
        model(static)
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            counter.add_(1)
        output = model(static)
        torch.cuda.current_stream().wait_stream(side)

    def a_capture_does_nothing():
        assert counter.item() == 0

    def replays_compute_from_the_new_inputs():
        before = counter.item()
        for number in range(1, 6):
            inputs = torch.arange(6.0).view(2, 3) * number
            static.copy_(inputs)
            graph.replay()
            expected = torch.relu(inputs @ (torch.eye(3) * 2) - 1).cumsum(0)
            assert torch.equal(output.cpu(), expected), (output, expected)
        assert counter.item() == before + 5

    def replays_wait_behind_a_held_stream():
        before = counter.item()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            gate = hold(stream)
            graph.replay()
            graph.replay()
            assert is_held(stream)
            with torch.cuda.stream(torch.cuda.Stream()):
                assert counter.item() == before
            gate.set()
            assert counter.item() == before + 2

    def a_graphed_training_step_lowers_the_loss():
        layer = torch.nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
        x, target = torch.ones(8, 4).cuda(), torch.zeros(8, 1).cuda()
        step = torch.cuda.make_graphed_callables(layer, (x.clone(),))
        losses = []
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            loss = (step(x) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert all(later < earlier for earlier, later in zip(losses, losses[1:])), losses

    def a_capture_that_waits_for_the_device_is_refused():
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                static.sum().item()
        except (RuntimeError, torch.AcceleratorError) as error:
            assert "captur" in str(error), error
        else:
            raise AssertionError("a capture cannot wait for the device")
        assert torch.ones(2, device="cuda").sum().item() == 2
    """,
    TOOLS,
)


@pytest.fixture(scope="module")
def streams(maya_run_once: MayaRun) -> Outcomes:
    return STREAMS.run(maya_run_once)


@pytest.mark.parametrize("check", STREAMS.names)
def test_streams(streams: Outcomes, check: str) -> None:
    streams.require(check)


@pytest.fixture(scope="module")
def events(maya_run_once: MayaRun) -> Outcomes:
    return EVENTS.run(maya_run_once, "--clock", "wall")  # so that finished work is in the past at once


@pytest.mark.parametrize("check", EVENTS.names)
def test_events(events: Outcomes, check: str) -> None:
    events.require(check)


@pytest.fixture(scope="module")
def graphs(maya_run_once: MayaRun) -> Outcomes:
    return GRAPHS.run(maya_run_once)


@pytest.mark.parametrize("check", GRAPHS.names)
def test_graphs(graphs: Outcomes, check: str) -> None:
    graphs.require(check)


def test_every_launch_of_a_graph_is_recorded_with_its_kernels(graphs: Outcomes) -> None:
    trace = read(graphs.run.trace)
    launches = trace.select(RecordKind.GRAPH_LAUNCH)
    first = launches[0]
    of_first = launches[launches["value"] == first["value"]]
    assert len(of_first) == 7
    count = trace.signature(first["signature"])["records"]
    replayed = trace.records[(trace.records["flags"] & Flag.FROM_GRAPH) != 0]
    # the kernels of the graph follow each of its launches, on the streams on which they were captured
    bodies = []
    for launch in of_first:
        at = int(np.flatnonzero(trace.records == launch)[0])
        body = trace.records[at + 1 : at + 1 + count]
        assert (body["flags"] & Flag.FROM_GRAPH != 0).all()
        bodies.append(body)
    assert len({tuple(zip(body["kind"].tolist(), body["signature"].tolist(), strict=True)) for body in bodies}) == 1
    assert RecordKind.KERNEL in bodies[0]["kind"]
    assert RecordKind.LIBRARY in bodies[0]["kind"]
    assert len(set(bodies[0][bodies[0]["kind"] == RecordKind.KERNEL]["stream"].tolist())) == 2
    assert len(replayed) >= 7 * count


def test_any_program_runs_in_an_order_that_cuda_allows(maya_run: MayaRun) -> None:
    run = maya_run(
        TOOLS
        + textwrap.dedent(
            """
            import random
            from hypothesis import given, settings, strategies as st

            # legacy, two blocking, two non-blocking
            streams = [legacy, blocking_stream(), blocking_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
            BLOCKING = {1, 2}
            number = st.integers(0, len(streams) - 1)
            step = st.one_of(
                st.tuples(st.just("work"), number),
                st.tuples(st.just("record"), number, st.integers(0, 2)),
                st.tuples(st.just("wait"), number, st.integers(0, 2)),
                st.tuples(st.just("hold"), number),
            )

            class Model:
                '''What has to come before the next work of each stream: sets of numbers of work.'''

                def __init__(self):
                    self.before = [set() for _ in streams]
                    self.recorded = [set() for _ in range(3)]

                def joined(self, stream):
                    if stream == 0:
                        for other in BLOCKING:
                            self.before[0] |= self.before[other]
                    elif stream in BLOCKING:
                        self.before[stream] |= self.before[0]
                    return self.before[stream]

            @settings(max_examples=60, deadline=None, database=None, derandomize=True)
            @given(st.lists(step, max_size=25))
            def check(program):
                model, events = Model(), [torch.cuda.Event() for _ in range(3)]
                done, required, gates = [], {}, []
                for index, (kind, stream, *event) in enumerate(program):
                    if kind == "work":
                        required[index] = set(model.joined(stream))
                        model.before[stream].add(index)
                        call_on(streams[stream], lambda index=index: done.append(index))
                    elif kind == "record":
                        events[event[0]].record(streams[stream])
                        model.recorded[event[0]] = set(model.joined(stream))
                    elif kind == "wait":
                        streams[stream].wait_event(events[event[0]])
                        model.before[stream] |= model.recorded[event[0]]
                    elif len(gates) < 1:  # host functions share a thread
                        gates.append(hold(streams[stream]))
                for gate in gates:
                    gate.set()
                torch.cuda.synchronize()
                assert sorted(done) == sorted(required), (program, done)
                for position, index in enumerate(done):
                    late = required[index] - set(done[:position])
                    assert not late, (program, done, index, late)

            check()
            """
        )
    )
    assert run.exit_code == 0, run.output
