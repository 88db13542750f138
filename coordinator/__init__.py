"""What runs beside the ranks, one process for a whole job: it makes their communicators and matches their collectives.

process.py           the process: settings in, reports out, serves until it is told to end
server.py            the ZeroMQ socket, and who is who
store.py             the TCPStore, hosted for the ranks' process groups
state.py             the state machine: messages of ranks in, messages to ranks out, no I/O
membership.py        joins, splits and shrinks, until all who must have come
communicators.py     the posts on one communicator
collectives.py       one collective: contributions in, results out
point_to_point.py    sends and receives between two members
arithmetic.py        reductions over bytes, for every data type
"""
