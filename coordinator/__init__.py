"""The coordinator: one process beside the ranks of a job that creates their communicators and matches their
collectives.

process.py           the process: settings in, reports out, serves until it is told to stop
server.py            the ZeroMQ socket; which connection belongs to which rank
store.py             the TCPStore, hosted for the ranks' process groups
state.py             the state machine: messages of ranks in, answers out, no I/O
answers.py           the form of an answer
membership.py        communicator init: joins, splits and shrinks
communicators.py     the calls posted on one communicator, matched by sequence number
collectives.py       one collective: contributions in, results out
point_to_point.py    send/recv between two members
arithmetic.py        reductions over bytes, for every data type
intervals.py         which bytes of a buffer are known
time_model.py        how long collectives, send/recv and kernels take
descriptions.py      calls as text
hangs/               recognises ranks that can never go on, and reports why
"""
