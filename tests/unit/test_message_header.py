"""The C header of the messages is generated from their Python declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rank_runtime import messages
from rank_runtime.build.errors import BuildError
from rank_runtime.build.message_header import message_header


def test_the_header_declares_every_message() -> None:
    header = message_header(Path(messages.__file__).read_text(encoding="utf-8"))
    assert f"MAYA_MESSAGES_VERSION = {messages.VERSION} " in header
    for message in (*messages.FROM_RANK, *messages.FROM_COORDINATOR):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()
        assert f"MAYA_KIND_{name.upper()} = {message.KIND} " in header
        assert f"maya_pack_{name}(" in header
        assert f"maya_unpack_{name}(" in header
    for call in messages.Call:
        assert f"MAYA_CALL_{call.name} = {call.value}" in header


def test_a_field_without_a_c_type_is_refused() -> None:
    with pytest.raises(BuildError, match=r"Odd\.ratio is declared as float"):
        message_header("VERSION = 1\nclass Odd:\n    KIND: ClassVar[int] = 9\n    ratio: float\n")
