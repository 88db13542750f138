"""Sends and receives from one member of a communicator to another.

In: posts of both ends. Out: answers to them. A send and a receive of the same sequence number belong together. A send
is complete at once while no more than 4 MiB, which is NCCL's buffer, are on their way without having been received;
after that, when there is room again, or when it has been received. Both ends must agree on the number of bytes; as with
NCCL, what type the bytes have is their own business.

In virtual time, too, a sender does not wait for the receiver of a message of up to 4 MiB, whatever else is on its way:
it is done after the time that the message takes beside the others which the sender sends the same way. A receiver, and
the sender of a larger message, begins when both ends have come; the end that has more to share its way with decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.arithmetic import ITEM_BYTES, Buffer
from coordinator.descriptions import post_text
from coordinator.results import INVALID_USAGE
from coordinator.sequences import Sequences
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from rank_runtime.messages import Done, Failed, Post

BUFFER_BYTES = 4 << 20

Answer = tuple[int, Done | Failed, Buffer | None]  # to which member


@dataclass(slots=True)
class _Send:
    post: Post
    payload: Buffer | None
    size: int


class Channel:
    """From one sender to one receiver."""

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
        self._buffered: dict[int, _Send] = {}  # by sequence number: answered, not received
        self._buffered_bytes = 0
        self._waiting: dict[int, _Send] = {}  # neither answered nor received
        self._receives: dict[int, Post] = {}
        self._finished = Sequences()

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
        return self._let_in()

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
        return answers + self._let_in()

    def leave(self, member: int, *, withdraw: bool) -> None:
        """A member reads no more answers. A send that was posted stays on its way, unless it is withdrawn."""
        if member == self._sender:
            if not withdraw:
                self._buffered |= self._waiting
                self._buffered_bytes += sum(send.size for send in self._waiting.values())
            self._waiting.clear()
        if member == self._receiver:
            self._receives.clear()

    def abandon(self, post: Post) -> None:
        """The end that posted it, and still waits, gives up. A send stays on its way."""
        if self._receives.get(post.sequence) is post:
            del self._receives[post.sequence]
        else:
            self._buffered[post.sequence] = self._waiting.pop(post.sequence)
            self._buffered_bytes += self._buffered[post.sequence].size

    def unanswered(self) -> Iterator[tuple[int, int, Post]]:
        """Who waits for whom, and with which post; members, not ranks."""
        for send in self._waiting.values():
            yield self._sender, self._receiver, send.post
        for post in self._receives.values():
            yield self._receiver, self._sender, post

    def _let_in(self) -> list[Answer]:
        """Answer the sends for which there is room, in their order."""
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
        """`started` and `ended` are the receiver's."""
        if send.size <= BUFFER_BYTES:
            started = send.post.arrival_ns
            ended = started + self._ns(send, send.post.shared_bytes)
        return self._sender, Done(send.post.token, (), False, started, ended), None

    def _ns(self, send: _Send, shared_bytes: int) -> int:
        return self._times.message_ns(
            self._members[self._sender], self._members[self._receiver], max(send.size, shared_bytes)
        )

    def _difference(self, send: Post, receive: Post) -> str:
        sender, receiver = self._members[self._sender], self._members[self._receiver]
        return (
            f"send and receive {receive.sequence} do not match: "
            f"rank {sender} posted {post_text(send, self._members)}; "
            f"rank {receiver} posted {post_text(receive, self._members)}"
        )
