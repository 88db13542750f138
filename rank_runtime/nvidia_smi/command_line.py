"""Options of nvidia-smi. In: the arguments. Out: a `Request`, or a `Refusal` with the tool's message and exit code."""

from __future__ import annotations

INVALID_ARGUMENT, NOT_AVAILABLE, NO_PERMISSION, NOT_FOUND, NO_LIBRARY = 2, 3, 4, 6, 12
HELP_HINT = "Please run 'nvidia-smi -h' for help."

# Long and short forms of the options that are emulated -> the name in `Request.options`.
_FLAGS = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "-L": "list",
    "--list-gpus": "list",
    "-q": "query",
    "--query": "query",
    "-x": "xml",
    "--xml-format": "xml",
    "--help-query-gpu": "help-gpu",
    "--help-query-compute-apps": "help-apps",
    "--help-query-supported-clocks": "help-clocks",
}
_VALUES = {
    "-i": "id",
    "--id": "id",
    "-d": "display",
    "--display": "display",
    "-f": "file",
    "--filename": "file",
    "-l": "loop",
    "--loop": "loop",
    "-lms": "loop-ms",
    "--loop-ms": "loop-ms",
    "--format": "format",
    "--query-gpu": "query-gpu",
    "--query-compute-apps": "query-apps",
    "--query-supported-clocks": "query-clocks",
}
# Options that change a device. Virtual GPUs have no state to change.
_CHANGES = """
    -pm --persistence-mode -e --ecc-config -p --reset-ecc-errors -c --compute-mode --gom -r --gpu-reset -vm --virt-mode
    -lgc --lock-gpu-clocks -rgc --reset-gpu-clocks -lmc --lock-memory-clocks -rmc --reset-memory-clocks -ac
    --applications-clocks -rac --reset-applications-clocks -pl --power-limit -cc --cuda-clocks -am --accounting-mode
    -caa --clear-accounted-apps --auto-boost-default --auto-boost-permission -mig --multi-instance-gpu
    -gtt --gpu-target-temp --set-hostname
"""
# What NVIDIA's tool also has.
_OTHERS = """
    -B --list-excluded-gpus -u --unit --dtd --debug --query-accounted-apps --query-retired-pages --query-remapped-rows
    dmon pmon daemon replay drain clocks encodersessions fbcsessions vgpu mig compute-policy boost-slider power-hint
    conf-compute power-smoothing c2c power-profiles pci gpm prm gpu-recover
"""
_TOPOLOGY = {"-m": "topo", "--matrix": "topo"}
_NVLINK = {"-s": "nvlink", "--status": "nvlink"}


class Refusal(Exception):
    """The command cannot be carried out."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Request:
    """What to print."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    @property
    def seconds(self) -> float | None:
        """The interval of a loop."""
        for name, unit in (("loop", 1.0), ("loop-ms", 1e-3)):
            if name in self.options:
                try:
                    interval = int(self.options[name]) * unit
                except ValueError:
                    interval = 0.0
                if interval <= 0:
                    raise Refusal(f"Invalid loop interval. {HELP_HINT}", INVALID_ARGUMENT)
                return interval
        return None

    def items(self, name: str) -> list[str]:
        """The parts of a value that are separated by commas."""
        return [item.strip() for item in self.options.get(name, "").split(",") if item.strip()]


def parse(arguments: list[str]) -> Request:
    request = Request()
    rest = list(arguments)
    flags, values = dict(_FLAGS), dict(_VALUES)
    if rest and rest[0] in ("topo", "nvlink"):
        verb = rest.pop(0)
        flags = {**(_TOPOLOGY if verb == "topo" else _NVLINK), "-h": "help", "--help": "help"}
        values = {"-i": "id", "--id": "id"}
        if not any(argument in flags for argument in rest):
            raise Refusal(f"maya: nvidia-smi {verb}: only {', '.join(flags)} are emulated", NOT_AVAILABLE)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in flags and not equals:
            request.options[flags[name]] = ""
        elif name in values:
            has_default = values[name] == "loop" and (not rest or rest[0].startswith("-"))
            if not equals and not rest and not has_default:
                raise Refusal(f"ERROR: Option {name} is missing its value. {HELP_HINT}", INVALID_ARGUMENT)
            request.options[values[name]] = value if equals else "5" if has_default else rest.pop(0)
        else:
            raise _unknown(name + equals + value, name)
    _check_combination(request)
    return request


def _unknown(argument: str, name: str) -> Refusal:
    if name in _CHANGES.split():
        return Refusal(f"maya: nvidia-smi {name}: settings of virtual GPUs cannot be changed", NO_PERMISSION)
    if name in _OTHERS.split():
        return Refusal(f"maya: nvidia-smi {name} is not emulated", NOT_AVAILABLE)
    return Refusal(f"ERROR: Option {argument} is not recognized. {HELP_HINT}", INVALID_ARGUMENT)


def _check_combination(request: Request) -> None:
    queries = [name for name in ("query", "query-gpu", "query-apps", "query-clocks") if name in request.options]
    selective = bool(queries) and queries[0] != "query"
    if len(queries) > 1:
        raise Refusal(f"Only one --query-* switch can be used at a time. {HELP_HINT}", INVALID_ARGUMENT)
    if selective and "format" not in request.options:
        raise Refusal(f'"--format=" switch is missing. {HELP_HINT}', INVALID_ARGUMENT)
    if not selective and "format" in request.options:
        raise Refusal(f"Invalid combination of input arguments. {HELP_HINT}", INVALID_ARGUMENT)
    if {"display", "xml"} & request.options.keys() and queries != ["query"]:
        raise Refusal(f"Invalid combination of input arguments. {HELP_HINT}", INVALID_ARGUMENT)
    formats = request.items("format")
    wrong = [item for item in formats if item not in ("csv", "noheader", "nounits")]
    if selective and (wrong or "csv" not in formats):
        given = wrong[0] if wrong else request.options["format"]
        raise Refusal(f'"{given}" is not a valid argument for --format= option.', INVALID_ARGUMENT)
