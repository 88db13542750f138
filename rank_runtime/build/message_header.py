"""Generates a C header from the messages between ranks and the coordinator, so that they are declared once.

In: the text of `rank_runtime/messages.py`. Out: the text of `messages.h`: its version and enumerations, and for every
message a struct, a function that writes it and one that reads it, based on shim/device/msgpack.h.

    class Post: KIND = 5, token: int, ...   ->   MAYA_KIND_POST, maya_post, maya_pack_post(), maya_unpack_post()
    class Call(IntEnum): ALL_REDUCE = 0     ->   MAYA_CALL_ALL_REDUCE
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rank_runtime.build.errors import BuildError

# Annotation of a field -> its C type, and the suffix of the functions that read and write it.
FIELD_TYPES = {
    "int": ("int64_t", "number"),
    "bool": ("bool", "bool"),
    "str": ("maya_bytes", "text"),
    "bytes": ("maya_bytes", "bytes"),
    "Sequence[int]": ("maya_numbers", "numbers"),
}


@dataclass(frozen=True)
class Message:
    """One declared message."""

    name: str  # as C writes it: request_failed
    kind: int
    fields: tuple[tuple[str, str], ...]  # name, annotation


def message_header(text: str) -> str:
    """The header for the declarations in `text`."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    lines = [
        "/* Generated from rank_runtime/messages.py by rank_runtime/build/message_header.py. */",
        "#pragma once",
        "",
        '#include "device/msgpack.h"',
        "",
        f"enum {{ MAYA_MESSAGES_VERSION = {_version(text)} }};",
    ]
    for node in classes:
        members = dict(_members(node))
        if any(isinstance(base, ast.Name) and base.id == "IntEnum" for base in node.bases):
            prefix = f"MAYA_{_c_name(node.name).upper()}"
            lines.append(f"enum {{ {', '.join(f'{prefix}_{name} = {value}' for name, value in members.items())} }};")
    for message in map(_message, classes):
        if message is not None:
            lines += ["", *_message_lines(message)]
    return "\n".join([*lines, ""])


def _c_name(name: str) -> str:
    """RequestFailed -> request_failed."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _version(text: str) -> int:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERSION":
            return int(ast.literal_eval(node.value))
    raise BuildError("rank_runtime/messages.py declares no VERSION")


def _members(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            yield ast.unparse(statement.targets[0]), int(ast.literal_eval(statement.value))


def _message(node: ast.ClassDef) -> Message | None:
    """The message that the class declares; None: it declares none."""
    kind: int | None = None
    fields = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign):
            continue
        name, annotation = ast.unparse(statement.target), ast.unparse(statement.annotation)
        if name == "KIND" and statement.value is not None:
            kind = int(ast.literal_eval(statement.value))
        elif annotation in FIELD_TYPES:
            fields.append((name, annotation))
        else:
            raise BuildError(
                f"rank_runtime/messages.py: {node.name}.{name} is declared as {annotation}; messages have fields of "
                f"the types {', '.join(FIELD_TYPES)}"
            )
    return None if kind is None else Message(_c_name(node.name), kind, tuple(fields))


def _message_lines(message: Message) -> list[str]:
    name, count = message.name, len(message.fields)
    members = [f"    {FIELD_TYPES[annotation][0]} {field};" for field, annotation in message.fields]
    writes = [
        f"    maya_pack_{FIELD_TYPES[annotation][1]}(to, message->{field});" for field, annotation in message.fields
    ]
    reads = [
        f"maya_unpack_{FIELD_TYPES[annotation][1]}(from, &message->{field})" for field, annotation in message.fields
    ]
    return [
        f"enum {{ MAYA_KIND_{name.upper()} = {message.kind} }};",
        "typedef struct {",
        *(members or ["    char nothing;"]),
        f"}} maya_{name};",
        f"static inline void maya_pack_{name}(maya_packer *to, const maya_{name} *message) {{",
        "    (void)message;",
        f"    maya_pack_array(to, {count + 1});",
        f"    maya_pack_number(to, MAYA_KIND_{name.upper()});",
        *writes,
        "}",
        f"/* The fields; the array's count, {count + 1}, and the kind have been read. */",
        f"static inline bool maya_unpack_{name}(maya_unpacker *from, size_t count, maya_{name} *message) {{",
        "    (void)from, (void)message;",
        f"    return {' && '.join([f'count == {count + 1}', *reads])};",
        "}",
    ]
