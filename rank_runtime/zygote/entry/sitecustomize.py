"""Makes a Python process a zygote: Python finds this module on PYTHONPATH and imports it right before the script.

In: MAYA_ZYGOTE, the file descriptors of the launcher's pipes. Out: in the zygote nothing, because it ends in here; in
each rank forked from it a return to Python, which runs the script. This module and its folder leave no trace in
`sys.modules` or `sys.path`. In a rank that is a process of its own, MAYA_ZYGOTE is "separate", and Python runs the
script without a fork.

Below `maya exec` there is no MAYA_ZYGOTE but MAYA_LATE_RANKS: every Python process may become a rank. The folder then
stays on PYTHONPATH, for child processes.
"""

import os
import sys


def _become_zygote() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib is not imported yet)
    root = os.path.dirname(os.path.dirname(os.path.dirname(folder)))  # noqa: PTH120
    for known in (folder, os.path.dirname(__file__)):  # noqa: PTH120
        while known in sys.path:
            sys.path.remove(known)
        sys.path_importer_cache.pop(known, None)
    descriptors = os.environ.pop("MAYA_ZYGOTE", None)
    is_late = descriptors is None and os.environ.get("MAYA_LATE_RANKS") == "1"
    if descriptors is None and not is_late:  # a child process that inherited PYTHONPATH but not MAYA_ZYGOTE
        return
    python_has = frozenset(sys.modules) - {"sitecustomize"}
    is_separate = descriptors == "separate"
    sys.path.insert(0, root)
    if is_late:
        from rank_runtime.zygote.late_rank import prepare
    elif is_separate:
        from rank_runtime.zygote.separate_rank import begin_separate_rank
    else:
        os.environ.pop("LD_BIND_NOW", None)  # set for the zygote only; ranks get the user's own value back
        from rank_runtime.zygote.process import main
    sys.path.remove(root)
    for name in set(sys.modules) - python_has:
        if name.partition(".")[0] == "rank_runtime":
            del sys.modules[name]
    if is_late:
        prepare(root)
    elif is_separate:
        begin_separate_rank(folder)
    elif descriptors is not None:
        main(root, descriptors, python_has)


_become_zygote()

# Import the user's own module of this name, which this one has hidden. If there is none, `site`, which imported this
# module, handles the ImportError.
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
