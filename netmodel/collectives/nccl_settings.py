"""The NCCL_* environment variables that decide how a collective is carried out.

In: a mapping like `os.environ`, of which only the variables in `VARIABLES` are read. Out: `NcclSettings`, or one
`NcclSettingsError` that names the variable, its value and valid values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maya.util.suggestions import did_you_mean, listed

ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# The operations as NCCL_ALGO and NCCL_PROTO name them, and our names.
FUNCTIONS = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}
VARIABLES = {
    "NCCL_ALGO": "algorithms that may be used, e.g. Ring, ^Tree, allreduce:Tree;allgather:Ring",
    "NCCL_PROTO": "protocols that may be used, e.g. Simple, ^LL128, allreduce:LL",
    "NCCL_MIN_NCHANNELS": "minimum number of channels",
    "NCCL_MAX_NCHANNELS": "maximum number of channels",
    "NCCL_NVLS_ENABLE": "0: no reduction in NVSwitches; 1 and 2: where there are such",
    "NCCL_COLLNET_ENABLE": "1: reduction in the network's switches, where they can",
    "NCCL_PXN_DISABLE": "1: sends leave through the sender's own NIC",
    "NCCL_PAT_ENABLE": "0: no PAT for groups with one GPU per node",
    "NCCL_NCHANNELS_PER_NET_PEER": "channels of a send to another node",
}


class NcclSettingsError(ValueError):
    """A setting of NCCL is invalid, or leaves no way to carry out a collective."""


@dataclass(frozen=True)
class NcclSettings:
    """The allowed algorithms and protocols by operation; an operation without an entry may use all."""

    algorithms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    protocols: Mapping[str, frozenset[str]] = field(default_factory=dict)
    min_channels: int = 0
    max_channels: int = 0  # 0: NCCL's default
    nvls: bool = True
    collnet: bool = False
    pxn: bool = True
    pat: bool = True
    channels_per_net_peer: int = 0  # 0: NCCL's default

    def allows_algorithm(self, operation: str, algorithm: str) -> bool:
        return algorithm in self.algorithms.get(operation, ALGORITHMS)

    def allows_protocol(self, operation: str, protocol: str) -> bool:
        return protocol in self.protocols.get(operation, PROTOCOLS)

    def forces_protocol(self, operation: str, protocol: str) -> bool:
        """Whether the user named this protocol, which overrides NCCL's own restrictions on it."""
        return operation in self.protocols and protocol in self.protocols[operation]

    def described(self, operation: str) -> str:
        """The settings that differ from NCCL's defaults, for error messages."""
        parts = []
        if operation in self.algorithms:
            parts.append(f"NCCL_ALGO allows {', '.join(sorted(self.algorithms[operation])) or 'none'}")
        if operation in self.protocols:
            parts.append(f"NCCL_PROTO allows {', '.join(sorted(self.protocols[operation])) or 'none'}")
        if not self.nvls:
            parts.append("NCCL_NVLS_ENABLE is 0")
        if not self.collnet:
            parts.append("NCCL_COLLNET_ENABLE is 0")
        return "; ".join(parts)


def read_settings(environment: Mapping[str, str]) -> NcclSettings:
    """The settings in an environment."""
    minimum, maximum = _number(environment, "NCCL_MIN_NCHANNELS"), _number(environment, "NCCL_MAX_NCHANNELS")
    if maximum and minimum > maximum:
        raise NcclSettingsError(f"NCCL_MIN_NCHANNELS is {minimum} and NCCL_MAX_NCHANNELS is {maximum}; exchange them")
    return NcclSettings(
        algorithms=_lists(environment, "NCCL_ALGO", ALGORITHMS),
        protocols=_lists(environment, "NCCL_PROTO", PROTOCOLS),
        min_channels=minimum,
        max_channels=maximum,
        nvls=_number(environment, "NCCL_NVLS_ENABLE", 2) > 0,
        collnet=_number(environment, "NCCL_COLLNET_ENABLE", 0) > 0,
        pxn=_number(environment, "NCCL_PXN_DISABLE", 0) == 0,
        pat=_number(environment, "NCCL_PAT_ENABLE", 2) > 0,
        channels_per_net_peer=_number(environment, "NCCL_NCHANNELS_PER_NET_PEER"),
    )


def _number(environment: Mapping[str, str], variable: str, default: int = 0) -> int:
    text = environment.get(variable, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise NcclSettingsError(f'{variable} is "{text}"; expected a whole number of at least 0')
    return int(text)


def _lists(environment: Mapping[str, str], variable: str, words: Sequence[str]) -> dict[str, frozenset[str]]:
    """Parse NCCL's lists: "a,b" for every operation, then "operation:a,b" or "operation:^a" after semicolons."""
    text = environment.get(variable, "").strip()
    allowed: dict[str, frozenset[str]] = {}
    if not text:
        return allowed
    for place, entry in enumerate(text.split(";")):
        head, colon, tail = entry.partition(":")
        if not colon:
            if place:
                raise NcclSettingsError(
                    f'{variable} is "{text}": "{entry}" has no operation in front of it, e.g. allreduce:{entry}; '
                    "only the first list may go without"
                )
            head, tail = "", head
        function = head.strip().lower()
        if colon and function not in FUNCTIONS:
            raise NcclSettingsError(
                f'{variable} is "{text}": "{head}" is not an operation{did_you_mean(function, FUNCTIONS)}; '
                f"use {listed(tuple(FUNCTIONS), 'or')}"
            )
        negated = tail.strip().startswith("^")
        named = {word.strip().lower() for word in tail.strip().removeprefix("^").split(",") if word.strip()}
        unknown = sorted(named - set(words))
        if unknown or not named:
            what = (
                f'"{unknown[0]}" is none of them{did_you_mean(unknown[0], words)}' if unknown else "the list is empty"
            )
            raise NcclSettingsError(f'{variable} is "{text}": {what}; use {listed(tuple(words), "or")}')
        chosen = frozenset(words) - named if negated else frozenset(named)
        for operation in [FUNCTIONS[function]] if colon else FUNCTIONS.values():
            allowed[operation] = chosen
    return allowed
