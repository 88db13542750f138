"""The coordinator's socket, with real ZeroMQ clients: only ranks get in, nothing is lost, no message does harm."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import msgpack
import numpy as np
import pytest
import zmq
from helpers.coordinator_ranks import join, post

from coordinator.server import Server, ServerError
from rank_runtime.messages import (
    VERSION,
    Bye,
    Call,
    Done,
    Failed,
    Hello,
    Joined,
    Message,
    Refused,
    Welcome,
    pack,
    unpack,
)

SECRET = "0123456789abcdef"
PATIENCE_SECONDS = 300.0


class Job:
    """A server, and clients that talk to it; the server takes its turns while a client waits."""

    def __init__(self, world_size: int, endpoint: str = "") -> None:
        self.server = Server(world_size, SECRET, endpoint)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, world_size + 64)
        self._clients: list[Client] = []

    def client(self, rank: int, *messages: Message) -> Client:
        """A client that has said hello, and what else it has to say in the same batch."""
        client = self.stranger(rank)
        client.send(Hello(VERSION, SECRET, rank, os.getpid()), *messages)
        return client

    def stranger(self, rank: int = 0) -> Client:
        client = Client(self, self._context, rank)
        self._clients.append(client)
        return client

    def everybody(self, world_size: int) -> tuple[list[Client], int]:
        """All ranks, in one communicator."""
        clients = [self.client(rank, join(rank, b"all", rank, world_size)) for rank in range(world_size)]
        for client in clients:
            assert client.receive() == (Welcome(VERSION), None)
        numbers = set()
        for client in clients:
            joined, _ = client.receive()
            assert isinstance(joined, Joined)
            numbers.add(joined.communicator)
        (number,) = numbers
        return clients, number

    def until(self, condition: Callable[[], object]) -> None:
        """Let the server take turns until something is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self.server.socket.poll(5)
            self.server.turn()
            assert time.monotonic() < deadline, "it never came to be"

    def settle(self) -> None:
        """Turns until nothing has come for a while."""
        while self.server.socket.poll(200):
            self.server.turn()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._context.term()
        self.server.close()


class Client:
    """A rank's end: a DEALER."""

    def __init__(self, job: Job, context: zmq.Context[zmq.Socket[bytes]], rank: int) -> None:
        self._job = job
        self.rank = rank
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 2000)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.connect(job.server.endpoint)
        self._received: list[tuple[Message, bytes | None]] = []
        self.batches = 0

    def send(self, *messages: Message, payloads: Sequence[bytes] = ()) -> None:
        self.socket.send_multipart([pack(messages), *payloads])

    def receive(self) -> tuple[Message, bytes | None]:
        """The next message."""
        self._job.until(lambda: self._received or self._take())
        return self._received.pop(0)

    def has_nothing(self) -> bool:
        self._job.settle()
        return not self._received and not self._take()

    def close(self) -> None:
        self.socket.close()

    def _take(self) -> bool:
        if not self.socket.poll(0):
            return False
        frame, *payloads = self.socket.recv_multipart()
        self.batches += 1
        self._received += unpack(frame, payloads)
        return bool(self._received)


def done(token: int) -> tuple[Message, None]:
    """The answer to a post without a payload."""
    return Done(token, [], False), None


@pytest.fixture
def make_job() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(world_size: int, endpoint: str = "") -> Job:
        jobs.append(Job(world_size, endpoint))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


# ---- a job ----


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:*"])
def test_ranks_join_and_reduce(make_job: Callable[..., Job], endpoint: str) -> None:
    job = make_job(4, endpoint)
    assert job.server.endpoint.startswith(("ipc://@maya-", "tcp://127.0.0.1:"))
    clients, number = job.everybody(4)
    for client in clients:
        values = np.full(3, client.rank, np.float32).tobytes()
        client.send(post(number, 0, values, count=3), payloads=[values])
    for client in clients:
        assert client.receive() == (Done(0, [0, 12], True), np.full(3, 6, np.float32).tobytes())


def test_a_thousand_ranks_connect_at_once_and_nothing_is_lost(make_job: Callable[..., Job]) -> None:
    job = make_job(1024)
    clients, number = job.everybody(1024)
    for sequence in range(3):
        for client in clients:
            client.send(post(number, sequence))
    for sequence in range(3):
        for client in clients:
            assert client.receive() == done(sequence)
    assert job.server.state.posts == 3 * 1024
    assert all(client.has_nothing() for client in clients[::100])


def test_answers_of_one_poll_are_one_batch(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    (first, second), number = job.everybody(2)
    before = second.batches
    for sequence in range(5):
        first.send(post(number, sequence))
    job.settle()
    second.send(*(post(number, sequence) for sequence in range(5)))
    assert [second.receive()[0] for _ in range(5)] == [Done(sequence, [], False) for sequence in range(5)]
    assert second.batches == before + 1


def test_large_payloads_arrive_whole(make_job: Callable[..., Job]) -> None:
    job = make_job(3)
    clients, number = job.everybody(3)
    count = 1 << 20
    for client in clients:
        values = np.arange(count, dtype=np.float32) * (client.rank + 1)
        client.send(post(number, 0, bytes(values.data), count=count), payloads=[values.tobytes()])
    expected = (np.arange(count, dtype=np.float32) * 6).tobytes()
    for client in clients:
        assert client.receive() == (Done(0, [0, 4 * count], True), expected)


def test_a_rank_that_does_not_read_delays_no_other_rank_and_loses_nothing(make_job: Callable[..., Job]) -> None:
    """More than any socket buffer holds waits for it; the others go on."""
    job = make_job(2)
    (slow, quick), number = job.everybody(2)
    payload = os.urandom(1 << 20)
    rounds = 64
    for sequence in range(rounds):
        for client in (slow, quick):
            client.send(post(number, sequence, payload, call=Call.ALL_GATHER, count=1 << 18), payloads=[payload])
        answer, received = quick.receive()
        assert answer == Done(sequence, [0, 2 << 20], True)
        assert received == 2 * payload
    for sequence in range(rounds):
        assert slow.receive() == (Done(sequence, [0, 2 << 20], True), 2 * payload)


# ---- who gets in ----


def test_strangers_are_ignored_and_counted(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    stranger = job.stranger()
    stranger.send(Hello(VERSION, "guess", 0, 1), join(0, b"key", 0, 1))
    stranger.send(join(0, b"key", 0, 1))
    stranger.send(Hello(VERSION, SECRET[:-1] + "é", 0, 1))
    stranger.send()
    stranger.socket.send(b"")
    stranger.socket.send(b"\xff" * 100)
    stranger.socket.send_multipart([b"", pack([Hello(VERSION, SECRET, 0, 1)])])
    stranger.socket.send_multipart([pack([Hello(VERSION, "guess", 0, 1)]), *[bytes(10)] * 10])
    job.until(lambda: job.server.ignored == 8)
    assert stranger.has_nothing()
    assert job.server.state.joined == 0
    clients, number = job.everybody(2)
    for client in clients:
        client.send(post(number, 0))
    assert [client.receive() for client in clients] == [done(0)] * 2


def test_a_version_mismatch_names_both_versions(make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    client = job.stranger()
    client.socket.send(msgpack.packb([[1, 99, SECRET, "fields of the future"], [77, {}]]))
    answer, _ = client.receive()
    assert isinstance(answer, Refused)
    assert answer.text == (
        f"the rank uses version 99 of the messages, the coordinator version {VERSION}: "
        "both must come from the same installation of Maya"
    )
    assert job.server.state.joined == 0


def test_one_rank_has_one_connection(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    first = job.client(1)
    assert first.receive() == (Welcome(VERSION), None)
    second = job.client(1)
    answer, _ = second.receive()
    assert isinstance(answer, Refused)
    process = os.getpid()
    assert answer.text.startswith(f"process {process} is rank 1, but so is process {process}, which has not ended")
    assert "maya exec" in answer.text
    third = job.client(2)
    answer, _ = third.receive()
    assert answer == Refused(f"process {process} is rank 2, expected 0 to 1")
    first.send(join(0, b"alone", 0, 1, 5))
    joined, _ = first.receive()
    assert isinstance(joined, Joined)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_rank_may_have_one_process_after_the_other(make_job: Callable[..., Job], says_goodbye: bool) -> None:
    job = make_job(1)
    first = job.client(0)
    first.receive()
    if says_goodbye:
        first.send(Bye())
        job.until(lambda: job.server.state.ended == 1)
    first.close()
    job.settle()
    second = job.client(0)
    assert second.receive() == (Welcome(VERSION), None)
    assert (job.server.state.joined, job.server.state.ended) == (1, 0)


# ---- what does no harm ----


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x00"],
        [os.urandom(1000)],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x91" * 5000],
        [pack([]), b"a payload of nobody"],
        [msgpack.packb([[5, 1]])],
        [msgpack.packb({"a": 1})],
    ],
)
def test_malformed_messages_of_a_rank_are_refused(make_job: Callable[..., Job], frames: list[bytes]) -> None:
    job = make_job(2)
    clients, number = job.everybody(2)
    clients[0].socket.send_multipart(frames)
    answer, _ = clients[0].receive()
    assert isinstance(answer, Refused)
    assert answer.text.startswith("the coordinator cannot read a batch from rank 0: ")
    for client in clients:
        client.send(post(number, 0))
    assert [client.receive() for client in clients] == [done(0)] * 2


def test_bytes_that_are_not_zeromq_do_no_harm(make_job: Callable[..., Job]) -> None:
    job = make_job(2, "tcp://127.0.0.1:*")
    port = int(job.server.endpoint.rpartition(":")[2])
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(2000))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    clients, number = job.everybody(2)
    for client in clients:
        client.send(post(number, 0))
    assert [client.receive() for client in clients] == [done(0)] * 2


def test_messages_that_only_coordinators_send_do_no_harm(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    clients, number = job.everybody(2)
    clients[0].send(Welcome(VERSION), Hello(VERSION, SECRET, 1, 1), Failed(1, 2, "no"), post(number, 0))
    clients[1].send(post(number, 0))
    assert [client.receive() for client in clients] == [done(0)] * 2


# ---- ranks that end ----


def test_a_dead_rank_is_noticed_and_the_others_go_on(make_job: Callable[..., Job]) -> None:
    job = make_job(3)
    clients, everybody = job.everybody(3)
    for client in clients[:2]:
        client.send(join(client.rank, b"pair", client.rank, 2, 2))
    joined, _ = clients[0].receive()
    clients[1].receive()
    assert isinstance(joined, Joined)
    for client in clients:
        client.send(post(everybody, 0))
    clients[2].close()  # before its answer
    job.settle()
    assert [client.receive() for client in clients[:2]] == [done(0)] * 2
    clients[0].send(post(everybody, 1))
    for client in clients[:2]:
        client.send(post(joined.communicator, 0))
    assert [client.receive() for client in clients[:2]] == [done(0)] * 2
    (wait,) = job.server.state.waits()
    assert str(wait) == f"rank 0 waits for ranks 1-2: all_reduce of 1 fp32 sum (1 on communicator {everybody})"


def test_messages_sent_before_the_end_of_a_process_count(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    (first, second), number = job.everybody(2)
    first.send(post(number, 0, b"1234", call=Call.ALL_GATHER), payloads=[b"1234"])
    first.close()
    job.server.exited(0)
    job.until(lambda: job.server.state.ended == 1)
    assert not job.server.expects_an_end
    second.send(post(number, 0, b"abcd", call=Call.ALL_GATHER), payloads=[b"abcd"])
    assert second.receive() == (Done(0, [0, 8], True), b"1234abcd")


def test_a_process_that_never_connected_may_end(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    job.server.exited(1)
    assert (job.server.state.joined, job.server.state.ended) == (0, 1)


def test_silent_ranks_are_known(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    (first, _), number = job.everybody(2)
    moment = time.monotonic()
    first.send(post(number, 0))
    job.settle()
    assert job.server.silent_since(moment) == [1]


def test_an_invalid_endpoint_is_an_error(make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    with pytest.raises(ServerError, match=r"the coordinator cannot listen at ipc://@maya-.*: Address already in use"):
        Server(1, SECRET, job.server.endpoint)
