"""The GPUs Maya can stand in for: one small TOML file each in this folder, and files of the user's own."""

from __future__ import annotations

from maya.devices.device import Device
from maya.devices.device_files import DeviceError, device_names, flattened, load_device

__all__ = ["Device", "DeviceError", "device_names", "flattened", "load_device"]
