"""`python -m maya.torchrun`, the same as `maya-torchrun`."""

from __future__ import annotations

import sys

from maya.torchrun import main

sys.exit(main())
