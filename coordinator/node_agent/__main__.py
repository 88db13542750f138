"""`python -m coordinator.node_agent`: the agent of this machine.

In: one line of JSON on standard input: `name`, `launcher` (the address of its link), `keys`, `silence_seconds`.
Standard input stays open for as long as whoever started the agent wants it to run. Out: its exit code; errors on
standard error.
"""

from __future__ import annotations

import json
import os
import sys

from coordinator.node_agent.agent import AgentSettings, NodeAgent
from maya.nodes.run_keys import RunKeys


def main() -> int:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1)  # not more: the end of standard input has to be seen later
        if not chunk:
            print("node agent: no settings on standard input", file=sys.stderr)
            return 2
        line += chunk
    values = json.loads(line)
    keys = RunKeys.from_json(values["keys"])
    return NodeAgent(AgentSettings(values["name"], values["launcher"], keys, values["silence_seconds"])).run()


if __name__ == "__main__":
    sys.exit(main())
