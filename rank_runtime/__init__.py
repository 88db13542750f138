"""What is loaded into a rank, underneath somebody else's program: the fake CUDA libraries and the op observer.

`shim/` and `observer/` hold their C and C++ sources, `build` compiles them for the installed torch, and `environment`
says how a process is started so that it loads them. Nothing here imports other packages of ours.
"""
