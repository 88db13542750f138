"""The life of NCCL communicators among several ranks: how they begin, split, shrink and end, and what they take."""

from __future__ import annotations

import re

from helpers.nccl_ranks import Ranks, ranks_fixture  # noqa: F401


def test_split(ranks: Ranks) -> None:
    ranks(
        4,
        """
        world = Communicator.join()
        parity = world.split(RANK % 2, key=-RANK)  # the key turns the order around
        assert (parity.ranks, parity.rank) == (2, 1 - RANK // 2)
        x = Buffer(np.array([RANK]))
        parity.all_reduce(x)
        assert x.read().tolist() == [2 if RANK % 2 == 0 else 4]
        some = world.split(0 if RANK < 3 else -1)
        assert (some is None) == (RANK == 3)
        if some:
            x = Buffer(np.array([RANK]))
            some.all_reduce(x, op=MAX)
            assert x.read().tolist() == [2]
            alone = some.split(RANK)
            assert alone.ranks == 1
            alone.all_reduce(x)
            assert x.read().tolist() == [2]
            alone.destroy(), some.destroy()
        again = parity.split(0)
        x = Buffer(np.array([1.0]))
        again.all_reduce(x)
        world.all_reduce(x)
        assert x.read().tolist() == [8.0]
        for each in (again, parity, world):
            each.destroy()
        """,
    )


def test_shrink(ranks: Ranks) -> None:
    """A rank that is excluded need not even be there."""
    ranks(
        3,
        """
        import os

        world = Communicator.join()
        x = Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [3.0]
        if RANK == 1:
            os._exit(0)
        stream = Stream()
        world.all_reduce(x, stream=stream)  # will never be complete
        assert not stream.is_idle()
        fewer = world.shrink([1], flags=1)
        stream.synchronize()
        assert (fewer.ranks, fewer.rank) == (2, 0 if RANK == 0 else 1)
        y = Buffer(np.array([1.0]))
        fewer.all_reduce(y)
        assert y.read().tolist() == [2.0]
        assert refusal(lambda: world.all_reduce(x)) == INVALID_USAGE
        world.abort(), fewer.destroy()
        """,
    )


def test_communicators_that_do_not_block(ranks: Ranks) -> None:
    ranks(
        2,
        """
        import pathlib, sys, time

        signal = pathlib.Path(sys.argv[0]).with_name("go")
        if RANK == 1:
            while not signal.exists():
                time.sleep(0.01)
        world = Communicator.join_without_waiting()
        if RANK == 0:
            assert world.error == IN_PROGRESS
            x = Buffer(np.array([1.0]))
            assert refusal(lambda: world.all_reduce(x)) == INVALID_ARGUMENT  # not ready
            signal.touch()
        while world.error == IN_PROGRESS:
            time.sleep(0.01)
        assert world.error == SUCCESS and world.ranks == 2
        x = Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [2.0]

        # several at once, by one thread, in orders that would block each other outside a group
        names = ["one", "two", "three"]
        handles = {name: ctypes.c_void_p() for name in (names if RANK == 0 else reversed(names))}
        with group():
            for name, handle in handles.items():
                check("ncclCommInitRank", ctypes.byref(handle), WORLD, unique_id(name), RANK)
        for name in names:
            each = Communicator(handles[name])
            each.all_reduce(x)
            each.destroy()
        assert x.read().tolist() == [16.0]

        identifiers = (UniqueId * 2)(unique_id("first"), unique_id("second"))
        handle = ctypes.c_void_p()
        check("ncclCommInitRankScalable", ctypes.byref(handle), WORLD, RANK, 2, identifiers, None)
        each = Communicator(handle)
        each.all_reduce(x)
        assert x.read().tolist() == [32.0]
        check("ncclCommFinalize", each.handle)
        assert refusal(lambda: each.all_reduce(x)) == INVALID_USAGE
        each.destroy()
        """,
    )


def test_several_devices_of_one_process(ranks: Ranks) -> None:
    ranks(
        1,
        """
        handles = (ctypes.c_void_p * 3)()
        check("ncclCommInitAll", handles, 3, None)
        communicators = [Communicator(ctypes.c_void_p(handle)) for handle in handles]
        buffers = []
        for device in range(3):
            checked("cudaSetDevice", device)
            buffers.append(Buffer(np.array([1.0 + device])))
        with group():
            for communicator, buffer in zip(communicators, buffers):
                communicator.all_reduce(buffer)
        for device, buffer in enumerate(buffers):
            checked("cudaSetDevice", device)
            assert buffer.read().tolist() == [6.0], buffer.read()
            assert communicators[device].ask("ncclCommCuDevice") == device
        for communicator in communicators:
            communicator.destroy()
        """,
    )


def test_two_ranks_on_one_gpu(ranks: Ranks) -> None:
    """Refused to all members, whichever way the communicator is made, once all have come."""
    ranks(
        4,
        """
        def text():
            return nccl.ncclGetLastError(None).decode()

        checked("cudaSetDevice", RANK // 2 * 2)
        other = RANK ^ 1
        assert refusal(lambda: Communicator.join()) == INVALID_USAGE
        said = f"Duplicate GPU detected : rank {RANK} and rank {other} both on CUDA device {RANK // 2 * 2 + 1}000 "
        assert said in text()
        handle, keys = ctypes.c_void_p(), (type(unique_id("a")) * 2)(unique_id("first"), unique_id("second"))
        result = nccl.ncclCommInitRankScalable(ctypes.byref(handle), WORLD, RANK, 2, keys, None)
        assert (result, handle.value) == (INVALID_USAGE, None)
        world = Communicator.join_without_waiting("without waiting")
        while (error := world.error) == IN_PROGRESS:
            pass
        assert error == INVALID_USAGE and "Duplicate GPU" in nccl.ncclGetLastError(world.handle).decode()
        world.abort()

        checked("cudaSetDevice", RANK)
        world = Communicator.join("on GPUs of their own")
        half = world.split(RANK // 2)
        x = Buffer(np.array([1.0]))
        half.all_reduce(x)
        assert x.read().tolist() == [2.0]
        half.destroy(), world.destroy()
        """,
    )


def test_one_gpu_of_several_nodes(ranks: Ranks) -> None:
    ranks(
        2,
        """
        checked("cudaSetDevice", 0)
        world, x = Communicator.join(), Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [2.0]
        world.destroy()
        """,
        variables={"LOCAL_WORLD_SIZE": "1"},
    )


def test_one_gpu_twice_in_one_process(ranks: Ranks) -> None:
    ranks(
        1,
        """
        handles, devices = (ctypes.c_void_p * 2)(), (ctypes.c_int * 2)(3, 3)
        assert nccl.ncclCommInitAll(handles, 2, devices) == INVALID_USAGE
        assert b"both on CUDA device 4000" in nccl.ncclGetLastError(None)
        assert nccl.ncclCommInitAll(handles, 2, (ctypes.c_int * 2)(0, 8)) == INVALID_ARGUMENT
        """,
    )


def test_abort_lets_streams_go(ranks: Ranks) -> None:
    outputs = ranks(
        2,
        """
        import threading

        world, second = Communicator.join(), Communicator.join("second")
        x = Buffer(np.array([1.0]))
        if RANK == 0:
            stream = Stream()
            world.all_reduce(x, stream=stream)  # rank 1 never comes
            world.all_reduce(x, stream=stream)
            assert not stream.is_idle()
            waiting = threading.Thread(target=stream.synchronize)
            waiting.start()
            world.abort()
            waiting.join()
            assert stream.is_idle()
            lonely = Communicator.join_without_waiting("lonely")
            lonely.abort()
        else:
            world.abort()
        second.all_reduce(x)  # the process and its other communicators live on
        print(x.read().tolist())
        check("ncclCommRevoke", second.handle, 0)
        assert refusal(lambda: second.all_reduce(x)) == INVALID_USAGE
        second.destroy()
        """,
    )
    assert [output.splitlines()[-1] for output in outputs] == ["[2.0]", "[2.0]"], outputs


def test_a_mismatch_is_an_error_of_the_communicator(ranks: Ranks) -> None:
    outputs = ranks(
        2,
        """
        world, fine = Communicator.join(), Communicator.join("fine")
        x, stream = Buffer(np.zeros(4 + RANK)), Stream()
        world.all_reduce(x, stream=stream)
        stream.synchronize()  # it goes on
        assert world.error == INVALID_USAGE
        assert refusal(lambda: world.all_reduce(x)) == INVALID_USAGE
        print(nccl.ncclGetLastError(world.handle).decode())
        fine.all_reduce(Buffer(np.array([1.0])))
        assert fine.error == SUCCESS
        world.abort(), fine.destroy()
        """,
    )
    for output in outputs:
        assert re.search("rank 0.* 4.*rank 1.* 5|rank 1.* 5.*rank 0.* 4", output), output
        assert output.count("maya: [rank") == 1, output


def test_buffers_take_device_memory(ranks: Ranks) -> None:
    """About 150 MiB a communicator of several ranks; none where they are shared or nobody is to be reached."""
    ranks(
        2,
        """
        def free_bytes():
            free, total = size_t(), size_t()
            checked("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
            return free.value

        before = free_bytes()
        world = Communicator.join()
        taken = before - free_bytes()
        assert 100 << 20 < taken < 200 << 20
        alone = world.split(RANK)
        assert before - free_bytes() == taken
        again = world.split(0)
        assert before - free_bytes() == 2 * taken
        for each in (alone, again, world):
            each.destroy()
        assert free_bytes() == before
        everything = ctypes.c_void_p()
        checked("cudaMalloc", ctypes.byref(everything), size_t(before - taken // 2))
        assert refusal(lambda: Communicator.join("too much")) == 1  # ncclUnhandledCudaError
        assert b"out of memory" in nccl.ncclGetLastError(None)
        """,
    )
