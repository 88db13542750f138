"""Messages between the coordinator and node agents: what is packed is read again, and nothing else."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from coordinator.hangs.deadlock import Condition
from coordinator.hangs.processes import Pulse, Sample
from coordinator.hangs.question_messages import (
    VERSION,
    InspectedRank,
    NodeAnswer,
    Question,
    QuestionError,
    QuestionKind,
    pack_answer,
    pack_question,
    unpack_answer,
    unpack_question,
)

QUESTION = Question(7, QuestionKind.INSPECT, (3, 17), frozenset({17}), 29500, ("/src/train.py",))
PULSE = Pulse(12.5, 10**12, 46, ready=False)
CONTENTS: dict[QuestionKind, Any] = {
    QuestionKind.PULSES: PULSE,
    QuestionKind.SAMPLES: Sample(PULSE, {4711: 3}, {4712: 5}, ready=True, sleeps=False),
    QuestionKind.INSPECT: InspectedRank(b"python\n", Condition.OTHER_RANKS),
    QuestionKind.STACKS: b"python\n",
    QuestionKind.IN_STORE: True,
    QuestionKind.LOCKS: "/data/cache.lock, held by rank 0",
}


def test_a_question_is_read_as_it_was_asked() -> None:
    assert unpack_question(pack_question(QUESTION)) == QUESTION
    assert unpack_question(pack_question(replace(QUESTION, store_port=None))).store_port is None


@pytest.mark.parametrize("kind", CONTENTS)
def test_an_answer_is_read_as_it_was_given(kind: QuestionKind) -> None:
    answer = NodeAnswer(7, {3: CONTENTS[kind]}, {"/src/train.py": "pass\n"})
    assert unpack_answer(pack_answer(answer), {7: kind}) == answer


def test_a_process_that_has_ended_differs_from_one_that_is_unknown() -> None:
    answer = unpack_answer(pack_answer(NodeAnswer(7, {3: None})), {7: QuestionKind.PULSES})
    assert answer.ranks == {3: None}


def test_the_content_of_a_late_answer_is_not_read() -> None:
    answer = NodeAnswer(6, {3: b"not a pulse"})
    assert unpack_answer(pack_answer(answer), {7: QuestionKind.PULSES}) == NodeAnswer(6)


def test_both_versions_are_named() -> None:
    other = msgpack.packb([VERSION + 1, "whatever follows"])
    for read in (unpack_question, lambda message: unpack_answer(message, {})):
        with pytest.raises(QuestionError, match=f"version {VERSION + 1}, .* reads {VERSION}"):
            read(other)


def test_damaged_messages_are_refused() -> None:
    """Every change of a byte, and every cut, is read as another message or refused with one kind of error."""
    asked = {7: QuestionKind.SAMPLES}
    question = pack_question(QUESTION)
    answer = pack_answer(NodeAnswer(7, {3: CONTENTS[QuestionKind.SAMPLES]}, {"/src/train.py": "pass\n"}))
    dice = random.Random(1)
    for message in (question, answer):
        damaged = [message[:size] for size in range(len(message))]
        for place in range(len(message)):
            damaged += [message[:place] + bytes([dice.randrange(256)]) + message[place + 1 :] for _ in range(20)]
        for each in damaged:
            with suppress(QuestionError):
                unpack_question(each)
            with suppress(QuestionError):
                unpack_answer(each, asked)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param([VERSION, 7, "", {3: [PULSE.moment, 1, 2]}, {}], id="too few fields of a pulse"),
        pytest.param([VERSION, 7, "", {3: [1.0, 1, 2, 0]}, {}], id="a number for a truth value"),
        pytest.param([VERSION, 7, "", {"3": None}, {}], id="a rank as text"),
        pytest.param([VERSION, 7, "", {-3: None}, {}], id="a negative rank"),
        pytest.param([VERSION, 7, "", {}, {"file": b"bytes"}], id="a source as bytes"),
        pytest.param([VERSION, 7, "", {}], id="too few fields"),
        pytest.param({}, id="no list"),
    ],
)
def test_wrong_fields_are_refused(content: object) -> None:
    with pytest.raises(QuestionError):
        unpack_answer(msgpack.packb(content), {7: QuestionKind.PULSES})
