"""Estimate the duration of kernels: a time in ns, its origin, and its uncertainty.

kernel.py     `Kernel`: what a kernel or library call computes and moves, on no particular device; `KernelClass`;
              `Estimate`
estimator.py  `Estimator.estimate`: a device and kernels -> estimates. Every duration is looked up here
models/       one model per kernel class (GEMM, attention, convolution, memory-bound, ...), and device bounds
features/     records of a trace -> kernels
ops.py        options of `maya estimate` -> kernels
batch.py      kernels of one class as columns
pack.py       the learned models of one device, in a file of packs/
breakdown.py  the time of a trace by kernel class
training/     makes packs from public or the user's own measurements
"""
