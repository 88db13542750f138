"""What-if: replay a recorded run with changed settings, and compare both results.

`changes` applies the user's options to the settings of a run, `compare` compares two results; maya/cli/whatif.py is
the command.
"""
