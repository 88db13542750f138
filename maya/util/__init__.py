"""Helpers that all packages share. Nothing here imports anything else of Maya's.

units.py             parse quantities: "80GiB" -> bytes
catalogue.py         folders of TOML files, with errors that name the file, the key and the remedy
suggestions.py       "did you mean …?"
text.py              format quantities: 4917845 ns -> "4.918 ms"
ranks.py             lists of ranks: "0-7,9"
files.py             atomic writes
standard_streams.py  stdout and stderr that may be closed, full or broken
open_files.py        the limit of open files, raised for a coordinator of many ranks
extras.py            packages that only some commands need
arrays.py            types of numpy arrays
"""
