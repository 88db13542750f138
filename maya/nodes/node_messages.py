"""The messages between the launcher and the node agents, declared here once for both.

A message is msgpack of `[VERSION, kind, fields]`, one ZeroMQ frame. Launcher to agent:

    prepare      start a zygote: its command, its environment, its `Preparation`; what the launcher's standard output
                 and error are (`Console`)
    start        fork the ranks: the common environment, one `RankStart` each
    signal       send a signal to the process groups of all ranks
    go_on        continue ranks that were stopped for a debugger
    attach       let a stopped rank run, and start Python's debugger in it
    input        what the user types to the debugger; empty: the end of input
    detach       end the debugger, and stop the rank again
    kill         kill a zygote that has no ranks yet
    finish       end what remains of the ranks, and the zygote
    received     bytes of files, console and debugger output that the launcher has written
    close_stream  nobody reads the launcher's standard output (or error) any longer
    beat         the launcher lives
    end          the job is over: remove the node's folder, and end

Agent to launcher:

    hello        the facts of the node (`NodeFacts`); it is ready to prepare
    refused      why this node cannot run ranks
    note         a line for the user
    report       a report of the zygote (rank_runtime/zygote/protocol.py)
    console      output of ranks that does not go to files
    file         a part of a file (file_parts.py), and its bytes as `received` counts them
    debugger     output of the debugger; empty: it has ended, or could not start
    ended        the zygote and its ranks have ended, and all of their output has been sent
    beat         the agent lives
"""

from __future__ import annotations

from typing import Any

import msgpack

VERSION = 1

_KINDS: dict[str, dict[str, type]] = {
    "prepare": {"command": list, "environment": dict, "preparation": dict, "console": dict},
    "start": {"environment": dict, "ranks": list, "endpoint": str, "questions": str},
    "signal": {"number": int},
    "go_on": {},
    "attach": {"rank": int},
    "input": {"content": bytes},
    "detach": {"rank": int},
    "kill": {},
    "finish": {},
    "received": {"size": int},
    "close_stream": {"stream": str},
    "end": {},
    "hello": {"facts": dict},
    "refused": {"text": str},
    "note": {"text": str},
    "report": {"line": dict},
    "console": {"stream": str, "content": bytes},
    "file": {"part": list, "size": int},
    "debugger": {"rank": int, "content": bytes},
    "ended": {"exit_code": int},
    "beat": {},
}


class NodeMessageError(ValueError):
    """A message that is not understood; the text says why."""


def pack_message(kind: str, **fields: Any) -> bytes:
    assert fields.keys() == _KINDS[kind].keys(), f"{kind}: {sorted(fields)}"
    packed: bytes = msgpack.packb([VERSION, kind, fields])
    return packed


def unpack_message(content: bytes) -> tuple[str, dict[str, Any]]:
    """The kind and the fields of a message. Raises NodeMessageError."""
    try:
        message = msgpack.unpackb(content, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise NodeMessageError(f"it cannot be read: {error}") from None
    if not isinstance(message, list) or len(message) != 3:
        raise NodeMessageError("it is not a message of a node agent")
    version, kind, fields = message
    if version != VERSION:
        raise NodeMessageError(
            f"it has version {version} of the messages, expected {VERSION}: install the same Maya on all nodes"
        )
    expected = _KINDS.get(kind) if isinstance(kind, str) else None
    if expected is None or not isinstance(fields, dict) or fields.keys() != expected.keys():
        raise NodeMessageError(f"{kind!r} does not have the fields that it should have")
    for name, of_type in expected.items():
        if not isinstance(fields[name], of_type):
            raise NodeMessageError(f"{kind}: {name} is not a {of_type}")
    return kind, fields
