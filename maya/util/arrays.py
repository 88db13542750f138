"""Types of numpy arrays, named by their elements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]  # nanoseconds, bytes, counts
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]  # positions in another array
Booleans = npt.NDArray[np.bool_]
