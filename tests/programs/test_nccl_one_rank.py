"""NCCL with one rank: torch's process group, and functions that torch does not call, through ctypes."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read

# NCCL's header, as far as scripts need it that call NCCL directly.
NCCL = """
    import ctypes
    import torch

    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    BF16, FP16, FP32, FP64, INT32 = 9, 6, 7, 8, 2
    HOST_IMMEDIATE, DEVICE = 1, 0
    SUM, SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 0, 2, 4, 5

    class UniqueId(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    identifier, communicator = UniqueId(), ctypes.c_void_p()
    torch.zeros(1, device="cuda")
    assert nccl.ncclGetUniqueId(ctypes.byref(identifier)) == SUCCESS
    assert nccl.ncclCommInitRank(ctypes.byref(communicator), 1, identifier, 0) == SUCCESS

    def pointer(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def all_reduce(sent, received, count, kind, operator):
        return nccl.ncclAllReduce(
            pointer(sent), pointer(received), ctypes.c_size_t(count), kind, operator, communicator, None
        )

    def send(tensor, count, kind, peer=0):
        return nccl.ncclSend(pointer(tensor), ctypes.c_size_t(count), kind, peer, communicator, None)

    def receive(tensor, count, kind, peer=0):
        return nccl.ncclRecv(pointer(tensor), ctypes.c_size_t(count), kind, peer, communicator, None)
"""


def _collectives(run: ScriptRun) -> list[tuple[dict[str, Any], int]]:
    """The signature and the sequence number of each operation of a run."""
    trace = read(run.trace)
    assert trace.complete, trace.problem
    records = trace.select(RecordKind.COLLECTIVE)
    both = [(trace.signature(int(record["signature"])), int(record["value"])) for record in records]
    return [(signature, number) for signature, number in both if "members" not in signature]


COLLECTIVES_OF_TORCH = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    print(dist.get_world_size(), torch.cuda.nccl.version()[0])

    def there(*values):
        return torch.tensor(values, dtype=torch.bfloat16).cuda()

    def show(name, tensor):
        print(name, tensor.tolist())

    for operator in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        tensor = there(1, 2)
        dist.all_reduce(tensor, op=operator)
        show("all_reduce", tensor)
    tensor = there(3, 4)
    dist.broadcast(tensor, 0)
    show("broadcast", tensor)
    dist.reduce(tensor, 0)
    show("reduce", tensor)
    for name, collective in (
        ("all_gather", dist.all_gather_into_tensor),
        ("reduce_scatter", dist.reduce_scatter_tensor),
        ("all_to_all", dist.all_to_all_single),
    ):
        result = there(0, 0)
        collective(result, there(5, 6))
        show(name, result)
    result = [there(0, 0)]
    dist.gather(there(7, 8), result, 0)
    show("gather", result[0])
    result = there(0, 0)
    dist.scatter(result, [there(9, 10)], 0)
    show("scatter", result)
    sent, received = there(11, 12), there(0, 0)
    operations = [dist.P2POp(dist.isend, sent, 0), dist.P2POp(dist.irecv, received, 0)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    show("send to self", received)
    work = dist.all_reduce(sent, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    print("completed", work.is_completed())

    dist.barrier()
    objects = [{"a": 1}]
    dist.broadcast_object_list(objects, 0)
    print(objects)

    split = dist.split_group(split_ranks=[[0]])
    tensor = there(13)
    dist.all_reduce(tensor, group=split)
    show("split", tensor)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def collectives_of_torch(maya_run_once: MayaRun) -> ScriptRun:
    run = maya_run_once(COLLECTIVES_OF_TORCH)
    assert run.exit_code == 0, run.stderr
    return run


def test_collectives_of_torch_carry_real_bytes(collectives_of_torch: ScriptRun) -> None:
    assert collectives_of_torch.stdout.splitlines() == [
        "1 2",
        *["all_reduce [1.0, 2.0]"] * 3,
        "broadcast [3.0, 4.0]",
        "reduce [3.0, 4.0]",
        "all_gather [5.0, 6.0]",
        "reduce_scatter [5.0, 6.0]",
        "all_to_all [5.0, 6.0]",
        "gather [7.0, 8.0]",
        "scatter [9.0, 10.0]",
        "send to self [11.0, 12.0]",
        "completed True",
        "[{'a': 1}]",
        "split [13.0]",
    ]


def test_a_collective_is_recorded_with_what_it_reduces(collectives_of_torch: ScriptRun) -> None:
    collectives = _collectives(collectives_of_torch)
    first, sequence = collectives[0]
    assert (first["call"], first["op"], first["count"], first["dtype"]) == ("ncclAllReduce", "sum", 2, "bf16")
    assert (first["ranks"], first["rank"], sequence) == (1, 0, 0)
    assert [signature["op"] for signature, _ in collectives[:3]] == ["sum", "avg", "max"]


def test_collectives_of_a_communicator_are_numbered(collectives_of_torch: ScriptRun) -> None:
    collectives = _collectives(collectives_of_torch)
    first = collectives[0][0]["communicator"]
    numbers = [
        number for signature, number in collectives if signature["communicator"] == first and "peer" not in signature
    ]
    assert numbers == list(range(len(numbers)))


def test_a_split_group_has_a_communicator_of_its_own(collectives_of_torch: ScriptRun) -> None:
    collectives = _collectives(collectives_of_torch)
    assert collectives[-1][0]["communicator"] != collectives[0][0]["communicator"]


def test_collectives_of_torch_call_nccl(collectives_of_torch: ScriptRun) -> None:
    # torch itself does without NCCL where a group of one rank has nothing to reduce-scatter, gather or scatter.
    called = {signature["call"] for signature, _ in _collectives(collectives_of_torch)}
    assert {"ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclSend", "ncclRecv"} <= called


def test_ddp_with_one_rank_reduces_its_gradients(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
        parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for _ in range(3):
            parallel(torch.ones(8, 32).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()
        print("trained")
        """
    )
    assert (run.exit_code, run.stdout) == (0, "trained\n"), run.stderr
    parameters = 32 * 64 + 64 + 64 + 1
    gradients = [
        signature
        for signature, _ in _collectives(run)
        if signature["call"] == "ncclAllReduce" and signature["count"] == parameters
    ]
    assert len(gradients) == 3


def test_a_graph_with_a_collective_posts_it_at_every_launch(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        sent, received = torch.ones(4).cuda(), torch.zeros(4).cuda()
        dist.all_gather_into_tensor(received, sent)  # makes the communicator
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_gather_into_tensor(received, sent)
        for value in (2, 3):
            sent.copy_(torch.full((4,), value))
            graph.replay()
            print(received.tolist())
        dist.destroy_process_group()
        """
    )
    assert (run.exit_code, run.stdout) == (0, "[2.0, 2.0, 2.0, 2.0]\n[3.0, 3.0, 3.0, 3.0]\n"), run.stderr
    assert len(_collectives(run)) == 3


DIRECT_CALLS = Checks(
    """
    def _scales_as_the_device_does(kind, dtype, residence):
        torch.manual_seed(0)
        values = torch.randn(2000, dtype=torch.float64) * 10.0 ** torch.randint(-9, 5, (2000,))
        values = torch.cat([values, torch.tensor([0.0, -0.0, 6e-8, -3e-5, 65504.0, 1e30, float("inf")])]).to(dtype)
        scalar = torch.tensor([0.3], dtype=dtype)
        on_device, result = values.cuda(), torch.zeros_like(values).cuda()
        operator, factor = ctypes.c_int(), scalar if residence == HOST_IMMEDIATE else scalar.cuda()
        created = nccl.ncclRedOpCreatePreMulSum(ctypes.byref(operator), pointer(factor), kind, residence, communicator)
        assert created == SUCCESS, nccl.ncclGetLastError(None)
        assert all_reduce(on_device, result, len(values), kind, operator) == SUCCESS
        assert nccl.ncclRedOpDestroy(operator, communicator) == SUCCESS
        assert torch.equal(result.cpu(), values * scalar)

    FLOATS = ((FP16, torch.float16), (BF16, torch.bfloat16), (FP32, torch.float32), (FP64, torch.float64))

    def a_premultiplied_sum_of_floats_with_a_factor_on_the_host():
        for kind, dtype in FLOATS:
            _scales_as_the_device_does(kind, dtype, HOST_IMMEDIATE)

    def a_premultiplied_sum_of_floats_with_a_factor_on_the_device():
        for kind, dtype in FLOATS:
            _scales_as_the_device_does(kind, dtype, DEVICE)

    def a_premultiplied_sum_of_integers():
        integers, factor = torch.tensor([-7, 2**30]).int().cuda(), torch.tensor([-3]).int()
        result, operator = torch.zeros_like(integers), ctypes.c_int()
        created = nccl.ncclRedOpCreatePreMulSum(ctypes.byref(operator), pointer(factor), INT32, 1, communicator)
        assert created == SUCCESS
        assert all_reduce(integers, result, 2, INT32, operator) == SUCCESS
        assert result.tolist() == (integers.cpu() * factor).tolist()

    def every_collective_of_one_rank_is_a_copy():
        for name, middle in (
            ("AllReduce", [SUM]),
            ("Reduce", [SUM, 0]),
            ("ReduceScatter", [SUM]),
            ("Broadcast", [0]),
            ("AllGather", []),
            ("AlltoAll", []),
            ("Gather", [0]),
            ("Scatter", [0]),
        ):
            sent, received = torch.arange(6).double().cuda(), torch.zeros(6).double().cuda()
            collective, count = getattr(nccl, f"nccl{name}"), ctypes.c_size_t(6)
            result = collective(pointer(sent), pointer(received), count, FP64, *middle, communicator, None)
            assert result == SUCCESS, (name, nccl.ncclGetLastError(None))
            assert received.tolist() == list(range(6)), name
        assert nccl.ncclBcast(pointer(sent), ctypes.c_size_t(6), FP64, 0, communicator, None) == SUCCESS

    # ---- groups, sends and receives ----

    one, two, three = (torch.full((4,), value).cuda() for value in (1.0, 2.0, 3.0))

    def a_send_to_the_own_rank_happens_at_the_end_of_the_outermost_group():
        nccl.ncclGroupStart()
        nccl.ncclGroupStart()
        assert receive(three, 4, FP32) == SUCCESS
        nccl.ncclGroupEnd()
        assert send(one, 4, FP32) == SUCCESS
        assert three.tolist() == [3, 3, 3, 3]
        assert nccl.ncclGroupEnd() == SUCCESS
        assert three.tolist() == [1, 1, 1, 1]

    def a_send_to_the_own_rank_without_a_receive_is_refused():
        assert send(one, 4, FP32) == INVALID_USAGE
        expected = "ncclSend to the own rank 0 without a matching ncclRecv in the same group"
        assert nccl.ncclGetLastError(None).decode() == expected

    def a_receive_of_another_size_is_refused():
        nccl.ncclGroupStart()
        send(one, 4, FP32)
        receive(two, 3, FP32)
        assert nccl.ncclGroupEnd() == INVALID_USAGE
        expected = "ncclSend of 16 bytes to the own rank meets ncclRecv of 12 bytes"
        assert nccl.ncclGetLastError(None).decode() == expected

    def a_refused_call_refuses_its_group():
        nccl.ncclGroupStart()
        all_reduce(one, two, 4, FP32, SUM)
        assert all_reduce(one, two, 4, 99, SUM) == INVALID_ARGUMENT
        assert nccl.ncclGroupEnd() == INVALID_ARGUMENT
        assert two.tolist() == [2, 2, 2, 2]

    def an_end_without_a_group_is_refused():
        assert nccl.ncclGroupEnd() == INVALID_USAGE

    def a_peer_that_does_not_exist_is_refused():
        assert send(one, 4, FP32, peer=1) == INVALID_ARGUMENT

    def a_root_that_does_not_exist_is_refused():
        assert nccl.ncclBcast(pointer(one), ctypes.c_size_t(4), FP32, 1, communicator, None) == INVALID_ARGUMENT

    def a_reduction_that_does_not_exist_is_refused():
        assert all_reduce(one, two, 4, FP32, 7) == INVALID_ARGUMENT

    def a_collective_of_no_elements_is_allowed():
        assert all_reduce(one, two, 0, FP32, SUM) == SUCCESS

    # ---- communicators ----

    class Config(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                    ("blocking", ctypes.c_int), ("rest", ctypes.c_int * 3)]

    def ask(function, of=communicator):
        answer = ctypes.c_int(-1)
        assert getattr(nccl, function)(of, ctypes.byref(answer)) == SUCCESS
        return answer.value

    def new_communicator():
        created = ctypes.c_void_p()
        assert nccl.ncclCommInitRank(ctypes.byref(created), 1, identifier, 0) == SUCCESS
        return created

    def end(communicator):
        assert nccl.ncclCommFinalize(communicator) == SUCCESS
        assert nccl.ncclCommAbort(communicator) == SUCCESS

    def a_communicator_tells_its_size_rank_device_and_state():
        names = "ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice", "ncclCommGetAsyncError"
        assert [ask(name) for name in names] == [1, 0, 0, 0]

    def a_communicator_is_made_with_a_configuration():
        config, created = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0), ctypes.c_void_p()
        assert nccl.ncclCommInitRankConfig(ctypes.byref(created), 1, identifier, 0, ctypes.byref(config)) == SUCCESS
        end(created)

    def a_configuration_without_its_initializer_is_refused():
        config, created = Config(ctypes.sizeof(Config), 0, 21400, 0), ctypes.c_void_p()
        made = nccl.ncclCommInitRankConfig(ctypes.byref(created), 1, identifier, 0, ctypes.byref(config))
        assert made == INVALID_ARGUMENT

    def a_communicator_is_made_with_several_unique_ids():
        created = ctypes.c_void_p()
        assert nccl.ncclCommInitRankScalable(ctypes.byref(created), 1, 0, 1, ctypes.byref(identifier), None) == SUCCESS
        end(created)

    def a_split_without_a_colour_gives_no_communicator():
        created = ctypes.c_void_p(1)
        assert nccl.ncclCommSplit(communicator, -1, 0, ctypes.byref(created), None) == SUCCESS
        assert created.value is None

    def a_communicator_of_all_devices_has_the_device_it_was_given():
        created = ctypes.c_void_p()
        assert nccl.ncclCommInitAll(ctypes.byref(created), 1, (ctypes.c_int * 1)(3)) == SUCCESS
        assert ask("ncclCommCuDevice", created) == 3
        end(created)

    def a_buffer_is_deregistered_by_the_communicator_that_registered_it():
        own, other = new_communicator(), new_communicator()
        memory, handle, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(1000)
        assert nccl.ncclMemAlloc(ctypes.byref(memory), size) == SUCCESS
        assert nccl.ncclCommRegister(own, memory, size, ctypes.byref(handle)) == SUCCESS
        assert nccl.ncclCommDeregister(other, handle) == INVALID_ARGUMENT
        assert nccl.ncclCommDeregister(own, handle) == SUCCESS
        assert nccl.ncclMemFree(memory) == SUCCESS
        end(own)
        end(other)

    def a_window_knows_its_memory():
        memory, window, user, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(1000)
        assert nccl.ncclMemAlloc(ctypes.byref(memory), size) == SUCCESS
        assert nccl.ncclCommWindowRegister(communicator, memory, size, ctypes.byref(window), 1) == SUCCESS
        assert nccl.ncclWinGetUserPtr(communicator, window, ctypes.byref(user)) == SUCCESS
        assert user.value == memory.value
        assert nccl.ncclCommWindowDeregister(communicator, window) == SUCCESS
        assert nccl.ncclMemFree(memory) == SUCCESS

    def a_destroyed_communicator_is_refused():
        created = new_communicator()
        assert nccl.ncclCommDestroy(created) == SUCCESS
        count = ctypes.c_size_t(4)
        assert nccl.ncclAllReduce(pointer(one), pointer(two), count, FP32, SUM, created, None) == INVALID_ARGUMENT

    def a_communicator_of_two_ranks_is_refused_in_a_run_of_one():
        created = ctypes.c_void_p()
        assert nccl.ncclCommInitRank(ctypes.byref(created), 2, identifier, 0) == SYSTEM_ERROR
        assert nccl.ncclGetLastError(None).decode().startswith("ncclCommInitRank: a communicator of 2 ranks:")
    """,
    NCCL,
)


@pytest.fixture(scope="module")
def direct_calls(maya_run_once: MayaRun) -> Outcomes:
    return DIRECT_CALLS.run(maya_run_once)


@pytest.mark.parametrize("check", DIRECT_CALLS.names)
def test_direct_calls(direct_calls: Outcomes, check: str) -> None:
    direct_calls.require(check)


def test_every_collective_is_recorded_by_its_name(direct_calls: Outcomes) -> None:
    signatures = [signature for signature, _ in _collectives(direct_calls.run) if signature["count"] == 6]
    calls = " ".join(signature["call"].removeprefix("nccl") for signature in signatures)
    assert calls == "AllReduce Reduce ReduceScatter Broadcast AllGather AlltoAll Gather Scatter Broadcast"


def test_refused_sends_are_not_recorded(direct_calls: Outcomes) -> None:
    signatures = [signature for signature, _ in _collectives(direct_calls.run) if "peer" in signature]
    assert [signature["call"] for signature in signatures] == ["ncclRecv", "ncclSend"]


def test_a_communicator_of_two_ranks_says_that_the_run_has_one(direct_calls: Outcomes) -> None:
    assert "maya exec -- python SCRIPT" in direct_calls.run.stderr
