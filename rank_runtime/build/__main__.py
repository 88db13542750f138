"""`python -m rank_runtime.build`: build the fake libraries for this interpreter's torch and print their folder."""

from __future__ import annotations

import argparse
import sys

from rank_runtime.build import BuildError, ensure_built
from rank_runtime.build.plain_torch import add_stubs, import_problem


def main() -> int:
    """Exit status 0: built; 1: not, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m rank_runtime.build", description=__doc__)
    parser.add_argument("--force", action="store_true", help="build again even if a build exists")
    parser.add_argument("--verbose", action="store_true", help="report each step and list the built libraries")
    parser.add_argument(
        "--plain-torch", action="store_true", help="also let plain Python import torch, without NVIDIA's packages"
    )
    arguments = parser.parse_args()

    def progress(text: str) -> None:
        if arguments.verbose:
            print(f"maya: {text}", file=sys.stderr)

    try:
        build = ensure_built(progress, force=arguments.force)
        if arguments.plain_torch and add_stubs(progress) and (problem := import_problem()):
            raise BuildError(f"torch cannot be imported, although its libraries are complete: {problem}")
    except BuildError as error:
        print(f"maya: {error}", file=sys.stderr)
        return 1
    if arguments.verbose:
        for library in build.libraries:
            print(f"maya:   {library.name}", file=sys.stderr)
        print(f"maya:   observer: {build.observer.name if build.observer else build.observer_problem}", file=sys.stderr)
    print(build.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
