"""`maya whatif`: a recorded run, replayed on other settings, and both side by side.

`changes` says what is to be different, `compare` puts two results next to each other, `command` is the command.
"""
