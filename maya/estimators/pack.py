"""Packs: the learned models of one device in one file, and the choice of the best model for a device.

In: `.npz` files of plain arrays (read without pickle): the models of one device, and as JSON the data, licence, date
and held-out error of each. Out: `Model`s that predict slowdowns. A pack does not depend on the version of the library
that trained it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.devices import Device, DeviceError, device_names, load_device
from maya.estimators.batch import Batch, Floats
from maya.estimators.kernel import Kernel, Origin
from maya.estimators.models.forest import Forest, Trees
from maya.util.files import atomic_replacement

FORMAT = 1
FOLDER = Path(__file__).parent / "packs"
Describe = Callable[[Device, Batch], tuple[Floats, dict[str, Floats]]]  # the bound in seconds, and the features
_CONTENTS = "contents"
_MEASURED = "measured"


class PackError(ValueError):
    """A file is not a pack, or has a format that this version cannot read."""


@dataclass(frozen=True)
class Model:
    """A learned function from features to the logarithm of a kernel's slowdown against its bound."""

    features: tuple[str, ...]
    trees: Trees
    about: dict[str, Any] = field(default_factory=dict)  # source, licence, date, rows, held-out error, ...

    @cached_property
    def forest(self) -> Forest:
        return Forest(self.trees, len(self.features))

    @property
    def spread(self) -> float:
        """The expected relative standard deviation of its estimates, from kernels held out in training."""
        return float(self.about["spread"])

    def slowdown(self, columns: dict[str, Floats]) -> Floats:
        """Time divided by the bound; at least 1."""
        by_feature = np.empty((len(self.features), len(next(iter(columns.values())))), dtype=np.float32)
        for position, name in enumerate(self.features):
            by_feature[position] = columns[name]
        return np.exp(np.maximum(self.forest.evaluate(by_feature.T), 0.0))


@dataclass(frozen=True)
class Found:
    """A model and its origin: this device or a similar one."""

    model: Model
    origin: Origin
    note: str
    described_on: Device  # the device on which the model's features are computed

    def slowdown(self, batch: Batch, describe: Describe) -> Floats:
        """Time divided by the bound, of every kernel of a batch."""
        return self.model.slowdown(describe(self.described_on, batch)[1])


class Pack:
    """One file. Models are read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Packs are small: reading the whole file into memory leaves no descriptor open.
            self._file = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
            contents = json.loads(bytes(self._file[_CONTENTS]))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise PackError(
                f"{path}: not a pack of learned kernel times ({error}); make one with: maya calibrate"
            ) from error
        if contents.get("format") != FORMAT:
            raise PackError(
                f"{path}: written in format {contents.get('format')}, this version of maya reads format {FORMAT}; "
                "train it again with: maya calibrate"
            )
        self.device: str = contents["device"]
        self.models: dict[str, dict[str, Any]] = contents["models"]
        self.curves: dict[str, dict[str, Any]] = contents.get("curves", {})  # by family; see curves.py
        self._read: dict[str, Model] = {}

    def model(self, name: str) -> Model:
        """A model by its name, which must be one of `models`."""
        if name not in self._read:
            about = self.models[name]
            arrays = {array: self._file[f"{name}/{array}"] for array in Trees.ARRAYS}
            self._read[name] = Model(tuple(about["features"]), Trees(**arrays, base=about["base"]), about)
        return self._read[name]

    @cached_property
    def measured(self) -> dict[int, float]:
        """Nanoseconds of measured kernels, by `key_of`."""
        if f"{_MEASURED}/keys" not in self._file.files:
            return {}
        keys, nanoseconds = (self._file[f"{_MEASURED}/{name}"] for name in ("keys", "nanoseconds"))
        return dict(zip(keys.tolist(), nanoseconds.tolist(), strict=True))


_OF_THE_LAUNCH = frozenset({"threads", "has_mean"})  # known in a trace, but not in measurements of an op


def key_of(kernel: Kernel) -> int:
    """A hash of a kernel, the same for a trace and for a file of measurements."""
    shape = [(name, size) for name, size in kernel.shape.items() if name not in _OF_THE_LAUNCH]
    sizes = [("flops", kernel.flops), ("read", kernel.bytes_read), ("written", kernel.bytes_written), *shape]
    text = " ".join(f"{name}={value:.6g}" for name, value in sorted(sizes))
    digest = hashlib.sha256(f"{kernel.kernel_class.value} {kernel.dtype} {kernel.variant} {text}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def write_pack(
    path: Path,
    device: str,
    models: dict[str, Model],
    curves: dict[str, dict[str, Any]] | None = None,
    measured: dict[int, float] | None = None,
) -> None:
    """Write the models of one device to a file; the same contents give the same bytes."""
    described = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, model in sorted(models.items()):
        described[name] = {**model.about, "features": list(model.features), "base": model.trees.base}
        arrays.update({f"{name}/{array}": getattr(model.trees, array) for array in Trees.ARRAYS})
    if measured:
        keys = sorted(measured)
        arrays[f"{_MEASURED}/keys"] = np.array(keys, dtype=np.uint64)
        arrays[f"{_MEASURED}/nanoseconds"] = np.array([measured[key] for key in keys], dtype=np.float64)
    contents = {"format": FORMAT, "device": device, "models": described, "curves": curves or {}}
    arrays[_CONTENTS] = np.frombuffer(json.dumps(contents, sort_keys=True, indent=1).encode(), dtype=np.uint8)
    with (
        atomic_replacement(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as stream:
                np.lib.format.write_array(stream, arrays[name], allow_pickle=False)


class Packs:
    """The packs for one device: the user's own first, then those that come with Maya, then those of similar devices."""

    def __init__(self, device: Device, own: Sequence[Pack] = (), *, without: Collection[str] = ()) -> None:
        """`without`: devices whose packs are left out, to test predictions from other devices."""
        self.device = device
        self._own = list(own)
        shipped = [pack for pack in map(Pack, sorted(FOLDER.glob("*.npz"))) if pack.device not in without]
        self._shipped = sorted(shipped, key=self._distance)
        self._found: dict[str, Found | None] = {}

    def _distance(self, pack: Pack) -> float:
        """The dissimilarity of a pack's device to ours."""
        if pack.device == self.device.key:
            return 0.0
        other = _device_of(pack)
        return 99.0 if other is None else 0.01 + _distance(self.device, other)

    def _stand_in(self, measured: Device) -> Device:
        """The device on which the features for another device's model are computed: the most similar one of our
        architecture.

        So all devices of an architecture get the same slowdown from a model, as they run the same kernels, and a device
        with lower bounds is never the slower one.
        """
        ours = self.device.compute_capability
        alike = [device for device in map(load_device, device_names()) if device.compute_capability == ours]
        return min(alike, key=lambda device: _distance(device, measured), default=self.device)

    def find(self, *names: str) -> Found | None:
        """The model of the first name that our device has, or else that the most similar device has."""
        key = "|".join(names)
        if key not in self._found:
            self._found[key] = self._search(names)
        return self._found[key]

    def _search(self, names: Sequence[str]) -> Found | None:
        ours = [pack for pack in (*self._own, *self._shipped) if pack.device == self.device.key]
        for name in names:
            for pack in ours:
                if name in pack.models:
                    return Found(pack.model(name), Origin.MODEL, "", self.device.in_bursts)  # as in the measurements
        for pack in (*self._own, *self._shipped):
            other = _device_of(pack)
            for name in names:
                if name in pack.models and other is not None:
                    note = f"efficiency as measured on {pack.device}"
                    return Found(pack.model(name), Origin.ROOFLINE, note, self._stand_in(other).in_bursts)
        return None

    def curve(self, family: str) -> tuple[dict[str, Any], Origin, str] | None:
        """The curve of a family of memory-bound kernels: our device's own, or that of the most similar device."""
        packs = (*self._own, *self._shipped)
        for pack in packs:
            if pack.device == self.device.key and family in pack.curves:
                return pack.curves[family], Origin.MODEL, ""
        for pack in packs:
            if family in pack.curves:
                return pack.curves[family], Origin.ROOFLINE, f"efficiency as measured on {pack.device}"
        return None

    @cached_property
    def measured(self) -> dict[int, float]:
        """Nanoseconds of kernels that were measured on this device, by `key_of`."""
        together: dict[int, float] = {}
        for pack in reversed([*self._own, *self._shipped]):
            if pack.device == self.device.key:
                together.update(pack.measured)
        return together


def _distance(one: Device, other: Device) -> float:
    """The dissimilarity of two devices."""
    ours, theirs = one.compute_capability, other.compute_capability
    generations = 0.0 if ours == theirs else 1.0 + 0.5 * abs(ours[0] - theirs[0])
    memory = 0.0 if _has_stacked_memory(one) == _has_stacked_memory(other) else 2.0
    return generations + memory + 0.5 * abs(math.log2(_balance(one) / _balance(other)))


def _balance(device: Device) -> float:
    """FLOPs per byte: decides which kernels are memory-bound."""
    return device.fp16_flops / device.memory_bandwidth


def _has_stacked_memory(device: Device) -> bool:
    """Whether the memory is HBM (data centre), not GDDR (graphics cards): its bus is many times wider."""
    return device.memory_bus_bits > 1024


def _device_of(pack: Pack) -> Device | None:
    """The device of a pack; None if its device file is not available."""
    try:
        return load_device(pack.device)
    except DeviceError:
        return None
