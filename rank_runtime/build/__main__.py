"""`python -m rank_runtime.build`: build the fake libraries for this interpreter's torch and print their folder."""

from __future__ import annotations

import argparse
import sys

from rank_runtime.build import BuildError, ensure_built


def main() -> int:
    """Exit status 0: built; 1: not, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m rank_runtime.build", description=__doc__)
    parser.add_argument("--force", action="store_true", help="build again even if the build is there")
    parser.add_argument("--verbose", action="store_true", help="say what is done, and list what was built")
    arguments = parser.parse_args()

    def progress(text: str) -> None:
        if arguments.verbose:
            print(f"maya: {text}", file=sys.stderr)

    try:
        build = ensure_built(progress, force=arguments.force)
    except BuildError as problem:
        print(f"maya: {problem}", file=sys.stderr)
        return 1
    if arguments.verbose:
        for library in build.libraries:
            print(f"maya:   {library.name}", file=sys.stderr)
        print(f"maya:   observer: {build.observer.name if build.observer else build.observer_problem}", file=sys.stderr)
    print(build.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
