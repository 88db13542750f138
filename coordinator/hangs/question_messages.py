"""The messages between the coordinator and the node agents about the processes of ranks.

In: questions and answers. Out: msgpack, of plain types alone. Both readers check every field, and raise
`QuestionError` for a message of another version or form. A changed message needs a higher VERSION; the first field of
a message is the version, in all versions.

    question   [version, number, kind, ranks, blocked, store port or nil, files]
    answer     [version, number, problem, {rank: content}, {file: text}]

`blocked` are those of the ranks that have posted calls that are not complete. An answer has the number of its question.
It leaves out ranks of which nothing is known. A problem is a text for the user; such an answer has no content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgpack

from coordinator.hangs.deadlock import Condition
from coordinator.hangs.processes import Pulse, Sample

VERSION = 1
MOST_BYTES = 1 << 28  # of a message

_LARGEST = 1 << 31


class QuestionError(ValueError):
    """A message is not what this version of Maya reads."""


class QuestionKind(Enum):
    """What the coordinator asks about the ranks of a node, and the content of the answer for a rank."""

    PULSES = "pulses"  # a Pulse, or None
    SAMPLES = "samples"  # a Sample, or None
    INSPECT = "inspect"  # an InspectedRank
    STACKS = "stacks"  # bytes, as the rank answers; the same for values and recorders
    VALUES = "values"
    RECORDERS = "recorders"
    IN_STORE = "in store"  # True, if the rank waits in the store
    LOCKS = "locks"  # a text
    SOURCES = "sources"  # no ranks, but texts of files
    STOP = "stop"  # True


@dataclass(frozen=True)
class InspectedRank:
    """The answer of a blocked rank with its stacks, and which event can unblock it."""

    answer: bytes
    condition: Condition


@dataclass(frozen=True)
class Question:
    """A question to one node."""

    number: int
    kind: QuestionKind
    ranks: tuple[int, ...] = ()
    blocked: frozenset[int] = frozenset()
    store_port: int | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeAnswer:
    """The answer of a node."""

    number: int
    ranks: Mapping[int, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def pack_question(question: Question) -> bytes:
    blocked, files = sorted(question.blocked), list(question.files)
    return _pack(
        [VERSION, question.number, question.kind.value, list(question.ranks), blocked, question.store_port, files]
    )


def unpack_question(message: bytes) -> Question:
    number, kind, ranks, blocked, store_port, files = _fields(message, 6)
    try:
        asked = QuestionKind(kind)
    except ValueError:
        raise QuestionError(f"{kind!r:.40} is no kind of question") from None
    return Question(
        _natural(number),
        asked,
        tuple(map(_natural, _list(ranks))),
        frozenset(map(_natural, _list(blocked))),
        None if store_port is None else _natural(store_port),
        tuple(map(_text, _list(files))),
    )


def pack_answer(answer: NodeAnswer) -> bytes:
    ranks = {rank: _plain(content) for rank, content in answer.ranks.items()}
    return _pack([VERSION, answer.number, answer.problem, ranks, dict(answer.sources)])


def unpack_answer(message: bytes, asked: Mapping[int, QuestionKind]) -> NodeAnswer:
    """`asked`: the kinds of questions by number. The content of an answer to any other one is not read."""
    number, problem, ranks, sources = _fields(message, 4)
    kind = asked.get(_natural(number))
    if kind is None:
        return NodeAnswer(number, problem=_text(problem))
    read = _READERS[kind]
    return NodeAnswer(
        number,
        {_natural(rank): read(content) for rank, content in _dictionary(ranks).items()},
        {_text(file): _text(text) for file, text in _dictionary(sources).items()},
        _text(problem),
    )


def _pack(message: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(message)
    return packed


def _fields(message: bytes, count: int) -> list[Any]:
    """The fields after the version."""
    try:
        content = msgpack.unpackb(message, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise QuestionError(f"a message is no msgpack: {error}") from None
    version = content[0] if isinstance(content, list) and content else None
    if version != VERSION:
        raise QuestionError(f"a message has version {version!r:.40}, this installation of Maya reads {VERSION}")
    if len(content) != count + 1:
        raise QuestionError(f"a message has {len(content)} fields, expected {count + 1}")
    fields: list[Any] = content[1:]
    return fields


def _plain(content: Any) -> Any:
    match content:
        case Pulse():
            return [content.moment, content.spent, content.turns, content.ready]
        case Sample():
            return [_plain(content.pulse), content.threads, content.children, content.ready, content.sleeps]
        case InspectedRank():
            return [content.answer, content.condition.value]
    return content


# ---- readers of fields ----


def _of_type(content: Any, kind: type) -> Any:
    if type(content) is not kind:
        raise QuestionError(f"a field is {content!r:.40}, expected {kind.__name__}")
    return content


def _natural(content: Any) -> int:
    number: int = _of_type(content, int)
    if not 0 <= number < _LARGEST:
        raise QuestionError(f"a field is {number}, expected a number from 0 to {_LARGEST - 1}")
    return number


def _integer(content: Any) -> int:
    number: int = _of_type(content, int)
    return number


def _text(content: Any) -> str:
    text: str = _of_type(content, str)
    return text


def _bytes(content: Any) -> bytes:
    found: bytes = _of_type(content, bytes)
    return found


def _flag(content: Any) -> bool:
    flag: bool = _of_type(content, bool)
    return flag


def _list(content: Any, count: int | None = None) -> list[Any]:
    found: list[Any] = _of_type(content, list)
    if count is not None and len(found) != count:
        raise QuestionError(f"a list has {len(found)} fields, expected {count}")
    return found


def _dictionary(content: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = _of_type(content, dict)
    return found


def _pulse(content: Any) -> Pulse | None:
    if content is None:
        return None
    moment, spent, turns, ready = _list(content, 4)
    return Pulse(_of_type(moment, float), _integer(spent), _integer(turns), _flag(ready))


def _sample(content: Any) -> Sample | None:
    if content is None:
        return None
    pulse, threads, children, ready, sleeps = _list(content, 5)
    taken = _pulse(pulse)
    if taken is None:
        raise QuestionError("a sample has no pulse")
    return Sample(taken, _ticks(threads), _ticks(children), _flag(ready), _flag(sleeps))


def _ticks(content: Any) -> dict[int, int]:
    return {_natural(process): _integer(ticks) for process, ticks in _dictionary(content).items()}


def _inspected(content: Any) -> InspectedRank:
    answer, condition = _list(content, 2)
    try:
        return InspectedRank(_bytes(answer), Condition(condition))
    except ValueError:
        raise QuestionError(f"{condition!r:.40} is no condition") from None


_READERS: dict[QuestionKind, Callable[[Any], Any]] = {
    QuestionKind.PULSES: _pulse,
    QuestionKind.SAMPLES: _sample,
    QuestionKind.INSPECT: _inspected,
    QuestionKind.STACKS: _bytes,
    QuestionKind.VALUES: _bytes,
    QuestionKind.RECORDERS: _bytes,
    QuestionKind.IN_STORE: _flag,
    QuestionKind.LOCKS: _text,
    QuestionKind.SOURCES: _text,
    QuestionKind.STOP: _flag,
}
