"""Packs: what was learned about one device, in one file, and finding the one that answers a question best.

In: `.npz` files of plain arrays (read without pickle): the models of one device, and as JSON what each one was trained
on, under which licence, when, and how far it was off on shapes it had not seen. Out: `Model`s that give efficiencies.
Nothing in a pack depends on the version of the library that trained it.
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
    """A file is not a pack, or not one this version reads."""


@dataclass(frozen=True)
class Model:
    """Learned: from a row of features the logarithm of how many times longer than its bound a work takes."""

    features: tuple[str, ...]
    trees: Trees
    about: dict[str, Any] = field(default_factory=dict)  # source, licence, date, rows, held-out error, ...

    @cached_property
    def forest(self) -> Forest:
        return Forest(self.trees, len(self.features))

    @property
    def spread(self) -> float:
        """The relative standard deviation to be expected of its estimates, from works held out in training."""
        return float(self.about["spread"])

    def slowdown(self, columns: dict[str, Floats]) -> Floats:
        """How many times longer than the bound; at least once."""
        by_feature = np.empty((len(self.features), len(next(iter(columns.values())))), dtype=np.float32)
        for position, name in enumerate(self.features):
            by_feature[position] = columns[name]
        return np.exp(np.maximum(self.forest.evaluate(by_feature.T), 0.0))


@dataclass(frozen=True)
class Found:
    """A model, and whether it is the device's own."""

    model: Model
    origin: Origin
    note: str
    described_on: Device  # what the model is told about works is as seen by this device

    def slowdown(self, batch: Batch, describe: Describe) -> Floats:
        """How many times longer than their bound works take."""
        return self.model.slowdown(describe(self.described_on, batch)[1])


class Pack:
    """One file. Models are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # From memory, since packs are small: nothing is left open.
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
        """Nanoseconds of the very works that were measured, by `key_of`."""
        if f"{_MEASURED}/keys" not in self._file.files:
            return {}
        keys, nanoseconds = (self._file[f"{_MEASURED}/{name}"] for name in ("keys", "nanoseconds"))
        return dict(zip(keys.tolist(), nanoseconds.tolist(), strict=True))


_OF_THE_LAUNCH = frozenset({"threads", "has_mean"})  # known of a trace, not of who measures an op


def key_of(kernel: Kernel) -> int:
    """A number for a work, the same wherever it is described: in a trace, or in a file of measurements."""
    shape = [(name, size) for name, size in kernel.shape.items() if name not in _OF_THE_LAUNCH]
    sizes = [("flops", kernel.flops), ("read", kernel.bytes_read), ("written", kernel.bytes_written), *shape]
    text = " ".join(f"{name}={value:.6g}" for name, value in sorted(sizes))
    digest = hashlib.sha256(f"{kernel.kind.value} {kernel.dtype} {kernel.variant} {text}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def write_pack(
    path: Path,
    device: str,
    models: dict[str, Model],
    curves: dict[str, dict[str, Any]] | None = None,
    measured: dict[int, float] | None = None,
) -> None:
    """Write what is known of one device to a file, byte for byte the same for the same contents."""
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
    """The packs for one device: the user's own first, then those that come with Maya, then those of its relatives."""

    def __init__(self, device: Device, files: Sequence[Path] = (), *, without: Collection[str] = ()) -> None:
        """`without`: devices whose packs are left out, to see what others tell about them."""
        self.device = device
        self._own = [Pack(path) for path in files]
        shipped = [pack for pack in map(Pack, sorted(FOLDER.glob("*.npz"))) if pack.device not in without]
        self._shipped = sorted(shipped, key=self._distance)
        self._found: dict[str, Found | None] = {}

    def _distance(self, pack: Pack) -> float:
        """How little a pack's device has in common with ours."""
        if pack.device == self.device.key:
            return 0.0
        other = _device_of(pack)
        return 99.0 if other is None else 0.01 + _distance(self.device, other)

    def _stand_in(self, measured: Device) -> Device:
        """Who sees works in our place for a model of another device: the one of our architecture that is most like it.

        All devices of an architecture so hear the same from a model. They come equally close to their bounds, as the
        same kernels do, and one whose bounds are lower is never the slower one.
        """
        ours = self.device.compute_capability
        alike = [device for device in map(load_device, device_names()) if device.compute_capability == ours]
        return min(alike, key=lambda device: _distance(device, measured), default=self.device)

    def find(self, *names: str) -> Found | None:
        """The model of the first name that our device has one of, or else its nearest relative that has any."""
        key = "|".join(names)
        if key not in self._found:
            self._found[key] = self._search(names)
        return self._found[key]

    def _search(self, names: Sequence[str]) -> Found | None:
        ours = [pack for pack in (*self._own, *self._shipped) if pack.device == self.device.key]
        for name in names:
            for pack in ours:
                if name in pack.models:
                    return Found(pack.model(name), Origin.MODEL, "", self.device.in_bursts)  # as it was measured
        for pack in (*self._own, *self._shipped):
            other = _device_of(pack)
            for name in names:
                if name in pack.models and other is not None:
                    note = f"efficiency as measured on {pack.device}"
                    return Found(pack.model(name), Origin.ROOFLINE, note, self._stand_in(other).in_bursts)
        return None

    def curve(self, family: str) -> tuple[dict[str, Any], Origin, str] | None:
        """What is known about a family of kernels that move memory: our device's own, or its nearest relative's."""
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
        """Nanoseconds of works that were measured on this very device, by `key_of`."""
        together: dict[int, float] = {}
        for pack in reversed([*self._own, *self._shipped]):
            if pack.device == self.device.key:
                together.update(pack.measured)
        return together


def _distance(one: Device, other: Device) -> float:
    """How little two devices have in common."""
    ours, theirs = one.compute_capability, other.compute_capability
    generations = 0.0 if ours == theirs else 1.0 + 0.5 * abs(ours[0] - theirs[0])
    memory = 0.0 if _has_stacked_memory(one) == _has_stacked_memory(other) else 2.0
    return generations + memory + 0.5 * abs(math.log2(_balance(one) / _balance(other)))


def _balance(device: Device) -> float:
    """Operations a byte: what decides which works are limited by memory."""
    return device.fp16_flops / device.memory_bandwidth


def _has_stacked_memory(device: Device) -> bool:
    """HBM, as in data centres, not GDDR, as on graphics cards: its bus is many times wider."""
    return device.memory_bus_bits > 1024


def _device_of(pack: Pack) -> Device | None:
    """The device of a pack; None for a device file that is not at hand."""
    try:
        return load_device(pack.device)
    except DeviceError:
        return None
