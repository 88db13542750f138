"""What makes a Python process a zygote: found on PYTHONPATH, it runs right before Python begins with the script.

In: MAYA_ZYGOTE, the file descriptors that the launcher talks through. Out: nothing in the zygote, which ends in here;
in each rank forked from it a return to Python, which runs the script. No trace of this module or its folder is left.
In a rank that is started anew, MAYA_ZYGOTE says so: there is nothing to fork, and Python runs the script at once.
"""

import os
import sys


def _become_zygote() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib is not imported yet)
    root = os.path.dirname(os.path.dirname(os.path.dirname(folder)))  # noqa: PTH120
    for known in (folder, os.path.dirname(__file__)):  # noqa: PTH120
        if known in sys.path:
            sys.path.remove(known)
        sys.path_importer_cache.pop(known, None)
    descriptors = os.environ.pop("MAYA_ZYGOTE", None)
    if descriptors is None:  # a child of a process that should have cleaned its environment, but has not
        return
    python_has = frozenset(sys.modules) - {"sitecustomize"}
    is_alone = descriptors == "alone"
    sys.path.insert(0, root)
    if is_alone:
        from rank_runtime.zygote.alone import begin_alone
    else:
        os.environ.pop("LD_BIND_NOW", None)  # was for this process alone; a user's own comes back in the ranks
        from rank_runtime.zygote.process import main
    sys.path.remove(root)
    for name in set(sys.modules) - python_has:
        if name.partition(".")[0] == "rank_runtime":
            del sys.modules[name]
    if is_alone:
        begin_alone(folder)
    else:
        main(root, descriptors, python_has)


_become_zygote()

# The user may have a module of this name, too, which Python would have found if this one had not been in the way. If
# there is none, the error says so to `site`, which imported this module and is not surprised.
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
