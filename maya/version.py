"""Maya's version. A module of its own, so that no package has to import `maya` itself, which offers them all."""

from __future__ import annotations

__version__ = "0.1.0"
