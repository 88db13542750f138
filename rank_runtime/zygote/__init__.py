"""The process that ranks are forked from: it has imported torch, so that a rank need not, and its memory is shared.

The zygote is started as the user's own command, `python -u train.py ...`, but with `entry` on PYTHONPATH. There lies a
`sitecustomize`, which Python imports just before it begins with the script. It imports modules, forks a process for
each rank, and returns in these only. So it is Python itself that runs the script in every rank, as it would have
without us: `sys.argv`, `sys.path`, `__main__`, tracebacks, exit codes and the end of the interpreter are its own.

Which modules are imported before the fork
------------------------------------------
1. With one rank, or with --no-preload, none.
2. Torch and its usual modules (`preload`), and what these import.
3. Modules that the script names in import statements outside functions, those named with --preload, and all that these
   import, unless one of the following was seen when a `probe` imported them in a process of its own. Then they, and
   whatever imports them, are imported by every rank:
   - it starts threads or processes, opens files or connections and keeps them, writes files or uses the network;
   - it reads a variable that differs between ranks (RANK, LOCAL_RANK, MASTER_PORT, TORCHELASTIC_...), or the whole
     environment, or sys.argv, the clock or random bytes, or keeps the process's number;
   - it changes the environment, the working directory, sys.path, signal handlers, standard streams, hooks, built-in
     functions, the root logger, torch's settings or functions;
   - it uses random numbers (of `random`, numpy or torch), or the GPU;
   - it registers operators with torch, which works once only;
   - it prints, or raises.
   The reasons are listed in summary.json. Modules of the standard library are trusted.

What a rank makes of it
-----------------------
Modules of 3 are not in `sys.modules` until the rank imports them; then they are taken from memory, with all they
import, if they would still be the same: found in the same place, with the same values of the environment variables that
they had read, the same working directory and type of new tensors. Otherwise Python imports them anew. What they
register for the end of the process (`atexit`) is registered then; what for forks, at once: a rank is one.

Variables that the script sets by plain assignments before it imports torch hold while torch is imported for it. If it
computes one that torch's libraries read (OMP_NUM_THREADS, ...), or if a file next to the script has the name of a
module that was imported already, ranks are started anew instead of being forked, and the user is told: they need more
memory.

What remains different from processes of their own: all ranks have the same seed for hashes of strings; warnings that
torch prints when it is imported appear once; destructors of libraries loaded before the fork do not run; among many
ranks, Python objects made before the fork are never deleted (`immortal`).

Modules
-------
    protocol      what the launcher tells the zygote, and what it hears
    process       the zygote's life: import, fork, wait, end
    rank          what a forked process does to become a rank
    clock         Python's clocks, which tell virtual time
    ending        how ranks end
    memory        what keeps their memory shared
    immortal      the same, of Python's objects
    preload       what is imported before the fork
    source        what the script says about that
    probe         which modules can be shared
    effects       what importing a module does
    shared        modules that wait to be imported
"""
