"""Helpers that all packages share. Nothing here imports anything else of Maya's.

units.py             quantities: "80GiB" -> bytes, and back to text
catalogue.py         folders of TOML files, with errors that name the file, the key and the remedy
suggestions.py       "did you mean …?"
text.py              numbers as text for people
files.py             atomic writes
standard_streams.py  stdout and stderr that may be closed, full or broken
"""
