"""Finds out that ranks can never go on, and says why.

watcher.py      when to look, and what to do about what is found
processes.py    what the threads of ranks do, as the kernel tells it
threads.py      what the threads of a rank that stands still wait for, and so what can free it
questions.py    asks ranks what they do; they answer without their program's help (shim/device/stacks.c)
stacks.py       Python stacks, and what kind of wait they show
recorder.py     torch's flight recorder: names of process groups, and the lines that collectives were called from
deadlock.py     who can never go on, from who waits for whom
report.py       hang.json: ranks grouped by what they do, where they diverged
hints.py        well-known mistakes
text.py         the same for people
"""
