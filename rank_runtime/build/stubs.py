"""The generated part of a fake library: stubs for functions that are not emulated, and the linker's version script.

In: the symbols that torch imports or NVIDIA documents and our objects do not define. Out: C text and a version script.
"""

from __future__ import annotations

from collections.abc import Iterable

from rank_runtime.build.libraries import Library

# Larger than any of the flags and tables that NVIDIA's libraries export, because an import does not tell the size.
OBJECT_BYTES = 4096

PREAMBLE = """\
/* Generated: symbols of {soname} that Maya does not emulate. */
#include <stddef.h>
#include <sys/types.h>

typedef struct {{ int library_error, driver_error; }} error_pair;

#pragma GCC visibility push(default)
void maya_unsupported(const char *function);
"""


def stub_source(library: Library, soname: str, functions: Iterable[str], objects: Iterable[str]) -> str:
    """C text that defines `functions` as "not supported" and `objects` as zeros."""
    lines = [PREAMBLE.format(soname=soname)]
    for name in sorted(functions):
        result = library.result_of(name)
        give_back = f" return {result.value};" if result.value else ""
        lines.append(f'{result.c_type} {name}(void) {{ maya_unsupported("{name}");{give_back} }}')
    lines += [f"char {name}[{OBJECT_BYTES}] __attribute__((aligned(16)));" for name in sorted(objects)]
    return "\n".join(lines) + "\n"


def version_script(version: str | None, exported: Iterable[str]) -> str:
    """Linker script that exports exactly `exported`, under `version` if the library has one."""
    names = "".join(f"    {name};\n" for name in sorted(exported))
    visible = f"  global:\n{names}" if names else ""
    return f"{version + ' ' if version else ''}{{\n{visible}  local:\n    *;\n}};\n"
