"""`python -m maya.launcher`: `maya-torchrun`, with modules of the current folder before those of Maya."""

from __future__ import annotations

import sys

from maya.launcher import main

sys.exit(main())
