"""Facts that C and Python share: declared once in rank_runtime, generated as headers, and complete on both sides."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

from maya.devices import load_device
from maya.hosts.costs import NO_COSTS, HostCosts
from maya.trace import format as trace_format
from rank_runtime import device_properties, host_costs, stacks_socket
from rank_runtime import trace_format as declared
from rank_runtime.build.declared_headers import DECLARED_HEADERS
from rank_runtime.build.errors import BuildError
from rank_runtime.build.headers import write_headers
from rank_runtime.build.sources import DECLARATIONS, Sources
from rank_runtime.variables import PROCESS_VARIABLES, RANK_VARIABLES, SETUP_VARIABLES


def test_every_declaration_has_a_header_and_changes_the_build() -> None:
    assert {f"{name}.h" for name in DECLARATIONS} == set(DECLARED_HEADERS)


@pytest.mark.parametrize("language", ["c", "c++"])
def test_headers_compile(tmp_path: Path, language: str) -> None:
    write_headers(tmp_path, Sources())
    text = "".join(f'#include "{name}"\n' for name in DECLARED_HEADERS)
    command = ["gcc", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", "-fsyntax-only", "-x", language, "-"]
    subprocess.run(command, input=text, text=True, check=True)


def test_records_have_the_declared_columns() -> None:
    fields_of_record = {name: trace_format.RECORD[name].itemsize * 8 for name in trace_format.RECORD.names or ()}
    assert fields_of_record == {column.name: column.bits for column in declared.RECORD_COLUMNS}


def test_columns_by_kind_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "RECORD_COLUMNS", declared.RECORD_COLUMNS[::-1])
    with pytest.raises(BuildError, match="must come after all others"):
        DECLARED_HEADERS["trace_format.h"]()


def test_host_costs_are_the_declared_ones() -> None:
    own = {field.name for field in fields(HostCosts)} - {"calls", "scale"}  # scale is applied by the replay alone
    assert own == {*host_costs.TIMES, *host_costs.FACTORS}
    costs = replace(NO_COSTS, calls=dict.fromkeys(host_costs.CALLS, 1))
    keys = [item.split("=")[0] for item in costs.text().split(";")]
    header = DECLARED_HEADERS["host_costs.h"]()
    for key in keys:
        assert f"COST({key})" in header or f', "{key}")' in header


def test_the_default_device_is_the_catalogues_h100() -> None:
    assert {entry.name: entry.default for entry in device_properties.PROPERTIES} == load_device(
        "h100"
    ).cuda_properties()


def test_variables_are_declared_once() -> None:
    names = [variable.name for variable in (*RANK_VARIABLES, *PROCESS_VARIABLES, *SETUP_VARIABLES)]
    assert len(names) == len(set(names))
    for variable in RANK_VARIABLES:
        assert not variable.choices or variable.default in variable.choices
        assert not variable.is_number or variable.default.isdigit()


def test_a_ranks_socket_is_named_after_its_run() -> None:
    assert stacks_socket.stacks_socket(7, "") == "\0maya-stacks-7-cbf29ce484222325"
    assert stacks_socket.stacks_socket(7, "a") == "\0maya-stacks-7-af63dc4c8601ec8c"  # FNV-1a's published test vector
