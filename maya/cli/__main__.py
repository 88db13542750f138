"""`python -m maya.cli`, the same as `maya`."""

from maya.cli.main import main

main()
