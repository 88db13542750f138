"""Prints hang reports. The coordinator builds them (coordinator/hangs), the launcher shows them.

python_stacks.py  parses the Python stacks of a rank, and classifies their waits
report_text.py    formats a report as lines for the terminal
request_socket.py asks a running job for a report
"""
