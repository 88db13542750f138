"""How long a collective takes on a given network: topology and collective in, time out, importing nothing of ours.

Nothing lives here yet.
"""
