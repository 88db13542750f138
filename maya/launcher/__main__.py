"""`python -m maya.launcher`, the same as `maya-torchrun`."""

from __future__ import annotations

import sys

from maya.launcher import main

sys.exit(main())
