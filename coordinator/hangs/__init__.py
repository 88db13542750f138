"""Detects hangs: finds ranks that can never go on, and explains why.

watcher.py          decides when to poll the ranks, and reports hangs
processes.py        reads from /proc whether the threads of a process run or block
thread_waits.py     classifies the waits of a blocked rank's threads
deadlock.py         computes the stuck ranks from the graph of waits
flight_recorder.py  parses torch's flight recorder: process groups, and the source lines of collectives
user_source.py      parses the user's source around a line
hang_report.py      builds hang.json: ranks grouped by activity, and the point of divergence
hints.py            recognizes well-known mistakes in a report
report_file.py      writes a report to disk

The watcher asks ranks for their stacks with rank_runtime/introspection.py. maya/hangs parses the stacks and prints the
report.
"""
