"""Contributions of present members to the collectives of a group, exchanged through torch's store.

In: a store (torch.distributed.Store), the group, and contributions as bytes with a signature: a text that describes the
call and has to be the same on all members. Out: the contributions of the other present members.

Keys, below PREFIX and the name of the group, with n counting the collectives of the group:

    n/<place>                        contribution of a member
    n/<place>/<to>                   part of a contribution for one member
    p2p/<from>/<to>/<tag>/n          a send; n counts the sends between these two with this tag
    sibling/<place>/<to or all>/n    what the siblings of a sender receive (known_groups.py), or empty
    <key>/read                       how many members have read; the last one deletes the key

A member contributes when the collective is called, and waits afterwards. So the order in which a program waits for
several asynchronous collectives does not matter. The coordinator never sets keys below PREFIX for absent ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rank_runtime.absent_members.known_groups import GroupMembers, KnownGroups

PREFIX = "maya-gloo/"
ASSUMED = "maya-assumed/"  # a key below it tells the coordinator about a value that was assumed for an absent rank

_NOTHING = b"-"  # a value is never empty: a store cannot tell an empty one from none


class ExchangeError(RuntimeError):
    """Other members did not contribute, or called something else."""


class StoreExchange:
    """The exchange of one group."""

    def __init__(self, store: Any, group: GroupMembers, place: int, known: KnownGroups, timeout: timedelta) -> None:
        self.group = group
        self.place = place
        self.known = known
        self.timeout = timeout
        self.calls = 0
        self._store = store
        self._clients = threading.local()
        self._sent: dict[tuple[int, int, int], int] = {}  # from, to, tag -> sends so far
        self._received: dict[tuple[int, int, int], int] = {}
        self._lock = threading.Lock()

    @property
    def is_alone(self) -> bool:
        """Whether this rank is the only present member."""
        return len(self.group.present) == 1

    def next_call(self) -> int:
        with self._lock:
            self.calls += 1
            return self.calls - 1

    # ---- collectives ----

    def contribute(self, call: int, signature: str, payload: bytes, to: int | None = None) -> None:
        """Give this member's contribution to the others, or to one of them."""
        if not self.is_alone:
            suffix = "" if to is None else f"/{to}"
            self._client().set(self._key(f"{call}/{self.place}{suffix}"), _framed(signature, payload))

    def collect(
        self, call: int, signature: str, places: Sequence[int], *, readers: int, timeout: timedelta | None = None
    ) -> dict[int, bytes]:
        """The contributions of other present members. `readers`: how many members read each of them."""
        keys = [self._key(f"{call}/{place}") for place in places]
        if not keys:
            return {}
        self._wait(keys, signature, places, timeout)
        found = dict(zip(places, self._values(keys), strict=True))
        payloads = {place: self._payload(call, signature, place, value) for place, value in found.items()}
        for key in keys:
            self._has_read(key, readers)
        return payloads

    def collect_part(self, call: int, signature: str, place: int) -> bytes:
        """The part of another member's contribution that is for this member."""
        key = self._key(f"{call}/{place}/{self.place}")
        self._wait([key], signature, [place], None)
        payload = self._payload(call, signature, place, self._values([key])[0])
        self._client().delete_key(key)
        return payload

    # ---- send/recv ----

    def send(self, signature: str, payload: bytes, to: int, tag: int) -> None:
        number = self._next(self._sent, (self.place, to, tag))
        if self.group.is_present(to):
            key = self._key(f"p2p/{self.place}/{to}/{tag}/{number}")
            self._client().set(key, _framed(signature, payload))
        self.give_siblings(f"{to}/{tag}/{number}", signature, payload, to)

    def reserve_receive(self, sender: int, tag: int) -> int:
        """The number of the next recv from a member, in the order of the program's calls."""
        return self._next(self._received, (sender, self.place, tag))

    def receive(self, signature: str, sender: int, tag: int, number: int) -> bytes:
        """What a present member sends."""
        key = self._key(f"p2p/{sender}/{self.place}/{tag}/{number}")
        self._wait([key], signature, [sender], None)
        return self._take_send(key, signature, sender)

    def receive_if_sent(self, signature: str, sender: int, tag: int) -> bytes | None:
        """What a present member has sent; None: nothing yet."""
        with self._lock:
            number = self._received.get((sender, self.place, tag), 0)
        key = self._key(f"p2p/{sender}/{self.place}/{tag}/{number}")
        if not self._client().check([key]):
            return None
        self.reserve_receive(sender, tag)
        return self._take_send(key, signature, sender)

    def _take_send(self, key: str, signature: str, sender: int) -> bytes:
        sent, _, payload = self._values([key])[0].partition(b"\n")
        self._client().delete_key(key)
        if sent.decode() != signature:
            raise ExchangeError(
                f"send and recv do not match on Gloo group {self.group.name}: rank {self._rank(sender)} sends "
                f"{sent.decode()}, rank {self._rank(self.place)} receives {signature}"
            )
        return payload

    # ---- siblings ----

    def give_siblings(self, what: str, signature: str, payload: bytes, to: int | None) -> None:
        """Let the siblings' receivers have what this member sends. Without takers, say that there is nothing: a group
        that is created later may still ask."""
        if not self.known.may_have_siblings(self.group):
            return
        takers = self.known.takers(self.group, self.place, to)
        value = _framed(signature, payload) if takers else _NOTHING
        self._client().set(self._key(f"sibling/{self.place}/{what}"), value)

    def take_from_sibling(self, sender: int, what: str, signature: str, to: int | None) -> bytes | None:
        """What an absent member sends, from its sibling; None: it is not known."""
        sibling = self.known.sibling(self.group, sender)
        if sibling is None:
            return None
        key = f"{PREFIX}{sibling.name}/sibling/{sender}/{what}"
        self._wait([key], signature, [sender], None, sibling)
        value = self._values([key])[0]
        if value == _NOTHING:
            return None
        self._has_read(key, self.known.takers(sibling, sender, to))
        sent, _, payload = value.partition(b"\n")
        return payload if sent.decode() == signature else None

    # ---- assumptions ----

    def assume(self, what: str) -> None:
        """Tell the coordinator that a value was assumed, for the summary."""
        self._client().set(f"{ASSUMED}{what}", _NOTHING)

    # ---- the store ----

    def _key(self, rest: str) -> str:
        return f"{PREFIX}{self.group.name}/{rest}"

    def _client(self) -> Any:
        """This thread's connection: a client that waits would make other threads wait for it."""
        client = getattr(self._clients, "store", None)
        if client is None:
            client = self._clients.store = self._store.clone() if hasattr(self._store, "clone") else self._store
        return client

    def _wait(
        self,
        keys: list[str],
        signature: str,
        places: Sequence[int],
        timeout: timedelta | None,
        group: GroupMembers | None = None,
    ) -> None:
        limit = timeout or self.timeout
        try:
            self._client().wait(keys, limit)
        except RuntimeError as error:
            missing = [place for key, place in zip(keys, places, strict=True) if not self._client().check([key])]
            if not missing:
                return
            ranks = ", ".join(str((group or self.group).members[place]) for place in missing)
            raise ExchangeError(
                f"{signature.partition(' ')[0]} on Gloo group {self.group.name} is not complete after "
                f"{limit.total_seconds():g} s: rank {ranks} did not call it ({error})"
            ) from None

    def _values(self, keys: list[str]) -> list[bytes]:
        client = self._client()
        if len(keys) > 1 and client.has_extended_api():
            return [bytes(value) for value in client.multi_get(keys)]
        return [bytes(client.get(key)) for key in keys]

    def _has_read(self, key: str, readers: int) -> None:
        client = self._client()
        if readers <= 1 or client.add(f"{key}/read", 1) >= readers:
            client.delete_key(key)
            client.delete_key(f"{key}/read")

    def _payload(self, call: int, signature: str, place: int, value: bytes) -> bytes:
        theirs, _, payload = value.partition(b"\n")
        if theirs.decode() != signature:
            raise ExchangeError(
                f"collective {call} of Gloo group {self.group.name} does not match: rank {self._rank(self.place)} "
                f"called {signature}, rank {self._rank(place)} called {theirs.decode()}"
            )
        return payload

    def _next(self, counts: dict[tuple[int, int, int], int], key: tuple[int, int, int]) -> int:
        with self._lock:
            counts[key] = counts.get(key, 0) + 1
            return counts[key] - 1

    def _rank(self, place: int) -> int:
        return self.group.members[place]


def _framed(signature: str, payload: bytes) -> bytes:
    return signature.encode() + b"\n" + payload


def others(group: GroupMembers, place: int) -> list[int]:
    """The present places but one."""
    return [other for other in group.present if other != place]
