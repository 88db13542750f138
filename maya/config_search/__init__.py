"""Searches the configurations of a script: which parallelism, micro-batch, recomputation or cluster is best.

A *configuration* gives every parameter of the space a value. A *trial* is one configuration with its figures: from a
run of maya-torchrun, from a replay of another trial's run on other hardware, or inferred from other trials.
"""
