"""Generates C headers from the declarations that C and Python share, so that each fact is written down once.

In: the modules `trace_format`, `host_costs`, `device_properties`, `variables` and `stacks_socket` of `rank_runtime`.
Out: the text of one header for each. Lists become macros that apply an argument to every entry ("X macros"): code that
forgets an entry of the declaration, or names one that does not exist, does not compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from rank_runtime import device_properties, host_costs, stacks_socket, trace_format, variables
from rank_runtime.build.errors import BuildError
from rank_runtime.trace_format import Encoding, StructFields

_STRUCT_TYPES = {"I": "uint32_t", "i": "int32_t", "Q": "uint64_t"}


def _header(module: str, *parts: Iterable[str], includes: Iterable[str] = ("<stdint.h>",)) -> str:
    lines = [
        f"/* Generated from rank_runtime/{module}.py by rank_runtime/build/declared_headers.py. */",
        "#pragma once",
        "",
        *(f"#include {name}" for name in includes),
    ]
    for part in parts:
        lines += ["", *part]
    return "\n".join([*lines, ""])


def _enum(entries: Iterable[tuple[str, int]], name: str = "") -> list[str]:
    members = [f"    {member} = {value}," for member, value in entries]
    return [f"{'typedef ' if name else ''}enum {{", *members, f"}}{' ' + name if name else ''};"]


def _macro(head: str, entries: Iterable[str]) -> list[str]:
    """A macro whose body is these entries, one to a line."""
    return [" \\\n    ".join([f"#define {head}", *entries])]


def _text(value: str) -> str:
    """A string literal. The declarations hold plain texts."""
    if not re.fullmatch(r'[^"\\\n]*', value):
        raise BuildError(f"{value!r} cannot be written as a C string without escapes")
    return f'"{value}"'


# ---- trace_format ----


def _struct(name: str, fields: StructFields) -> list[str]:
    members = []
    for field, code in fields:
        length = code.removesuffix("s")
        members.append(f"    char {field}[{length}];" if length != code else f"    {_STRUCT_TYPES[code]} {field};")
    size = trace_format.layout(fields).size
    return [
        "typedef struct {",
        *members,
        f"}} {name};",
        f'_Static_assert(sizeof({name}) == {size}, "written as it lies in memory, without gaps");',
    ]


def _columns() -> list[str]:
    columns = trace_format.RECORD_COLUMNS
    by_kind = [column.encoding is Encoding.BY_KIND for column in columns]
    if by_kind != sorted(by_kind):
        raise BuildError("rank_runtime/trace_format.py: columns encoded by kind must come after all others")
    names = [f"MAYA_COLUMN_{column.name.upper()}" for column in columns]
    macro = {Encoding.PREVIOUS: "PREVIOUS", Encoding.RUNS: "RUNS", Encoding.BY_KIND: "BY_KIND"}
    return [
        *_enum([*((name, i) for i, name in enumerate(names)), ("MAYA_COLUMNS", len(columns))]),
        *_enum([("MAYA_FIRST_COLUMN_BY_KIND", by_kind.index(True))]),
        *_macro(
            f"MAYA_FOR_EACH_COLUMN({', '.join(macro.values())})",
            [f"{macro[column.encoding]}({name}, {column.name})" for name, column in zip(names, columns, strict=True)],
        ),
        *_enum([("MAYA_LARGEST_THREAD_NUMBER", (1 << columns[names.index("MAYA_COLUMN_THREAD")].bits) - 1)]),
    ]


def trace_format_header() -> str:
    """`trace_format.h`: kinds, flags and columns of records, and the structs of the trace file."""
    kinds = [(f"MAYA_RECORD_{kind.name}", int(kind)) for kind in trace_format.RecordKind]
    file = [
        *_enum([("MAYA_TRACE_VERSION", trace_format.VERSION)]),
        *_macro("MAYA_TRACE_MAGIC", [_bytes(trace_format.MAGIC)]),
        *_macro("MAYA_TRACE_BLOCK_MAGIC", [_bytes(trace_format.BLOCK_MAGIC)]),
        "#ifndef __cplusplus",
        *_struct("maya_trace_header", trace_format.HEADER_FIELDS),
        *_struct("maya_trace_block_header", trace_format.BLOCK_HEADER_FIELDS),
        *_struct("maya_trace_end", trace_format.END_FIELDS),
        *_struct("maya_trace_cut", trace_format.CUT_FIELDS),
        *_struct("maya_trace_limit", trace_format.LIMIT_FIELDS),
        "#endif",
    ]
    return _header(
        "trace_format",
        _enum(kinds, "maya_record_kind"),
        _enum([("MAYA_RECORD_KINDS", max(trace_format.RecordKind) + 1)]),
        _macro(
            "MAYA_FOR_EACH_UNREPLAYED_KIND(KIND)",
            [f"KIND(MAYA_RECORD_{kind.name})" for kind in trace_format.UNREPLAYED_KINDS],
        ),
        _enum((f"MAYA_FLAG_{flag.name}", int(flag)) for flag in trace_format.Flag),
        _columns(),
        _enum(((f"MAYA_BLOCK_{kind.name}", int(kind)) for kind in trace_format.BlockKind), "maya_block_kind"),
        file,
    )


def _bytes(value: bytes) -> str:
    return f"{{{', '.join(map(str, value))}}}"


# ---- host_costs ----


def host_costs_header() -> str:
    """`host_costs.h`: the struct of the host's costs, and the keys under which MAYA_CLOCK_COSTS has them."""
    units = [(host_costs.TIMES, "ns"), (host_costs.FACTORS, "per mille")]
    members = [
        f"    uint64_t {key}; /* {unit}: {meaning} */" for costs, unit in units for key, meaning in costs.items()
    ]
    keys = [*host_costs.TIMES, *host_costs.FACTORS]
    calls = [f"CALL(MAYA_RECORD_{kind.name}, {_text(host_costs.call_key(kind))})" for kind in host_costs.CALLS]
    return _header(
        "host_costs",
        [
            "typedef struct {",
            *members,
            "    uint64_t calls[MAYA_RECORD_KINDS]; /* ns: a call, by kind of record */",
            "} maya_clock_costs;",
        ],
        _macro("MAYA_FOR_EACH_COST(COST)", [f"COST({key})" for key in keys]),
        _macro("MAYA_FOR_EACH_CALL_COST(CALL)", calls),
        includes=("<stdint.h>", '"trace_format.h"'),
    )


# ---- device_properties ----


def device_properties_header() -> str:
    """`device_properties.h`: the struct of a GPU's properties, its defaults and its fields by type."""
    members, defaults, fields = [], [], []
    for entry in device_properties.PROPERTIES:
        comment = f" /* {entry.meaning} */" if entry.meaning else ""
        array = re.fullmatch(r"char(\[\d+\])", entry.c_type)
        if array:
            members.append(f"    char {entry.name}{array[1]};{comment}")
            fields.append(f"TEXT({entry.name})")
        elif entry.c_type in ("int", "int64_t"):
            members.append(f"    {entry.c_type} {entry.name};{comment}")
            fields.append(f"{'INT' if entry.c_type == 'int' else 'INT64'}({entry.name})")
        else:
            raise BuildError(f"rank_runtime/device_properties.py: {entry.name} has the unknown type {entry.c_type}")
        value = _text(entry.default) if isinstance(entry.default, str) else entry.default
        defaults.append(f".{entry.name} = {value},")
    return _header(
        "device_properties",
        ["typedef struct {", *members, "} maya_device_properties;"],
        _macro("MAYA_DEFAULT_DEVICE", ["{", *defaults, "}"]),
        _macro("MAYA_FOR_EACH_PROPERTY(TEXT, INT, INT64)", fields),
    )


# ---- variables ----


def _variable(variable: variables.Variable) -> list[str]:
    name = variable.name.removeprefix("MAYA_")
    lines = [f"#define MAYA_VARIABLE_{name} {_text(variable.name)}"]
    if variable.is_number or variable.is_flag:
        lines.append(f"#define MAYA_DEFAULT_{name} {int(variable.default)}")
    elif variable.choices:
        choices = [f"MAYA_{name}_{choice.upper()}" for choice in variable.choices]
        lines += [
            f"typedef enum {{ {', '.join(choices)} }} maya_{name.lower()}_choice;",
            f"#define MAYA_DEFAULT_{name} MAYA_{name}_{variable.default.upper()}",
            f"#define MAYA_CHOICES_{name} {', '.join(map(_text, variable.choices))}",
            f"#define MAYA_EXPECTED_{name} {_text(variable.expected)}",
        ]
    return lines


def variables_header() -> str:
    """`variables.h`: names and defaults of the variables, and an enumeration for each that has choices."""
    declared = (*variables.RANK_VARIABLES, *variables.PROCESS_VARIABLES)
    return _header(
        "variables",
        [f"#define MAYA_MAX_DEVICES {variables.MOST_GPUS}"],
        *map(_variable, declared),
        includes=(),
    )


# ---- stacks_socket ----


def stacks_socket_header() -> str:
    """`stacks_socket.h`: what the name of a rank's socket is made from."""
    return _header(
        "stacks_socket",
        [
            f"#define MAYA_STACKS_SOCKET {_text(stacks_socket.PREFIX)}",
            f"static const uint64_t MAYA_FNV_OFFSET = UINT64_C({stacks_socket.FNV_OFFSET:#x});",
            f"static const uint64_t MAYA_FNV_PRIME = UINT64_C({stacks_socket.FNV_PRIME:#x});",
        ],
    )


DECLARED_HEADERS: Mapping[str, Callable[[], str]] = {
    "trace_format.h": trace_format_header,
    "host_costs.h": host_costs_header,
    "device_properties.h": device_properties_header,
    "variables.h": variables_header,
    "stacks_socket.h": stacks_socket_header,
}
