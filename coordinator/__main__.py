"""`python -m coordinator`: a coordinator without a launcher, for tests and experiments.

It reports on stdout and reads control lines from stdin, as process.py describes; it ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import sys

from coordinator.process import Settings, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="coordinator", description="Match the collectives of the ranks of one run.")
    parser.add_argument("--world-size", type=int, required=True, metavar="N")
    parser.add_argument("--secret", required=True, help="secret that ranks must present")
    parser.add_argument("--endpoint", default="", help="ZeroMQ endpoint (default: an abstract local socket)")
    parser.add_argument(
        "--store-port", type=int, default=0, metavar="PORT", help="port of the TCPStore (default: any free port)"
    )
    parser.add_argument("--no-store", action="store_true", help="host no TCPStore, and do not load torch")
    parser.add_argument(
        "--run-folder", default="", metavar="DIR", help="folder with the run.json that configures the time model"
    )
    options = parser.parse_args()
    settings = Settings(
        options.world_size,
        options.secret,
        options.endpoint,
        None if options.no_store else options.store_port,
        options.run_folder,
    )
    return run(settings, report_fd=1, control_fd=0)


sys.exit(main())
