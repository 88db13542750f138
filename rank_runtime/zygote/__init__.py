"""The process that ranks are forked from. It has imported torch, so ranks need not, and share its memory.

The zygote is started as the user's own command, `python -u train.py ...`, but with the folder `entry` on PYTHONPATH.
Python imports the `sitecustomize` in that folder right before it runs the script. It imports modules, forks a
process for each rank, and returns in these only. So Python itself runs the script in every rank, as it would without
Maya: `sys.argv`, `sys.path`, `__main__`, tracebacks, exit codes and interpreter shutdown are its own.

Which modules are imported before the fork
------------------------------------------
1. With one rank, or with --no-preload, none.
2. Torch and its usual modules (`preload`), and everything that these import.
3. Modules that the script names in import statements outside functions, modules named with --preload, and everything
   that these import. A module is excluded, together with all modules that import it, if a probe that imports it in a
   process of its own (`import_probe`) sees one of the following; every rank then imports it itself:
   - it starts threads or processes, opens files or connections and keeps them, writes files or uses the network;
   - it reads a variable that differs between ranks (RANK, LOCAL_RANK, MASTER_PORT, TORCHELASTIC_...), or the whole
     environment, or sys.argv, the clock or random bytes, or keeps the process id, in another way than those below;
   - it changes the working directory, signal handlers, standard streams, hooks, built-in functions, the root logger,
     torch's settings or functions;
   - it uses random numbers (of `random`, numpy or torch), or initializes the GPU;
   - it prints, or raises an exception that no other module handles.
   summary.json lists the reasons. Modules of the standard library are trusted.

The following effects are recorded and undone in the zygote, and repeated in a rank when it imports the module
(`import_replay`): changes of the environment, sys.path, sys.meta_path, sys.path_hooks, warnings.filters; questions for
the number of GPUs; a process id in a variable of the module, of a class or of an object; assignments that keep the
time, random bytes or a variable of the rank, and those that depend on them (`repeated_statements`). Operators that a
module registers with torch remain registered; they are removed where a rank has to import the module anew.

What the probe finds out is kept in Maya's cache folder for the next run (`probe_cache`).

How a rank uses them
--------------------
Modules of 3 are not in `sys.modules` until the rank imports them. Then they are taken from memory, with everything that
they import, if importing them anew would give the same: they are found in the same place, the environment variables
that they read have the same values, their side effects can be repeated, and the working directory and the default dtype
are the same. Otherwise Python imports them anew. Functions that they registered with `atexit` are registered at that
time; functions that they registered for forks already apply to the fork of the rank.

Environment variables that the script sets by plain assignments before it imports torch are set while torch is imported
for it. If the script computes a variable that torch's libraries read (OMP_NUM_THREADS, ...), or if a file next to the
script has the name of a module that was already imported, ranks are separate processes instead of forks, and the user
is told so: they need more memory.

Differences from separate processes: all ranks have the same seed for string hashes; warnings that torch prints when it
is imported appear once; destructors of libraries loaded before the fork do not run; with many ranks, Python objects
made before the fork are never deleted (`immortal_objects`).

Modules
-------
    protocol          what the launcher and the zygote send each other
    process           the zygote's life: import, fork, wait, end
    rank              how a forked process becomes a rank
    separate_rank     the start of a rank that is a process of its own
    python_clock      Python's clock functions, which show virtual time
    process_groups    announcing process groups in jobs with absent ranks
    compile_sharing   equal graphs are compiled once: keys, waiting, the pool of compiling processes
    compile_lock      the locks that ranks wait for
    graph_relocation  moving a compiled graph to another GPU
    triton_sharing    equal Triton kernels are compiled once
    compile_trials    keeping compiling and autotuning out of the prediction
    drain             completing queued collectives at the end of a program
    rank_exit         how ranks exit
    prefork           one-time preparations before the fork
    shared_heap       keeps the heap's pages shared
    immortal_objects  keeps the pages of Python objects shared
    preload           which modules are imported before the fork
    script_source     the imports and environment variables in the script's source
    import_probe      finds out which modules can be shared
    import_effects    detects the side effects of importing a module
    import_replay     records side effects in the zygote, and repeats them in ranks
    repeated_statements  finds assignments that ranks execute again
    observed_loader   reports when a module begins and ends to execute
    probe_cache       keeps what the probe has found out
    shared_modules    modules that are in memory but not imported yet
"""
