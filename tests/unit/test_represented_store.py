"""The coordinator's own store, with torch's clients: the answers of torch's TCPStore, and ids for absent ranks."""

from __future__ import annotations

import itertools
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest
from helpers.late_torch import late_torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.absent_ranks import ID_BYTES, AbsentRanks
from coordinator.represented_store import RepresentedStore
from coordinator.store_protocol import Query, RequestReader, StoreProtocolError, StoreRequest

PATIENCE_SECONDS = 300.0
SHORT = timedelta(seconds=0.2)
ID_KEY = "default_pg/0//cuda//0"  # of the first communicator of process group "0"


class Served:
    """A store that a thread serves, and clients of it."""

    def __init__(self, absent: AbsentRanks) -> None:
        self.absent = absent
        self.store = RepresentedStore(0, absent)
        self._wake, self._woken = socket.socketpair()
        self._actions: list[Callable[[], None]] = []
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._pool = ThreadPoolExecutor()
        self._sockets: list[socket.socket] = []

    def client(self) -> Any:
        return _client(self.store.port)

    def plain(self, validated: bool = True) -> socket.socket:
        opened = _plain(self.store.port, validated)
        self._sockets.append(opened)
        return opened

    def do(self, action: Callable[[], None]) -> None:
        """Do something in the thread of the store, before its next turn."""
        self._actions.append(action)
        self._wake.send(b"1")

    def act_for_absent_ranks(self) -> None:
        def act() -> None:
            self.store.fill_in()

        self.do(act)

    def later(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """A call of a client in a thread of its own."""
        return self._pool.submit(call, *arguments)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never came to be"
            assert self._failure is None
            time.sleep(0.002)

    def until_waiting(self, *keys: str) -> None:
        """Until a client waits for these keys. torch's clients add a slash to each."""
        self.until(lambda: tuple(f"/{key}" for key in keys) in self.store.state.waits())

    def close(self) -> None:
        self._ended = True
        self._wake.send(b"1")
        self._thread.join()
        for each in (*self._sockets, self._wake, self._woken):
            each.close()
        self._pool.shutdown()
        assert self._failure is None, f"the store has failed: {self._failure!r}"

    def _serve(self) -> None:
        try:
            while not self._ended:
                ready, _, _ = select.select([self.store.descriptor, self._woken.fileno()], [], [])
                if self._woken.fileno() in ready:
                    self._woken.recv(1)
                    while self._actions:
                        self._actions.pop(0)()
                self.store.turn()
        except BaseException as error:
            self._failure = error
        finally:
            self.store.close()  # so that no client waits for it


def _client(port: int) -> Any:
    patience = timedelta(seconds=PATIENCE_SECONDS)
    return late_torch().distributed.TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=patience
    )


def _plain(port: int, validated: bool = True) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if validated:
        opened.sendall(VALIDATION)
    return opened


@pytest.fixture
def make_served() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(world_size: int = 4, present: Sequence[int] = (1,)) -> Served:
        made.append(Served(AbsentRanks(world_size, present)))
        return made[-1]

    yield make
    for served in made:
        served.close()


@pytest.fixture
def served(make_served: Callable[..., Served]) -> Served:
    return make_served()


# ---- requests as bytes ----


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _request(query: int, *texts: bytes, number: bytes = b"") -> bytes:
    return bytes([query]) + b"".join(map(_text, texts)) + number


def _listed(query: int, *texts: bytes, count: int) -> bytes:
    """A request whose texts are preceded by the number of keys."""
    return bytes([query]) + struct.pack("<Q", count) + b"".join(map(_text, texts))


VALIDATION = bytes([Query.VALIDATE]) + struct.pack("<I", 0x3C85F7CE)
NONCE = b"\xfa\xce\xb0\x0c"


def _ask(opened: socket.socket, request: bytes) -> bytes:
    """The reply to a request, which may be none: a ping follows, and its reply ends what is read."""
    opened.sendall(request + bytes([Query.PING]) + NONCE)
    reply = b""
    while not reply.endswith(NONCE):
        part = opened.recv(1 << 16)
        assert part, "disconnected"
        reply += part
    return reply[: -len(NONCE)]


def _is_disconnected(opened: socket.socket) -> bool:
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


# ---- keys ----


def test_a_value_that_is_set_can_be_read(served: Served) -> None:
    client = served.client()
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_a_value_can_be_replaced(served: Served) -> None:
    client = served.client()
    client.set("key", "first")
    client.set("key", "second")
    assert client.get("key") == b"second"


def test_counters_begin_at_zero(served: Served) -> None:
    client = served.client()
    assert [client.add("counter", amount) for amount in (5, -7, 0)] == [5, -2, -2]
    assert client.get("counter") == b"-2"


def test_a_check_sees_whether_all_keys_exist(served: Served) -> None:
    client = served.client()
    client.set("one", "1")
    assert client.check(["one"])
    assert not client.check(["one", "two"])


def test_several_keys_are_set_and_read_at_once(served: Served) -> None:
    client = served.client()
    client.multi_set(["one", "two"], ["1", "2"])
    assert client.multi_get(["two", "one"]) == [b"2", b"1"]


def test_values_are_appended(served: Served) -> None:
    client = served.client()
    client.append("key", "first ")
    client.append("key", "second")
    assert client.get("key") == b"first second"


def test_a_value_is_replaced_only_if_it_is_the_expected_one(served: Served) -> None:
    client = served.client()
    assert client.compare_set("key", "", "first") == b"first"
    assert client.compare_set("key", "another", "second") == b"first"
    assert client.compare_set("key", "first", "second") == b"second"
    assert client.compare_set("missing", "expected", "value") == b"expected"
    assert not client.check(["missing"])


def test_a_key_can_be_deleted_once(served: Served) -> None:
    client = served.client()
    client.set("key", "value")
    assert [client.delete_key("key"), client.delete_key("key"), client.check(["key"])] == [True, False, False]


def test_keys_are_counted(served: Served) -> None:
    client = served.client()
    before = client.num_keys()
    client.set("one", "1")
    client.set("one", "2")
    client.add("two", 1)
    assert client.num_keys() == before + 2


def test_a_prefix_keeps_keys_apart(served: Served) -> None:
    client = served.client()
    first, second = (late_torch().distributed.PrefixStore(name, client) for name in ("first", "second"))
    first.set("key", "1")
    second.set("key", "2")
    assert (first.get("key"), second.get("key"), client.get("first/key")) == (b"1", b"2", b"1")


def test_two_clients_share_their_keys(served: Served) -> None:
    first, second = served.client(), served.client()
    first.set("key", "value")
    assert first.add("counter", 1) == 1
    assert second.add("counter", 1) == 2
    assert second.get("key") == b"value"


def test_large_values_arrive_whole(served: Served) -> None:
    large = "0123456789abcdef" * (1 << 18)
    first, second = served.client(), served.client()
    first.multi_set(["one", "two"], [large, large[1:]])
    assert second.get("one") == large.encode()
    assert second.multi_get(["two", "one"]) == [large[1:].encode(), large.encode()]


def test_a_client_that_does_not_read_delays_no_other(served: Served) -> None:
    """More than any socket buffer holds waits for it."""
    size = 32 << 20
    slow, quick = served.plain(), served.client()
    quick.set("large", "x" * size)
    assert quick.check(["large"])  # has a reply: the value has arrived
    slow.sendall(_request(Query.GET, b"/large"))
    quick.set("key", "value")
    assert quick.get("key") == b"value"
    with slow.makefile("rb") as replies:
        assert replies.read(8 + size) == _text(b"x" * size)


# ---- queues ----


def test_a_queue_is_first_in_first_out(served: Served) -> None:
    client = served.client()
    client.queue_push("queue", "first")
    client.queue_push("queue", "second")
    assert [client.queue_pop("queue"), client.queue_pop("queue")] == [b"first", b"second"]
    assert not client.check(["queue"])


def test_an_empty_queue_has_nothing_to_pop(served: Served) -> None:
    client = served.client()
    with pytest.raises(late_torch().distributed.QueueEmptyError):
        client.queue_pop("queue", False)


def test_the_length_of_a_queue_is_known(served: Served) -> None:
    """Without torch's client, which holds the interpreter's lock meanwhile."""
    client, plain = served.client(), served.plain()
    client.queue_push("queue", "value")
    assert client.check(["queue"])  # has a reply: the push has arrived
    assert _ask(plain, _request(Query.QUEUE_LEN, b"/queue")) == struct.pack("<q", 1)
    assert _ask(plain, _request(Query.QUEUE_LEN, b"/other")) == struct.pack("<q", 0)


def test_a_push_wakes_one_client_that_pops(served: Served) -> None:
    clients = [served.client(), served.client()]
    popped = [served.later(client.queue_pop, "queue") for client in clients]
    served.until(lambda: len(served.store.state.waits()) == 2)
    pusher = served.client()
    pusher.queue_push("queue", "first")
    served.until(lambda: any(each.done() for each in popped))
    assert served.store.state.waits() == [("/queue",)]
    pusher.queue_push("queue", "second")
    assert {each.result(PATIENCE_SECONDS) for each in popped} == {b"first", b"second"}


# ---- waiting ----


def test_a_wait_ends_when_the_key_is_set(served: Served) -> None:
    first, second = served.client(), served.client()
    waited = served.later(first.wait, ["key"])
    served.until_waiting("key")
    assert not waited.done()
    second.set("key", "value")
    waited.result(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.add("key", 1),
        lambda client: client.append("key", "1"),
        lambda client: client.compare_set("key", "", "1"),
        lambda client: client.multi_set(["other", "key"], ["2", "1"]),
    ],
    ids=["add", "append", "compare_set", "multi_set"],
)
def test_a_get_waits_until_the_key_exists(served: Served, change: Callable[[Any], object]) -> None:
    got = served.later(served.client().get, "key")
    served.until_waiting("key")
    change(served.client())
    assert got.result(PATIENCE_SECONDS) == b"1"


def test_a_wait_ends_when_the_last_of_its_keys_is_set(served: Served) -> None:
    first, second = served.client(), served.client()
    waited = served.later(first.wait, ["one", "two"])
    served.until_waiting("one", "two")
    second.set("two", "2")
    second.get("two")
    assert served.store.state.waits() == [("/one", "/two")]
    second.set("one", "1")
    waited.result(PATIENCE_SECONDS)


def test_a_wait_ends_when_the_store_sets_the_key_itself(served: Served) -> None:
    got = served.later(served.client().get, "key")
    served.until_waiting("key")
    served.do(lambda: served.store.put("/key", b"value"))
    assert got.result(PATIENCE_SECONDS) == b"value"


def test_after_a_wait_that_timed_out_the_connection_is_usable(served: Served) -> None:
    client = served.client()
    with pytest.raises(late_torch().distributed.DistStoreError):
        client.wait(["key"], SHORT)
    assert served.store.state.waits() == []
    client.set("key", "value")
    client.wait(["key"], SHORT)
    assert client.get("key") == b"value"


def test_a_client_that_disconnects_while_it_waits_is_forgotten(served: Served) -> None:
    other = served.client()
    with closing(_plain(served.store.port)) as waiting:
        waiting.sendall(_listed(Query.WAIT, b"/key", count=1))
        served.until_waiting("key")
    served.until(lambda: not served.store.state.waits())
    other.set("key", "value")
    assert other.get("key") == b"value"


# ---- bytes ----


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes([Query.VALIDATE]) + b"1234",
        bytes([Query.PING]) + NONCE,
        VALIDATION + b"\xc8",
        VALIDATION + bytes([Query.GET]) + b"\xff" * 8,
        VALIDATION + bytes([Query.WAIT]) + b"\xff" * 8,
    ],
    ids=["HTTP", "another validation", "no validation", "unknown request", "long key", "many keys"],
)
def test_a_client_with_another_protocol_is_disconnected_alone(served: Served, data: bytes) -> None:
    client = served.client()
    client.set("key", "value")
    stranger = served.plain(validated=False)
    stranger.sendall(data)
    assert _is_disconnected(stranger)
    assert client.get("key") == b"value"
    assert served.client().get("key") == b"value"


def test_keys_need_not_be_text(served: Served) -> None:
    served.absent.announce(1, "0", range(4))
    plain = served.plain()
    assert _ask(plain, _request(Query.SET, b"\xff", b"value") + _request(Query.GET, b"\xff")) == _text(b"value")


def test_requests_may_arrive_in_small_packets(served: Served) -> None:
    plain = served.plain(validated=False)
    data = VALIDATION + _listed(Query.MULTI_SET, b"/one", b"1", b"/two", b"2" * 50, count=2)
    data += _listed(Query.MULTI_GET, b"/two", b"/one", count=2)
    for i in range(len(data)):
        plain.sendall(data[i : i + 1])
    assert _ask(plain, b"") == _text(b"2" * 50) + _text(b"1")


def test_requests_may_arrive_together(served: Served) -> None:
    adding = _request(Query.ADD, b"/counter", number=struct.pack("<q", 1))
    assert _ask(served.plain(), 3 * adding) == struct.pack("<qqq", 1, 2, 3)


@given(st.lists(st.integers(0, 200)))
@settings(deadline=None)
def test_requests_are_the_same_however_their_bytes_are_divided(cuts: list[int]) -> None:
    data = VALIDATION + _request(Query.SET, b"/key", b"value") + _request(Query.COMPARE_SET, b"/key", b"a", b"b")
    data += _request(Query.ADD, b"/counter", number=struct.pack("<q", -5)) + bytes([Query.GET_NUM_KEYS])
    data += _listed(Query.MULTI_SET, b"/one", b"1", b"/two", b"", count=2) + _listed(Query.WAIT, b"/one", count=1)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = RequestReader()
    requests = []
    for first, last in itertools.pairwise(edges):
        requests += reader.feed(data[first:last])
    assert requests == [
        StoreRequest(Query.SET, ("/key",), (b"value",)),
        StoreRequest(Query.COMPARE_SET, ("/key",), (b"a", b"b")),
        StoreRequest(Query.ADD, ("/counter",), number=-5),
        StoreRequest(Query.GET_NUM_KEYS),
        StoreRequest(Query.MULTI_SET, ("/one", "/two"), (b"1", b"")),
        StoreRequest(Query.WAIT, ("/one",)),
    ]


@given(st.lists(st.binary(max_size=40), max_size=5))
@settings(deadline=None)
def test_any_bytes_are_requests_or_an_error(parts: list[bytes]) -> None:
    reader = RequestReader()
    reader.feed(VALIDATION)
    with suppress(StoreProtocolError):
        for part in parts:
            assert all(isinstance(request, StoreRequest) for request in reader.feed(part))


# ---- the same answers as torch's own server ----

CALLS: list[tuple[Any, ...]] = [
    ("set", "a", "1"),
    ("get", "a"),
    ("num_keys",),
    ("check", ["a"]),
    ("check", ["a", "b"]),
    ("check", []),
    ("wait", []),
    ("wait", ["a", "b"], SHORT),
    ("add", "c", 5),
    ("add", "c", -7),
    ("get", "c"),
    ("append", "a", "xyz"),
    ("append", "new", ""),
    ("multi_set", ["p", "q"], ["1", ""]),
    ("multi_get", ["q", "a", "new", "p"]),
    ("multi_get", []),
    ("compare_set", "x", "", "first"),
    ("compare_set", "x", "no", "second"),
    ("compare_set", "x", "first", "second"),
    ("compare_set", "x", "second", ""),
    ("compare_set", "none", "expected", "second"),
    ("check", ["none"]),
    ("num_keys",),
    ("delete_key", "x"),
    ("delete_key", "x"),
    ("queue_push", "queue", "1"),
    ("queue_push", "queue", "2"),
    ("check", ["queue"]),
    ("wait", ["queue", "a"], SHORT),
    ("num_keys",),
    ("delete_key", "queue"),
    ("queue_pop", "queue"),
    ("queue_pop", "queue"),
    ("queue_pop", "queue", False),
    ("check", ["queue"]),
    ("wait", ["queue"], SHORT),
    ("set", "", ""),
    ("get", ""),
    ("set", "é/ü", "ö"),
    ("get", "é/ü"),
    ("num_keys",),
]


def _outcome(client: Any, call: tuple[Any, ...]) -> object:
    name, *arguments = call
    try:
        return getattr(client, name)(*arguments)
    except RuntimeError as error:
        return type(error)


_TORCH_SERVERS = """
import sys
from torch.distributed import TCPStore
for _ in sys.stdin:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(server.port, flush=True)
"""


@pytest.fixture(scope="module")
def torch_server() -> Iterator[Callable[[], int]]:
    """Starts a server of torch, returns its port, and ends the one before. In a process: it leaves descriptors open."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TORCH_SERVERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def start() -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield start
    process.communicate()


def test_a_client_gets_the_answers_of_torchs_server(served: Served, torch_server: Callable[[], int]) -> None:
    ours, torchs = served.client(), _client(torch_server())
    for call in CALLS:
        assert (call, _outcome(ours, call)) == (call, _outcome(torchs, call))


KEYS = st.sampled_from([b"a", b"b", b"c"])
COMPARED = st.sampled_from([b"x", b"y"])  # nobody waits for them: torch's server then ends a wait without need
VALUES = st.sampled_from([b"", b"1", b"22"])
COUNTERS = st.sampled_from([b"m", b"n"])
QUEUES = st.sampled_from([b"s", b"t"])
REQUESTS = st.one_of(
    st.builds(lambda key, value: _request(Query.SET, key, value), KEYS, VALUES),
    st.builds(lambda key, value, to: _request(Query.COMPARE_SET, key, value, to), COMPARED, VALUES, VALUES),
    st.builds(
        lambda key, amount: _request(Query.ADD, key, number=struct.pack("<q", amount)), COUNTERS, st.integers(-9, 9)
    ),
    st.builds(lambda keys: _listed(Query.CHECK, *keys, count=len(keys)), st.lists(KEYS | COUNTERS | QUEUES)),
    st.builds(lambda key: _request(Query.DELETE_KEY, key), KEYS | COUNTERS | QUEUES),
    st.builds(lambda key, value: _request(Query.APPEND, key, value), KEYS, VALUES),
    st.builds(lambda one, two, value: _listed(Query.MULTI_SET, one, value, two, b"2", count=2), KEYS, KEYS, VALUES),
    st.builds(lambda key, value: _request(Query.QUEUE_PUSH, key, value), QUEUES, VALUES),
    st.builds(lambda key: _request(Query.QUEUE_POP, key), QUEUES),
    st.builds(lambda key: _request(Query.QUEUE_LEN, key), QUEUES),
    st.just(bytes([Query.GET_NUM_KEYS])),
    st.just(bytes([Query.CANCEL_WAIT])),
)


@given(requests=st.lists(REQUESTS, max_size=20), awaited=KEYS | COUNTERS | QUEUES)
@settings(deadline=None, max_examples=15)
def test_any_requests_get_the_replies_of_torchs_server(
    torch_server: Callable[[], int], requests: list[bytes], awaited: bytes
) -> None:
    """And another client, which waits for a key, goes on at the same moment."""
    served = Served(AbsentRanks(4, [1]))
    try:
        replies = []
        for port in (served.store.port, torch_server()):
            with closing(_plain(port)) as asking, closing(_plain(port)) as waiting:
                seen = [_ask(waiting, _listed(Query.WAIT, awaited, count=1))]
                for request in requests:
                    seen += [_ask(asking, request), _ask(waiting, b"")]
                replies.append(seen)
        assert replies[0] == replies[1]
    finally:
        served.close()


# ---- unique ids of absent ranks ----


def test_an_id_that_an_absent_rank_would_set_is_filled_in(served: Served) -> None:
    served.absent.announce(1, "0", range(4))
    identifier = served.client().get(ID_KEY)
    assert len(identifier) == ID_BYTES
    assert served.client().get(ID_KEY) == identifier


def test_ids_are_the_same_in_every_job_and_different_for_every_key(make_served: Callable[..., Served]) -> None:
    identifiers = []
    for _ in range(2):
        served = make_served()
        served.absent.announce(1, "0", range(4))
        client = served.client()
        identifiers.append([client.get(ID_KEY), client.get("default_pg/0//cuda//1")])
    assert identifiers[0] == identifiers[1]
    assert identifiers[0][0] != identifiers[0][1]


def test_an_id_is_filled_in_when_its_group_becomes_known(served: Served) -> None:
    got = served.later(served.client().get, ID_KEY)
    served.until_waiting(ID_KEY)
    assert not got.done()
    served.do(lambda: served.absent.announce(1, "0", range(4)))
    assert len(got.result(PATIENCE_SECONDS)) == ID_BYTES


def test_an_id_that_a_present_rank_sets_is_not_filled_in(make_served: Callable[..., Served]) -> None:
    served = make_served(present=(0, 1))
    served.absent.announce(1, "0", range(4))
    first, second = served.client(), served.client()
    with pytest.raises(late_torch().distributed.DistStoreError):
        second.wait([ID_KEY], SHORT)
    first.set(ID_KEY, "x" * ID_BYTES)
    assert second.get(ID_KEY) == b"x" * ID_BYTES


def test_an_id_is_not_filled_in_before_somebody_waits_for_it(served: Served) -> None:
    served.absent.announce(1, "0", range(4))
    client = served.client()
    assert not client.check([ID_KEY])
    client.wait([ID_KEY])
    assert client.check([ID_KEY])


@pytest.mark.parametrize("key", ["default_pg/0//7//cuda//0", "key", "default_pg/0//cuda//key", "0"])
def test_keys_that_are_no_ids_of_a_known_group_are_not_filled_in(served: Served, key: str) -> None:
    served.absent.announce(1, "0", range(4))
    with pytest.raises(late_torch().distributed.DistStoreError):
        served.client().wait([key], SHORT)


def test_the_first_of_the_groups_members_sets_the_id(make_served: Callable[..., Served]) -> None:
    served = make_served(present=(0, 1))
    served.absent.announce(1, "3", [2, 1])
    served.absent.announce(1, "4", [1, 2])
    client = late_torch().distributed.PrefixStore("default_pg/0/", served.client())
    assert len(late_torch().distributed.PrefixStore("3//cuda/", client).get("0")) == ID_BYTES
    with pytest.raises(late_torch().distributed.DistStoreError):
        late_torch().distributed.PrefixStore("4//cuda/", client).wait(["0"], SHORT)


def test_the_smaller_member_of_a_pair_sets_its_id(served: Served) -> None:
    served.absent.announce(1, "0", range(4))
    client = served.client()
    assert len(client.get("default_pg/0//cuda//0:1")) == ID_BYTES
    with pytest.raises(late_torch().distributed.DistStoreError):
        client.wait(["default_pg/0//cuda//1:2"], SHORT)


def test_of_several_ids_each_is_set_by_the_first_of_its_members(make_served: Callable[..., Served]) -> None:
    """Five members with two ids: members 0 and 3 set them."""
    keys = [f"default_pg/0//cuda//UniqueNCCLID:{root}" for root in range(2)]
    served = make_served(5, present=(3,))
    served.absent.announce(3, "0", range(5))
    client = served.client()
    with pytest.raises(late_torch().distributed.DistStoreError):
        client.wait(keys, SHORT)
    assert [client.check([key]) for key in keys] == [True, False]
    client.set(keys[1], "x" * ID_BYTES)
    assert client.multi_get(keys)[1] == b"x" * ID_BYTES


# ---- keys of absent ranks ----


def test_a_key_of_an_absent_rank_has_the_value_of_the_closest_present_one(make_served: Callable[..., Served]) -> None:
    served = make_served()
    client = served.client()
    client.set("k1", "of 1")
    reading = served.later(served.client().get, "k3")
    served.until(served.store.state.waits)
    served.act_for_absent_ranks()
    assert reading.result() == b"of 1"
    assert served.client().get("k2") == b"of 1"  # as k3, at once
    assert served.absent.filled == ["/k3 (as /k1)", "/k2 (as /k1)"]


def test_a_placeholder_is_set_for_the_key_that_fewest_wait_for(make_served: Callable[..., Served]) -> None:
    """The others may wait for a key that the unblocked rank will set."""
    served = make_served()
    followers = [served.later(served.client().get, "go") for _ in range(2)]
    leader = served.later(served.client().get, "start")
    served.until(lambda: len(served.store.state.waits()) == 3)
    served.act_for_absent_ranks()
    assert leader.result() == b"1"
    served.client().set("go", "mine")
    assert [each.result() for each in followers] == [b"mine", b"mine"]


def test_counters_count_absent_ranks_when_all_present_ones_have_added(make_served: Callable[..., Served]) -> None:
    served = make_served()
    client = served.client()
    for _ in served.absent.present:
        client.add("arrived", 1)
    waiting = served.later(served.client().get, "all")
    served.until(served.store.state.waits)
    served.act_for_absent_ranks()
    assert waiting.result() == b"1"
    assert client.add("arrived", 0) == served.absent.world_size


def test_contributions_to_gloo_are_never_filled_in(make_served: Callable[..., Served]) -> None:
    served = make_served()
    waiting = served.later(served.client().get, "default_pg/maya-gloo/0/3/1")
    served.until(served.store.state.waits)
    changed: list[bool] = []
    served.do(lambda: changed.append(served.store.fill_in()))
    served.until(lambda: changed == [False])
    served.client().set("default_pg/maya-gloo/0/3/1", "theirs")
    assert waiting.result() == b"theirs"


def test_keys_are_not_filled_in_while_a_rank_may_go_on(make_served: Callable[..., Served]) -> None:
    served = make_served()
    waiting = served.later(served.client().get, "k3")
    served.until(served.store.state.waits)
    asked: list[bool] = []

    def refuse() -> bool:
        asked.append(True)
        return False

    def poll() -> list[bool]:
        served.do(lambda: served.store.fill_in_when_idle(0, refuse))
        return asked

    served.until(poll)
    assert not waiting.done()
    served.client().set("k3", "late")
    assert waiting.result() == b"late"
