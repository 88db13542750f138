"""Entry point: python __main__.py LIBRARY ARGUMENTS..., from the script that build/commands.py writes."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # without site-packages, nothing of ours is found
    from rank_runtime.nvidia_smi.tool import run

    return run(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
