"""NCCL with one rank: torch's process group on it, and, through ctypes, what torch does not reach."""

from __future__ import annotations

from typing import Any

from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read

# What NCCL's header declares, for scripts that call it directly.
NCCL = """
    import ctypes
    import torch

    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    BF16, FP16, FP32, FP64, INT32 = 9, 6, 7, 8, 2
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


def test_collectives_of_torch_carry_real_bytes(maya_run: MayaRun) -> None:
    run = maya_run(
        """
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
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == [
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
    collectives = _collectives(run)
    first, sequence = collectives[0]
    assert (first["call"], first["op"], first["count"], first["dtype"]) == ("ncclAllReduce", "sum", 2, "bf16")
    assert (first["ranks"], first["rank"], sequence) == (1, 0, 0)
    assert [signature["op"] for signature, _ in collectives[:3]] == ["sum", "avg", "max"]
    of_first = [
        number
        for signature, number in collectives
        if signature["communicator"] == first["communicator"] and "peer" not in signature
    ]
    assert of_first == list(range(len(of_first)))
    assert collectives[-1][0]["communicator"] != first["communicator"]  # the split one
    # torch itself does without NCCL where a group of one rank has nothing to reduce-scatter, gather or scatter.
    called = {signature["call"] for signature, _ in collectives}
    assert {"ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclSend", "ncclRecv"} <= called


def test_ddp_with_one_rank(maya_run: MayaRun) -> None:
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


def test_premultiplied_sums_are_what_the_device_computes(maya_run: MayaRun) -> None:
    run = maya_run(
        NCCL
        + """
    torch.manual_seed(0)
    for kind, dtype in ((FP16, torch.float16), (BF16, torch.bfloat16), (FP32, torch.float32), (FP64, torch.float64)):
        values = torch.randn(2000, dtype=torch.float64) * 10.0 ** torch.randint(-9, 5, (2000,))
        values = torch.cat([values, torch.tensor([0.0, -0.0, 6e-8, -3e-5, 65504.0, 1e30, float("inf")])]).to(dtype)
        scalar = torch.tensor([0.3], dtype=dtype)
        on_device, result = values.cuda(), torch.zeros_like(values).cuda()
        for residence, factor in ((1, scalar), (0, scalar.cuda())):
            operator = ctypes.c_int()
            created = nccl.ncclRedOpCreatePreMulSum(
                ctypes.byref(operator), pointer(factor), kind, residence, communicator
            )
            assert created == SUCCESS, nccl.ncclGetLastError(None)
            assert all_reduce(on_device, result, len(values), kind, operator) == SUCCESS
            assert nccl.ncclRedOpDestroy(operator, communicator) == SUCCESS
            print(dtype, residence, torch.equal(result.cpu(), values * scalar))
    integers, factor = torch.tensor([-7, 2**30]).int().cuda(), torch.tensor([-3]).int()
    result, operator = torch.zeros_like(integers), ctypes.c_int()
    assert nccl.ncclRedOpCreatePreMulSum(ctypes.byref(operator), pointer(factor), INT32, 1, communicator) == SUCCESS
    assert all_reduce(integers, result, 2, INT32, operator) == SUCCESS
    print(result.tolist() == (integers.cpu() * factor).tolist())
    """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.count("True") == 9, run.stdout


def test_every_collective_of_one_rank_is_a_copy(maya_run: MayaRun) -> None:
    run = maya_run(
        NCCL
        + """
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
        collective = getattr(nccl, f"nccl{name}")
        result = collective(pointer(sent), pointer(received), ctypes.c_size_t(6), FP64, *middle, communicator, None)
        assert result == SUCCESS, (name, nccl.ncclGetLastError(None))
        assert received.tolist() == list(range(6)), name
    assert nccl.ncclBcast(pointer(sent), ctypes.c_size_t(6), FP64, 0, communicator, None) == SUCCESS
    assert nccl.ncclBcast(pointer(sent), ctypes.c_size_t(6), FP64, 1, communicator, None) == INVALID_ARGUMENT
    """
    )
    assert run.exit_code == 0, run.stderr
    calls = " ".join(signature["call"].removeprefix("nccl") for signature, _ in _collectives(run))
    assert calls == "AllReduce Reduce ReduceScatter Broadcast AllGather AlltoAll Gather Scatter Broadcast"


def test_groups_and_messages_to_oneself(maya_run: MayaRun) -> None:
    run = maya_run(
        NCCL
        + """
    one, two, three = (torch.full((4,), value).cuda() for value in (1.0, 2.0, 3.0))

    nccl.ncclGroupStart()
    nccl.ncclGroupStart()
    assert receive(three, 4, FP32) == SUCCESS
    nccl.ncclGroupEnd()
    print("nothing happens inside a group:", three.tolist())
    assert send(one, 4, FP32) == SUCCESS
    print("the end:", nccl.ncclGroupEnd(), three.tolist())

    print("no receive:", send(one, 4, FP32) == INVALID_USAGE, nccl.ncclGetLastError(None).decode())
    nccl.ncclGroupStart()
    send(one, 4, FP32)
    receive(two, 3, FP32)
    print("other size:", nccl.ncclGroupEnd() == INVALID_USAGE, nccl.ncclGetLastError(None).decode())

    nccl.ncclGroupStart()
    all_reduce(one, two, 4, FP32, SUM)
    print("refused:", all_reduce(one, two, 4, 99, SUM) == INVALID_ARGUMENT)
    print("so is its group:", nccl.ncclGroupEnd() == INVALID_ARGUMENT, two.tolist())
    print("no group:", nccl.ncclGroupEnd() == INVALID_USAGE)
    print("peer:", send(one, 4, FP32, peer=1) == INVALID_ARGUMENT)
    print("reduction:", all_reduce(one, two, 4, FP32, 7) == INVALID_ARGUMENT)
    print("empty:", all_reduce(one, two, 0, FP32, SUM) == SUCCESS)
    assert nccl.ncclCommDestroy(communicator) == SUCCESS
    print("destroyed:", all_reduce(one, two, 4, FP32, SUM) == INVALID_ARGUMENT)
    """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == [
        "nothing happens inside a group: [3.0, 3.0, 3.0, 3.0]",
        "the end: 0 [1.0, 1.0, 1.0, 1.0]",
        "no receive: True ncclSend to the own rank 0 without a matching ncclRecv in the same group",
        "other size: True ncclSend of 16 bytes to the own rank meets ncclRecv of 12 bytes",
        "refused: True",
        "so is its group: True [2.0, 2.0, 2.0, 2.0]",
        "no group: True",
        "peer: True",
        "reduction: True",
        "empty: True",
        "destroyed: True",
    ]
    assert [signature["call"] for signature, _ in _collectives(run)] == ["ncclRecv", "ncclSend"]


def test_communicators(maya_run: MayaRun) -> None:
    run = maya_run(
        NCCL
        + """
    def ask(function, of=communicator):
        answer = ctypes.c_int(-1)
        assert getattr(nccl, function)(of, ctypes.byref(answer)) == SUCCESS
        return answer.value

    print([ask(name) for name in ("ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice", "ncclCommGetAsyncError")])

    class Config(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                    ("blocking", ctypes.c_int), ("rest", ctypes.c_int * 3)]

    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0)
    second, third, fourth = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(1)
    assert nccl.ncclCommInitRankConfig(ctypes.byref(second), 1, identifier, 0, ctypes.byref(config)) == SUCCESS
    config.magic = 0
    wrong = nccl.ncclCommInitRankConfig(ctypes.byref(third), 1, identifier, 0, ctypes.byref(config))
    print("no initializer:", wrong == INVALID_ARGUMENT)
    assert nccl.ncclCommInitRankScalable(ctypes.byref(third), 1, 0, 1, ctypes.byref(identifier), None) == SUCCESS
    assert nccl.ncclCommSplit(third, -1, 0, ctypes.byref(fourth), None) == SUCCESS
    print("no color:", fourth.value)
    assert nccl.ncclCommInitAll(ctypes.byref(fourth), 1, (ctypes.c_int * 1)(3)) == SUCCESS
    print("device:", ask("ncclCommCuDevice", fourth))

    memory, handle, window, user = (ctypes.c_void_p() for _ in range(4))
    assert nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(1000)) == SUCCESS
    size = ctypes.c_size_t(1000)
    assert nccl.ncclCommRegister(second, memory, size, ctypes.byref(handle)) == SUCCESS
    print("not its own:", nccl.ncclCommDeregister(third, handle) == INVALID_ARGUMENT)
    assert nccl.ncclCommDeregister(second, handle) == SUCCESS
    assert nccl.ncclCommWindowRegister(second, memory, size, ctypes.byref(window), 1) == SUCCESS
    assert nccl.ncclWinGetUserPtr(second, window, ctypes.byref(user)) == SUCCESS
    print("window:", user.value == memory.value)
    assert nccl.ncclCommWindowDeregister(second, window) == SUCCESS
    assert nccl.ncclMemFree(memory) == SUCCESS
    for each in (second, third, fourth):
        assert nccl.ncclCommFinalize(each) == SUCCESS
        assert nccl.ncclCommAbort(each) == SUCCESS

    two = nccl.ncclCommInitRank(ctypes.byref(second), 2, identifier, 0)
    print("two ranks:", two == SYSTEM_ERROR, nccl.ncclGetLastError(None).decode()[:44])
    """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == [
        "[1, 0, 0, 0]",
        "no initializer: True",
        "no color: None",
        "device: 3",
        "not its own: True",
        "window: True",
        "two ranks: True ncclCommInitRank: a communicator of 2 ranks:",
    ]
    assert "a run of one rank has nobody to meet" in run.stderr
