"""Memory of the host and of other devices: kinds of pointers, pinned memory, peers, memory that processes share."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun

from maya.trace import RecordKind, read

POINTERS = Checks(
    """
    import ctypes
    import torch

    class Attributes(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("on_device", ctypes.c_void_p),
                    ("on_host", ctypes.c_void_p), ("reserved", ctypes.c_long * 8)]

    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    UNREGISTERED, HOST, DEVICE = 0, 1, 2
    plain = torch.arange(10_000)

    def attributes(address):
        found = Attributes()
        assert runtime.cudaPointerGetAttributes(ctypes.byref(found), ctypes.c_void_p(address)) == 0
        return found

    def a_pointer_into_device_memory_knows_its_device():
        for device in (0, 3):
            x = torch.zeros(1000, device=f"cuda:{device}")
            for address in (x.data_ptr(), x[500:].data_ptr()):
                found = attributes(address)
                assert (found.type, found.device, found.on_device) == (DEVICE, device, address)

    def pageable_memory_is_unregistered():
        assert not plain.is_pinned() and attributes(plain.data_ptr()).type == UNREGISTERED

    def pinned_memory_is_host_memory_with_the_same_values():
        pinned = plain.pin_memory()
        assert pinned.is_pinned() and torch.equal(pinned, plain)
        found = attributes(pinned.data_ptr())
        assert found.type == HOST and found.on_host == pinned.data_ptr()
        assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), plain)

    def freed_pinned_memory_is_kept_for_the_next_tensor():
        pinned = plain.pin_memory()
        pinned.to("cuda", non_blocking=True)
        address = pinned.data_ptr()
        del pinned
        torch.cuda.synchronize()  # until the event is over, by the virtual clock, that its allocator has recorded
        assert torch.empty(10_000, dtype=torch.int64, pin_memory=True).data_ptr() == address

    def registered_memory_is_pinned_until_it_is_unregistered():
        cudart, size = torch.cuda.cudart(), plain.numel() * plain.element_size()
        assert int(cudart.cudaHostRegister(plain.data_ptr(), size, 0)) == 0
        assert plain.is_pinned() and attributes(plain[100:].data_ptr()).type == HOST
        assert torch.equal(plain.to("cuda", non_blocking=True).cpu(), plain)
        assert int(cudart.cudaHostUnregister(plain.data_ptr())) == 0
        assert not plain.is_pinned()

    def memory_cannot_be_registered_twice():
        cudart, size = torch.cuda.cudart(), plain.numel() * plain.element_size()
        assert int(cudart.cudaHostRegister(plain.data_ptr(), size, 0)) == 0
        assert int(cudart.cudaHostRegister(plain.data_ptr(), size, 0)) == 712
        assert int(cudart.cudaHostUnregister(plain.data_ptr())) == 0
        runtime.cudaGetLastError()

    def unregistering_unregistered_memory_is_an_error_that_is_told_once():
        assert int(torch.cuda.cudart().cudaHostUnregister(plain.data_ptr())) == 713
        assert runtime.cudaGetLastError() == 713 and runtime.cudaGetLastError() == 0

    def devices_are_peers_of_each_other_and_not_of_themselves():
        assert torch.cuda.device_count() == 8
        assert torch.cuda.can_device_access_peer(0, 1) and not torch.cuda.can_device_access_peer(0, 0)

    def values_are_copied_between_devices():
        here = torch.arange(6.0, device="cuda:0")
        there = here.to("cuda:5")
        assert there.device.index == 5 and torch.equal(there.cpu(), here.cpu())
        there.add_(1)
        here.copy_(there, non_blocking=True)
        assert here.tolist() == [1, 2, 3, 4, 5, 6]

    def memory_is_taken_from_the_current_device():
        with torch.cuda.device(2):
            on_second = torch.ones(2, device="cuda")
            assert on_second.device.index == 2
            assert torch.cuda.memory_allocated(2) > 0 and torch.cuda.memory_allocated(4) == 0
    """
)


@pytest.fixture(scope="module")
def pointers(maya_run_once: MayaRun) -> Outcomes:
    return POINTERS.run(maya_run_once)


@pytest.mark.parametrize("check", POINTERS.names)
def test_pointers(pointers: Outcomes, check: str) -> None:
    pointers.require(check)


def test_copies_between_devices_are_recorded_as_such(pointers: Outcomes) -> None:
    trace = read(pointers.run.trace)
    ways = [trace.signature(number)["copy"] for number in trace.select(RecordKind.MEMCPY)["signature"].tolist()]
    assert ways.count("PtoP") == 2


def test_another_process_sees_shared_memory(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import torch
        import torch.multiprocessing as mp

        def child(tensors, answers):
            x, y = tensors.get(timeout=60)
            answers.put((str(x.device), x.tolist(), y.sum().item()))
            x.mul_(2)
            y[3:5] = 7
            torch.cuda.synchronize()
            answers.put("written")
            tensors.get(timeout=60)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            tensors, answers = context.Queue(), context.Queue()
            process = context.Process(target=child, args=(tensors, answers))
            process.start()
            x, large = torch.arange(5.0).cuda(), torch.arange(1_000_000).cuda()
            y = large[10:20]
            tensors.put((x, y))
            assert answers.get(timeout=60) == ("cuda:0", [0, 1, 2, 3, 4], 145)
            assert answers.get(timeout=60) == "written"
            assert x.tolist() == [0, 2, 4, 6, 8], x
            assert y.tolist() == [10, 11, 12, 7, 7, 15, 16, 17, 18, 19], y
            tensors.put(None)
            process.join(60)
            assert process.exitcode == 0
            assert (x + 1).tolist() == [1, 3, 5, 7, 9]
            print("shared")
        """
    )
    assert run.exit_code == 0, run.output
    assert run.stdout == "shared\n"
