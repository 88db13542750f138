"""`python -m maya.cli`, the same as `maya`."""

from maya.cli.entry_points import maya

maya()
