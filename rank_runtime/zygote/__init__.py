"""The process that ranks are forked from: it has imported torch, so that a rank need not, and its memory is shared.

The zygote is started as the user's own command, `python -u train.py ...`, but with `entry` on PYTHONPATH. There lies a
`sitecustomize`, which Python imports just before it begins with the script. It imports torch and other modules, forks a
process per rank, and returns in these only. So it is Python itself that runs the script in every rank, as it would have
without us: `sys.argv`, `sys.path`, `__main__`, tracebacks, exit codes and the end of the interpreter are its own.

    protocol      what the launcher tells the zygote, and what it hears
    process       the zygote's life: import, fork, wait, end
    rank          what a forked process does to become a rank
    preload       which modules are imported before the fork
    ...
"""
