"""The imports and exports of a compiled object, read from its ELF tables.

In: a path to an ELF64 file. Out: the `Imports` of a shared object (SONAME, libraries needed, symbols left undefined),
or the names that a relocatable object (.o) would export. Nothing is loaded or executed, so torch's libraries can be
read on a machine where they could not be loaded.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SHT_SYMTAB, SHT_DYNAMIC, SHT_DYNSYM = 2, 6, 11
SHT_GNU_VERNEED, SHT_GNU_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
DT_NEEDED, DT_SONAME = 1, 14
SHN_UNDEF = 0
STB_LOCAL, STB_WEAK = 0, 2
STT_OBJECT = 1
STV_DEFAULT = 0
VERSION_INDEX_MASK = 0x7FFF  # the top bit of a version index says "hidden"

SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC_ENTRY = struct.Struct("<qQ")
VERSION_NEEDED = struct.Struct("<HHIII")
VERSION_NEEDED_AUX = struct.Struct("<IHHII")


class ElfError(ValueError):
    """The file is not an ELF64 little-endian object of the expected kind."""


@dataclass(frozen=True)
class ImportedSymbol:
    """One undefined symbol of an object, and the library that must define it, if the object names one."""

    name: str
    version: str | None  # symbol version, e.g. "libcudart.so.13"; None for an unversioned import
    library: str | None  # SONAME of the library that must provide the version
    is_object: bool  # data rather than a function
    is_weak: bool  # may stay undefined; the importer checks before it calls


@dataclass(frozen=True)
class Imports:
    """The import side of one shared object."""

    path: Path
    soname: str | None
    needed: tuple[str, ...]
    symbols: tuple[ImportedSymbol, ...]
    exported: frozenset[str]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class _Symbol:
    number: int
    name: str
    binding: int
    kind: int
    visibility: int
    is_defined: bool


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                raise ElfError(f"{path}: not an ELF64 little-endian file")
            yield data
    except ElfError:
        raise
    except (struct.error, ValueError, IndexError, OverflowError) as problem:  # offsets that lead nowhere
        raise ElfError(f"{path}: damaged ELF file ({problem})") from problem


def _string(data: mmap.mmap, base: int, offset: int) -> str:
    start = base + offset
    return data[start : data.find(b"\0", start)].decode("ascii", "replace")


def _sections(data: mmap.mmap) -> list[_Section]:
    (table_offset,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for index in range(count):
        _, kind, _, _, offset, size, link, info, _, _ = SECTION_HEADER.unpack_from(
            data, table_offset + index * entry_size
        )
        sections.append(_Section(kind, offset, size, link, info))
    return sections


def _symbols(data: mmap.mmap, table: _Section, strings: int) -> Iterator[_Symbol]:
    """The non-local symbols of one table."""
    for number in range(1, table.size // SYMBOL.size):
        name, info, other, section_index, _, _ = SYMBOL.unpack_from(data, table.offset + number * SYMBOL.size)
        if info >> 4 != STB_LOCAL:
            text = _string(data, strings, name)
            yield _Symbol(number, text, info >> 4, info & 0xF, other & 3, section_index != SHN_UNDEF)


def _needed_versions(data: mmap.mmap, section: _Section, strings: int) -> dict[int, tuple[str, str]]:
    """Version index -> (version name, SONAME of the library that defines it)."""
    versions: dict[int, tuple[str, str]] = {}
    offset = section.offset
    for _ in range(section.info):
        _, aux_count, file_name, aux, following = VERSION_NEEDED.unpack_from(data, offset)
        library = _string(data, strings, file_name)
        aux_offset = offset + aux
        for _ in range(aux_count):
            _, _, index, name, next_aux = VERSION_NEEDED_AUX.unpack_from(data, aux_offset)
            versions[index & VERSION_INDEX_MASK] = (_string(data, strings, name), library)
            aux_offset += next_aux
        offset += following
    return versions


def _dynamic_names(data: mmap.mmap, dynamic: _Section, strings: int) -> tuple[str | None, tuple[str, ...]]:
    """SONAME and DT_NEEDED."""
    soname, needed = None, []
    for offset in range(dynamic.offset, dynamic.offset + dynamic.size, DYNAMIC_ENTRY.size):
        tag, value = DYNAMIC_ENTRY.unpack_from(data, offset)
        if tag == DT_NEEDED:
            needed.append(_string(data, strings, value))
        elif tag == DT_SONAME:
            soname = _string(data, strings, value)
    return soname, tuple(needed)


def read_imports(path: Path) -> Imports:
    """Read SONAME, DT_NEEDED and the dynamic symbols of the shared object at `path`."""
    with _mapped(path) as data:
        sections = _sections(data)
        by_kind = {section.kind: section for section in sections}
        dynamic, table = by_kind.get(SHT_DYNAMIC), by_kind.get(SHT_DYNSYM)
        if dynamic is None or table is None:
            raise ElfError(f"{path}: no dynamic section; not a shared object")
        soname, needed = _dynamic_names(data, dynamic, sections[dynamic.link].offset)

        version_indices, verneed = by_kind.get(SHT_GNU_VERSYM), by_kind.get(SHT_GNU_VERNEED)
        versions = _needed_versions(data, verneed, sections[verneed.link].offset) if verneed else {}
        imported, exported = [], []
        for symbol in _symbols(data, table, sections[table.link].offset):
            if symbol.is_defined:
                exported.append(symbol.name)
                continue
            version, library = None, None
            if version_indices is not None:
                (index,) = struct.unpack_from("<H", data, version_indices.offset + symbol.number * 2)
                version, library = versions.get(index & VERSION_INDEX_MASK, (None, None))
            is_object, is_weak = symbol.kind == STT_OBJECT, symbol.binding == STB_WEAK
            imported.append(ImportedSymbol(symbol.name, version, library, is_object, is_weak))
    return Imports(path, soname, needed, tuple(imported), frozenset(exported))


def read_exports(path: Path) -> frozenset[str]:
    """Names that the relocatable object at `path` defines with default visibility."""
    with _mapped(path) as data:
        sections = _sections(data)
        table = next((section for section in sections if section.kind == SHT_SYMTAB), None)
        if table is None:
            raise ElfError(f"{path}: no symbol table; not a relocatable object")
        return frozenset(
            symbol.name
            for symbol in _symbols(data, table, sections[table.link].offset)
            if symbol.is_defined and symbol.visibility == STV_DEFAULT
        )
