"""Hang reports for people: the launcher prints them, the coordinator makes them (coordinator/hangs).

python_stacks.py  Python stacks of a rank, and what kind of wait they show
report_text.py    a report as lines for the terminal
"""
