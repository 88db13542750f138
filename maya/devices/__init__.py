"""The catalogue of GPUs: one TOML file each in this folder; users can add their own files."""

from __future__ import annotations

from maya.devices.device import Device
from maya.devices.device_files import DeviceError, device_names, flattened, load_device

__all__ = ["Device", "DeviceError", "device_names", "flattened", "load_device"]
