"""The installed torch, described without importing it.

In: the import path of the running interpreter. Out: a `TorchInstall`: where torch is, its version, the CUDA release
it was built for, and facts about it that the build needs. Only small text files are read, because every start of Maya
comes through here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from rank_runtime.build.errors import BuildError

NVIDIA_SONAME = re.compile(r"lib(cu(?!rl|ps)|nv|nccl)")
REMEDY = (
    "Maya runs on the stock CUDA build of torch; no GPU, driver or nvidia-* package is needed. Install it with "
    "`pip install torch`, or, to save the gigabytes of NVIDIA's packages, with `pip install --no-deps torch` and the "
    "other packages that torch needs, from a package index that has CUDA builds."
)


@dataclass(frozen=True)
class TorchInstall:
    """One installed CUDA build of torch."""

    folder: Path  # the package folder, .../site-packages/torch
    version: str  # 2.12.1+cu130
    cuda_version: str  # 13.0
    git_version: str

    @property
    def library_folder(self) -> Path:
        """Folder of torch's own shared objects."""
        return self.folder / "lib"

    @property
    def shared_objects(self) -> list[Path]:
        """torch's shared objects, without the NVIDIA libraries that a wheel or plain_torch.py put beside them."""
        return sorted(path for path in self.library_folder.glob("*.so*") if not NVIDIA_SONAME.match(path.name))

    @property
    def cuda_major(self) -> int:
        """13 of 13.0."""
        return self.cuda_release[0]

    @property
    def cuda_release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = (int(part) for part in self.cuda_version.split(".")[:2])
        return major, minor

    @cached_property
    def definitions(self) -> Mapping[str, int]:
        """Versions that our sources are compiled for, as macros. Absent: the metadata does not tell."""
        major, minor = self.cuda_release
        definitions = {"MAYA_CUDA_VERSION": major * 1000 + minor * 10, "MAYA_TORCH_VERSION": _number(self.version)}
        requirements = self._requirements()
        for macro, package in (("MAYA_CUDNN_VERSION", "cudnn"), ("MAYA_NCCL_VERSION", "nccl")):
            match = re.search(rf"nvidia-{package}(?:-cu\d+)?\s*\(?==\s*([\d.]+)", requirements)
            if match:
                definitions[macro] = _number(match[1])
        return definitions

    def _requirements(self) -> str:
        """The Requires-Dist lines of torch's metadata. importlib.metadata would take longer than all the rest."""
        base_version = self.version.split("+")[0]
        for metadata in sorted(self.folder.parent.glob(f"torch-{base_version}*.dist-info/METADATA")):
            lines = metadata.read_text("utf-8", "replace").splitlines()
            return "\n".join(line for line in lines if line.startswith("Requires-Dist:"))
        return ""

    def cxx_standard(self) -> str:
        """The C++ standard torch builds its own extensions with."""
        for name, pattern in (
            ("utils/cpp_extension.py", r"-std=c\+\+(\d\d)"),
            ("include/ATen/ATen.h", r"C\+\+(\d\d) or later"),
        ):
            path = self.folder / name
            match = re.search(pattern, path.read_text("utf-8", "replace")) if path.is_file() else None
            if match:
                return f"c++{match[1]}"
        return "c++17"


def _number(version: str) -> int:
    """2.12.1+cu130 -> 21201, 9.20.0.48 -> 92000."""
    parts = [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]] + [0, 0]
    return parts[0] * 10000 + parts[1] * 100 + parts[2]


def find_torch() -> TorchInstall:
    """The torch that `import torch` would find."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(f"torch is not installed for this Python interpreter. {REMEDY}")
    return read_torch(Path(spec.origin).parent)


def read_torch(folder: Path) -> TorchInstall:
    """Describe the torch in `folder`; refuse one that has no CUDA code."""
    version_file = folder / "version.py"
    if not version_file.is_file():
        raise BuildError(f"{folder} has no version.py: not an installed torch. {REMEDY}")
    text = version_file.read_text("utf-8", "replace")
    version = _assigned(text, "__version__") or "unknown"
    cuda_version = _assigned(text, "cuda")
    if cuda_version is None or not (folder / "lib" / "libtorch_cuda.so").is_file():
        kind = "a ROCm build" if _assigned(text, "hip") else "a CPU-only build"
        raise BuildError(f"torch {version} in {folder} is {kind} (it has no lib/libtorch_cuda.so). {REMEDY}")
    return TorchInstall(folder, version, cuda_version, _assigned(text, "git_version") or "")


def _assigned(python_text: str, name: str) -> str | None:
    """The string assigned to `name` at the top level of version.py."""
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", python_text, re.MULTILINE)
    return match[1] if match else None
