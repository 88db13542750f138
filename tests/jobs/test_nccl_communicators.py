"""The life of NCCL communicators among several ranks: how they begin, split, shrink and end, and their memory."""

from __future__ import annotations

import re

import pytest
from helpers.checks import Checks
from helpers.nccl_ranks import RankOutcomes, Ranks, ranks_fixture, ranks_once_fixture, run_checks  # noqa: F401

SPLITS = Checks(
    """
    world = Communicator.join()

    def a_key_orders_the_ranks_of_a_split():
        parity = world.split(RANK % 2, key=-RANK)
        assert (parity.ranks, parity.rank) == (2, 1 - RANK // 2)
        parity.destroy()

    def a_split_reduces_among_its_own_ranks():
        parity, x = world.split(RANK % 2), Buffer(np.array([RANK]))
        parity.all_reduce(x)
        assert x.read().tolist() == [2 if RANK % 2 == 0 else 4]
        parity.destroy()

    def a_rank_without_a_colour_gets_no_communicator():
        some = world.split(0 if RANK < 3 else -1)
        assert (some is None) == (RANK == 3)
        if some:
            x = Buffer(np.array([RANK]))
            some.all_reduce(x, op=MAX)
            assert x.read().tolist() == [2]
            some.destroy()

    def a_rank_can_split_off_alone():
        alone, x = world.split(RANK), Buffer(np.array([2]))
        assert alone.ranks == 1
        alone.all_reduce(x)
        assert x.read().tolist() == [2]
        alone.destroy()

    def a_split_can_be_split_again():
        parity = world.split(RANK % 2)
        again, x = parity.split(0), Buffer(np.array([1.0]))
        again.all_reduce(x)
        world.all_reduce(x)
        assert x.read().tolist() == [8.0]
        again.destroy(), parity.destroy()
    """
)


@pytest.fixture(scope="module")
def splits(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(SPLITS, ranks_once, 4)


@pytest.mark.parametrize("check", SPLITS.names)
def test_splits(splits: RankOutcomes, check: str) -> None:
    splits.require(check)


def test_shrinking_needs_no_excluded_rank(ranks: Ranks) -> None:
    """The excluded rank may have ended."""
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


INITIALISATION = Checks(
    """
    import pathlib, sys, time

    def a_communicator_that_does_not_block_is_in_progress_until_all_ranks_have_come():
        signal = pathlib.Path(sys.argv[0]).with_name("go")
        if RANK == 1:
            while not signal.exists():
                time.sleep(0.01)
        world = Communicator.join_without_waiting("without waiting")
        if RANK == 0:
            try:
                assert world.error == IN_PROGRESS
                x = Buffer(np.array([1.0]))
                assert refusal(lambda: world.all_reduce(x)) == INVALID_ARGUMENT  # not ready
            finally:
                signal.touch()
        while world.error == IN_PROGRESS:
            time.sleep(0.01)
        assert world.error == SUCCESS and world.ranks == 2
        x = Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [2.0]

    def a_group_initialises_several_communicators_in_any_order():  # which would block each other outside a group
        names, x = ["one", "two", "three"], Buffer(np.array([2.0]))
        handles = {name: ctypes.c_void_p() for name in (names if RANK == 0 else reversed(names))}
        with group():
            for name, handle in handles.items():
                check("ncclCommInitRank", ctypes.byref(handle), WORLD, unique_id(name), RANK)
        for name in names:
            each = Communicator(handles[name])
            each.all_reduce(x)
            each.destroy()
        assert x.read().tolist() == [16.0]

    def scalable(first, second):
        identifiers, handle = (UniqueId * 2)(unique_id(first), unique_id(second)), ctypes.c_void_p()
        check("ncclCommInitRankScalable", ctypes.byref(handle), WORLD, RANK, 2, identifiers, None)
        return Communicator(handle)

    def a_communicator_is_made_with_several_unique_ids():
        each, x = scalable("first", "second"), Buffer(np.array([1.0]))
        each.all_reduce(x)
        assert x.read().tolist() == [2.0]
        each.destroy()

    def a_finalised_communicator_refuses_collectives():
        each, x = scalable("third", "fourth"), Buffer(np.array([1.0]))
        each.all_reduce(x)
        check("ncclCommFinalize", each.handle)
        assert refusal(lambda: each.all_reduce(x)) == INVALID_USAGE
        each.destroy()
    """
)


@pytest.fixture(scope="module")
def initialisation(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(INITIALISATION, ranks_once, 2)


@pytest.mark.parametrize("check", INITIALISATION.names)
def test_initialisation(initialisation: RankOutcomes, check: str) -> None:
    initialisation.require(check)


def test_one_process_reduces_over_several_devices(ranks: Ranks) -> None:
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


DUPLICATE_GPUS = Checks(
    """
    other = RANK ^ 1

    def join_is_refused_to_all_members():
        checked("cudaSetDevice", RANK // 2 * 2)
        assert refusal(lambda: Communicator.join()) == INVALID_USAGE
        said = f"Duplicate GPU detected : rank {RANK} and rank {other} both on CUDA device {RANK // 2 * 2 + 1}000 "
        assert said in nccl.ncclGetLastError(None).decode()

    def join_with_several_unique_ids_is_refused():
        checked("cudaSetDevice", RANK // 2 * 2)
        handle, keys = ctypes.c_void_p(), (type(unique_id("a")) * 2)(unique_id("first"), unique_id("second"))
        result = nccl.ncclCommInitRankScalable(ctypes.byref(handle), WORLD, RANK, 2, keys, None)
        assert (result, handle.value) == (INVALID_USAGE, None)

    def join_that_does_not_block_fails_later():
        checked("cudaSetDevice", RANK // 2 * 2)
        world = Communicator.join_without_waiting("without waiting")
        while (error := world.error) == IN_PROGRESS:
            pass
        assert error == INVALID_USAGE and "Duplicate GPU" in nccl.ncclGetLastError(world.handle).decode()
        world.abort()

    def ranks_on_gpus_of_their_own_can_still_join():
        checked("cudaSetDevice", RANK)
        world = Communicator.join("on GPUs of their own")
        half, x = world.split(RANK // 2), Buffer(np.array([1.0]))
        half.all_reduce(x)
        assert x.read().tolist() == [2.0]
        half.destroy(), world.destroy()
    """
)


@pytest.fixture(scope="module")
def duplicate_gpus(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(DUPLICATE_GPUS, ranks_once, 4)


@pytest.mark.parametrize("check", DUPLICATE_GPUS.names)
def test_duplicate_gpus(duplicate_gpus: RankOutcomes, check: str) -> None:
    duplicate_gpus.require(check)


def test_ranks_of_different_nodes_may_use_the_gpu_of_the_same_number(ranks: Ranks) -> None:
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


def test_one_process_cannot_give_a_gpu_twice(ranks: Ranks) -> None:
    ranks(
        1,
        """
        handles, devices = (ctypes.c_void_p * 2)(), (ctypes.c_int * 2)(3, 3)
        assert nccl.ncclCommInitAll(handles, 2, devices) == INVALID_USAGE
        assert b"both on CUDA device 4000" in nccl.ncclGetLastError(None)
        """,
    )


def test_one_process_cannot_give_a_gpu_that_does_not_exist(ranks: Ranks) -> None:
    ranks(
        1,
        """
        handles = (ctypes.c_void_p * 2)()
        assert nccl.ncclCommInitAll(handles, 2, (ctypes.c_int * 2)(0, 8)) == INVALID_ARGUMENT
        """,
    )


ABORTS = Checks(
    """
    import threading

    def an_abort_ends_the_wait_of_a_stream():
        world, x = Communicator.join(), Buffer(np.array([1.0]))
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
        else:
            world.abort()

    def a_communicator_that_waits_for_its_ranks_can_be_aborted():
        if RANK == 0:
            Communicator.join_without_waiting("lonely").abort()

    def other_communicators_live_on_after_an_abort():
        world, second, x = Communicator.join("first"), Communicator.join("second"), Buffer(np.array([1.0]))
        world.abort()
        second.all_reduce(x)
        assert x.read().tolist() == [2.0]
        second.destroy()

    def a_revoked_communicator_refuses_collectives():
        revoked, x = Communicator.join("revoked"), Buffer(np.array([1.0]))
        check("ncclCommRevoke", revoked.handle, 0)
        assert refusal(lambda: revoked.all_reduce(x)) == INVALID_USAGE
        revoked.destroy()
    """
)


@pytest.fixture(scope="module")
def aborts(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(ABORTS, ranks_once, 2)


@pytest.mark.parametrize("check", ABORTS.names)
def test_aborts(aborts: RankOutcomes, check: str) -> None:
    aborts.require(check)


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


BUFFERS = Checks(
    """
    def _free_bytes():
        free, total = size_t(), size_t()
        checked("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    before = _free_bytes()
    world = Communicator.join()
    taken = before - _free_bytes()

    def a_communicator_of_several_ranks_takes_about_150_mib():
        assert 100 << 20 < taken < 200 << 20

    def a_communicator_of_one_rank_takes_none():
        alone = world.split(RANK)
        assert before - _free_bytes() == taken
        alone.destroy()

    def a_second_communicator_takes_as_much_again():
        again = world.split(0)
        assert before - _free_bytes() == 2 * taken
        again.destroy()

    def destroyed_communicators_give_their_memory_back():
        world.destroy()
        assert _free_bytes() == before

    def a_communicator_that_does_not_fit_is_out_of_memory():
        everything = ctypes.c_void_p()
        checked("cudaMalloc", ctypes.byref(everything), size_t(before - taken // 2))
        assert refusal(lambda: Communicator.join("too much")) == 1  # ncclUnhandledCudaError
        assert b"out of memory" in nccl.ncclGetLastError(None)
    """
)


@pytest.fixture(scope="module")
def buffers(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(BUFFERS, ranks_once, 2)


@pytest.mark.parametrize("check", BUFFERS.names)
def test_device_memory(buffers: RankOutcomes, check: str) -> None:
    buffers.require(check)
