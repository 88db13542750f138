"""`datetime.now()` and `utcnow()`, which read the clock in C.

In: a function that returns the time for a caller's module, in ns since 1970, or None for real time. Out: replaced
entries in the dictionary of the type `datetime.datetime`. The type stays, so that instances, subclasses, pickles and
`isinstance` are not affected. `today()` of both types calls `time.time`, which python_clock.py replaces.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import warnings
from collections.abc import Callable
from datetime import datetime, timezone, tzinfo
from typing import Any

TimeOf = Callable[[str], "int | None"]

_NANOSECONDS = 1_000_000_000
_SHIFT_NS = 1000  # of a microsecond


def replace_now(time_of: TimeOf) -> bool:
    """Replace both functions. False: this Python keeps its types in another way, and nothing has changed."""
    entries = next(iter(gc.get_referents(vars(datetime))), None)
    real_now, real_utcnow = datetime.now, datetime.utcnow
    if not isinstance(entries, dict) or not {"now", "utcnow"} <= entries.keys():
        return False

    def at(cls: type[datetime], ns: int, tz: tzinfo | None) -> datetime:
        seconds, rest = divmod(ns, _NANOSECONDS)
        return cls.fromtimestamp(seconds, tz).replace(microsecond=rest // _SHIFT_NS)

    def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
        ns = time_of(sys._getframe(1).f_globals.get("__name__") or "")
        return _real("now", cls, tz) if ns is None else at(cls, ns, tz)

    def utcnow(cls: type[datetime]) -> datetime:
        if deprecated:
            warnings.warn(deprecated, DeprecationWarning, stacklevel=2)
        ns = time_of(sys._getframe(1).f_globals.get("__name__") or "")
        if ns is not None:
            return at(cls, ns, timezone.utc).replace(tzinfo=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _real("utcnow", cls)

    deprecated = _deprecation(real_utcnow)
    for function, real in ((now, real_now), (utcnow, real_utcnow)):
        function.__doc__, function.__module__ = real.__doc__, "datetime"
        function.__qualname__ = f"datetime.{function.__name__}"
        entries[function.__name__] = classmethod(function)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))  # forget cached look-ups
    return True


_built_in: dict[str, Any] = {name: vars(datetime)[name] for name in ("now", "utcnow")}


def _real(name: str, cls: type[datetime], *arguments: tzinfo | None) -> datetime:
    """Call the built-in function of this name for `datetime` or a class that inherits it."""
    found: datetime = _built_in[name].__get__(None, cls)(*arguments)
    return found


def _deprecation(utcnow: Callable[[], datetime]) -> str:
    """The text with which this Python deprecates `utcnow`; empty: it does not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        utcnow()
    return str(caught[0].message) if caught else ""
