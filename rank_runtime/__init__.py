"""Everything that runs inside a rank, underneath the user's program: the fake CUDA libraries and the op observer.

`shim/` and `observer/` hold their C and C++ sources; `build` compiles them for the installed torch; `environment` makes
the environment in which a process loads them; `zygote` forks the ranks; `absent_members` takes the place of ranks that
are not processes, in Gloo groups, object collectives and checkpoints; `module_hooks` calls functions after imports.
`messages`, `trace_format`, `host_costs`, `device_properties`, `variables` and `stacks_socket` declare what C and Python
must agree on; the build turns them into C headers. Nothing here imports other packages of ours.
"""
