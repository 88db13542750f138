"""Send/recv from one member of a communicator to another.

In: posts of both ends. Out: answers to them. A send and a receive with the same sequence number belong together. A send
completes at once while at most 4 MiB (NCCL's buffer) are sent but not received; a later one completes when there is
room again, or when it is received. Both ends must agree on the number of bytes. They may differ in data type, as with
NCCL.

Virtual time: a sender of up to 4 MiB never waits for its receiver. It ends after the time that the transfer takes
beside the sender's other transfers on the same path. A receiver, and the sender of more than 4 MiB, starts when both
ends have arrived; of the two, the end that shares its path with more bytes determines the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.answers import INVALID_USAGE
from coordinator.arithmetic import ITEM_BYTES, Buffer
from coordinator.descriptions import post_text
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from rank_runtime.messages import Call, Done, Failed, Post

BUFFER_BYTES = 4 << 20

Answer = tuple[int, Done | Failed, Buffer | None]  # to which member


@dataclass(slots=True)
class _Send:
    post: Post
    payload: Buffer | None
    size: int


class FinishedSequences:
    """The sequence numbers of finished calls: 0, 1, … with few gaps, so that a floor and a small set hold them."""

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0  # all numbers below it are finished
        self._above: set[int] | None = None  # finished numbers above the floor; None while there are none

    def add(self, number: int) -> None:
        if number != self._floor:
            if self._above is None:
                self._above = set()
            self._above.add(number)
            return
        self._floor += 1
        if self._above is not None:
            while self._floor in self._above:
                self._above.remove(self._floor)
                self._floor += 1
            if not self._above:
                self._above = None

    def __contains__(self, number: int) -> bool:
        return number < self._floor or (self._above is not None and number in self._above)


class Channel:
    """The sends and receives from one member of a communicator to another."""

    __slots__ = (
        "_buffered",
        "_buffered_bytes",
        "_finished",
        "_members",
        "_receiver",
        "_receives",
        "_sender",
        "_times",
        "_waiting",
    )

    def __init__(self, members: Sequence[int], sender: int, receiver: int, times: TimeModel = NO_TIME_MODEL) -> None:
        self._members = members
        self._times = times
        self._sender = sender
        self._receiver = receiver
        self._buffered: dict[int, _Send] = {}  # by sequence number: answered but not received
        self._buffered_bytes = 0
        self._waiting: dict[int, _Send] = {}  # neither answered nor received
        self._receives: dict[int, Post] = {}
        self._finished = FinishedSequences()

    def has_send(self, sequence: int) -> bool:
        return sequence in self._buffered or sequence in self._waiting or sequence in self._finished

    def has_receive(self, sequence: int) -> bool:
        return sequence in self._receives or sequence in self._finished

    def send(self, post: Post, payload: Buffer | None) -> list[Answer]:
        send = _Send(post, payload, post.count * ITEM_BYTES[post.data_type])
        receive = self._receives.pop(post.sequence, None)
        if receive is not None:
            return self._deliver(send, receive, sender_waits=True)
        self._waiting[post.sequence] = send
        return self._answer_buffered()

    def receive(self, post: Post) -> list[Answer]:
        sequence = post.sequence
        if sequence in self._waiting:
            answers = self._deliver(self._waiting.pop(sequence), post, sender_waits=True)
        elif sequence in self._buffered:
            send = self._buffered.pop(sequence)
            self._buffered_bytes -= send.size
            answers = self._deliver(send, post, sender_waits=False)
        else:
            self._receives[sequence] = post
            return []
        return answers + self._answer_buffered()

    def complete_alone(self, post: Post) -> list[Answer]:
        """A post whose other end is absent. That end is assumed to arrive at the same time."""
        self._finished.add(post.sequence)
        send = _Send(post, None, post.count * ITEM_BYTES[post.data_type])
        started = post.arrival_ns
        if post.call == Call.SEND:
            return [self._sent(send, started, started + self._ns(send, post.shared_bytes))]
        ended = started + self._ns(send, post.shared_bytes)
        return [(self._receiver, Done(post.token, (), False, started, ended), None)]

    def receive_sibling(self, post: Post, sent: Post, payload: Buffer | None) -> list[Answer]:
        """A recv from an absent member, which sends what its sibling sends, at the same time."""
        send = _Send(sent, payload, sent.count * ITEM_BYTES[sent.data_type])
        return self._deliver(send, post, sender_waits=False)

    def leave(self, member: int, *, withdraw: bool) -> None:
        """A member reads no more answers. Its posted sends remain receivable unless they are withdrawn."""
        if member == self._sender:
            if not withdraw:
                self._buffered |= self._waiting
                self._buffered_bytes += sum(send.size for send in self._waiting.values())
            self._waiting.clear()
        if member == self._receiver:
            self._receives.clear()

    def abandon(self, post: Post) -> None:
        """The end that posted it stops waiting. A send remains receivable."""
        if self._receives.get(post.sequence) is post:
            del self._receives[post.sequence]
        else:
            self._buffered[post.sequence] = self._waiting.pop(post.sequence)
            self._buffered_bytes += self._buffered[post.sequence].size

    def unanswered(self) -> Iterator[tuple[int, int, Post]]:
        """The member that waits, the member it waits for, and the post."""
        for send in self._waiting.values():
            yield self._sender, self._receiver, send.post
        for post in self._receives.values():
            yield self._receiver, self._sender, post

    def _answer_buffered(self) -> list[Answer]:
        """Answer the sends that fit into the buffer, in order."""
        answers: list[Answer] = []
        for sequence in sorted(self._waiting):
            send = self._waiting[sequence]
            if self._buffered_bytes + send.size > BUFFER_BYTES:
                break
            self._buffered[sequence] = self._waiting.pop(sequence)
            self._buffered_bytes += send.size
            answers.append(self._sent(send))
        return answers

    def _deliver(self, send: _Send, receive: Post, *, sender_waits: bool) -> list[Answer]:
        self._finished.add(receive.sequence)
        answers: list[Answer] = []
        if send.size != receive.count * ITEM_BYTES[receive.data_type]:
            text = self._difference(send.post, receive)
            if sender_waits:
                answers.append((self._sender, Failed(send.post.token, INVALID_USAGE, text), None))
            return [*answers, (self._receiver, Failed(receive.token, INVALID_USAGE, text), None)]
        started = max(send.post.arrival_ns, receive.arrival_ns)
        ended = started + self._ns(send, max(send.post.shared_bytes, receive.shared_bytes))
        if sender_waits:
            answers.append(self._sent(send, started, ended))
        if send.payload is None or not send.post.known:
            return [*answers, (self._receiver, Done(receive.token, (), False, started, ended), None)]
        done = Done(receive.token, send.post.known, True, started, ended, send.post.guessed)
        return [*answers, (self._receiver, done, send.payload)]

    def _sent(self, send: _Send, started: int = 0, ended: int = 0) -> Answer:
        """`started` and `ended` are the receiver's; a send that fits into the buffer has times of its own."""
        if send.size <= BUFFER_BYTES:
            started = send.post.arrival_ns
            ended = started + self._ns(send, send.post.shared_bytes)
        return self._sender, Done(send.post.token, (), False, started, ended), None

    def _ns(self, send: _Send, shared_bytes: int) -> int:
        size = send.size if self._sender == self._receiver else max(send.size, shared_bytes)
        return self._times.p2p_ns(self._members[self._sender], self._members[self._receiver], size)

    def _difference(self, send: Post, receive: Post) -> str:
        sender, receiver = self._members[self._sender], self._members[self._receiver]
        return (
            f"send and receive {receive.sequence} do not match: "
            f"rank {sender} posted {post_text(send, self._members)}; "
            f"rank {receiver} posted {post_text(receive, self._members)}"
        )
