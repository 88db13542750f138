"""Detects hangs: finds ranks that can never go on, and explains why.

watcher.py            decides when to poll the ranks, and reports hangs
processes.py          reads from /proc whether the threads of a process run or block
rank_processes.py     what the watcher asks about the processes of ranks, and the answers of those on this machine
node_processes.py     the same for ranks on other machines, whose node agents answer
question_messages.py  the messages between the coordinator and the node agents
thread_waits.py       classifies the waits of a blocked rank's threads
deadlock.py           computes the stuck ranks from the graph of waits
flight_recorder.py    parses torch's flight recorder: process groups, and the source lines of collectives
user_source.py        what decides whether the program reaches a line of the user's source
source_names.py       follows names and calls in the user's source
source_tree.py        parses the user's source
frame_values.py       parses the values of variables in a rank's frames, and evaluates simple expressions
rank_groups.py        groups ranks by the call that they are in, and finds the odd ones
shifted_calls.py      finds calls that were matched although they do not belong together
divergence.py         finds the last call that the ranks made alike
file_locks.py         finds the file lock that a rank waits for
store_keys.py         finds the key of the store that a rank waits for
hang_report.py        builds hang.json from all of these
source_hints.py       finds the reason in the source why some ranks make a call and others do not
hints.py              recognizes well-known mistakes in a report
report_file.py        writes a report to disk

Ranks are asked for their stacks with rank_runtime/introspection.py. maya/hangs parses the stacks and prints the
report.
"""
