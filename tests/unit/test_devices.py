"""The catalogue of GPUs and the files users write themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maya.devices import Device, DeviceError, device_names, load_device
from maya.util.text import bytes_text
from maya.util.units import BYTES, BYTES_PER_SECOND, HERTZ

CATALOGUE = device_names()
DEVICE_HEADER = Path(__file__).parents[2] / "rank_runtime" / "shim" / "device" / "device.h"

WriteFile = Callable[[str], str]


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(name_or_path: str) -> str:
    with pytest.raises(DeviceError) as refused:
        load_device(name_or_path)
    assert isinstance(refused.value, ValueError)
    return str(refused.value)


def test_the_catalogue_is_complete() -> None:
    assert device_names() == CATALOGUE


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_entry_is_consistent(name: str) -> None:
    device = load_device(name)
    assert device.key == name
    # Double data rate: two transfers a clock.
    from_clock = 2 * device.memory_clock_hz * device.memory_bus_bits // 8
    assert device.memory_bandwidth == pytest.approx(from_clock, rel=0.03)
    # Lanes times two operations a clock: 64 lanes per SM in Volta and A100, 128 in all others.
    lanes = 64 if device.compute_capability in ((7, 0), (8, 0)) else 128
    assert device.fp32_flops == pytest.approx(device.sm_count * lanes * 2 * device.clock_hz, rel=0.08)
    assert device.fp16_flops > device.fp32_flops
    if device.tf32_flops is not None:
        assert device.fp16_flops == pytest.approx(2 * device.tf32_flops, rel=0.02)
    for measured, peak in (
        (device.bf16_typical_flops, device.bf16_flops),
        (device.bf16_best_flops, device.bf16_flops),
        (device.fp8_best_flops, device.fp8_flops),
    ):
        assert measured is None or (peak is not None and measured < peak)


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_entry_names_its_sources(name: str) -> None:
    text = (Path(load_device.__globals__["__file__"]).parent / f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith("# NVIDIA")
    assert "# Sources: " in text


def test_h100_is_what_cuda_reports() -> None:
    properties = load_device("h100").cuda_properties()
    assert properties["name"] == "NVIDIA H100 80GB HBM3"
    assert properties["memory_bytes"] == 84942979072
    assert (properties["compute_major"], properties["compute_minor"]) == (9, 0)
    assert properties["clock_khz"] == 1980000


def test_names_are_case_insensitive() -> None:
    assert load_device("H100") == load_device("h100")


@pytest.mark.parametrize(
    ("wrong", "suggestion"), [("h10", "h100"), ("a100", "a100-"), ("b2000", "b200"), ("l40", "l40s")]
)
def test_unknown_name_suggests_the_nearest(wrong: str, suggestion: str) -> None:
    message = refusal(wrong)
    assert f'unknown GPU "{wrong}" (did you mean ' in message
    assert suggestion in message.split("?")[0]
    assert all(name in message for name in CATALOGUE)


def test_a_name_unlike_any_other_gets_no_suggestion() -> None:
    message = refusal("toaster")
    assert "did you mean" not in message
    assert "the catalogue has: a100-40" in message


def test_a_missing_file_is_refused() -> None:
    assert "no GPU file nowhere/mine.toml" in refusal("nowhere/mine.toml")


def test_a_file_may_be_based_on_the_catalogue(write_file: WriteFile) -> None:
    device = load_device(write_file('based_on = "h100"\nname = "Half an H100"\nsm_count = 66\nmemory = "40GiB"\n'))
    h100 = load_device("h100")
    assert (device.key, device.name, device.sm_count, device.memory_bytes) == ("mine", "Half an H100", 66, 40 * 2**30)
    assert device.l2_bytes == h100.l2_bytes


def test_a_file_may_be_based_on_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('based_on = "a40"\nsm_count = 42\n')
    (tmp_path / "mine.toml").write_text('based_on = "base.toml"\npower = "150W"\n')
    device = load_device(str(tmp_path / "mine.toml"))
    assert (device.sm_count, device.power_watts, device.memory_bus_bits) == (42, 150, 384)


def test_complete_file_needs_no_base(write_file: WriteFile) -> None:
    text = (Path(load_device.__globals__["__file__"]).parent / "l40s.toml").read_text(encoding="utf-8")
    device = load_device(write_file(text))
    assert Device(**{**vars(device), "key": "l40s"}) == load_device("l40s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm_counts = 3", 'unknown key "sm_counts" (did you mean sm_count?)'),
        ("base_on = 'h100'", "did you mean based_on"),
        ('name = "Mine"', "missing compute_capability, sm_count, clock"),
        ('based_on = "h1000"', 'based_on = "h1000": unknown GPU "h1000" (did you mean h100'),
        ("based_on = 100", "based_on = 100: write the name of a GPU"),
        ('based_on = "mine.toml"', "based_on leads back to this file"),
        ('based_on = "h100"\nmemory = 80', 'memory: 80 has no unit; write a size as text with its unit, e.g. "80GiB"'),
        ('based_on = "h100"\nmemory = "80"', 'memory: "80" is not a size; write a number and its unit'),
        ('based_on = "h100"\nmemory = "80Gib"', '"Gib" is not a unit of a size; use one of B, kB, MB, GB'),
        ('based_on = "h100"\nclock = "700W"', 'clock: "700W": "W" is not a unit of a clock'),
        ('based_on = "h100"\nclock = "0MHz"', "clock is zero"),
        ('based_on = "h100"\nsm_count = "132"', "sm_count: '132' is not a count"),
        ('based_on = "h100"\nsm_count = 0', "sm_count: 0 is not a count"),
        ('based_on = "h100"\nsm_count = true', "sm_count: True is not a count"),
        ('based_on = "h100"\ncompute_capability = 9.0', "compute_capability: 9.0 is not a compute capability"),
        ('based_on = "h100"\nname = "a;b"', "name: 'a;b' is not a name"),
        ('based_on = "h100"\nmemory = "100MiB"', "leaves nothing of memory"),
        ('based_on = "h100"\nshared_per_sm = "1KiB"', "expected shared_per_block <= shared_per_block_optin"),
        ("name = ", "not valid TOML"),
    ],
)
def test_broken_file_is_refused_by_name(write_file: WriteFile, text: str, expected: str) -> None:
    path = write_file(text)
    message = refusal(path)
    assert message.startswith(path)
    assert expected in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(str(path))


def test_quantities_are_parsed_and_formatted_with_units() -> None:
    assert BYTES.parse("79.11GiB") == round(79.11 * 2**30)
    assert BYTES.parse("84942979072B") == 84942979072
    assert BYTES.parse("48 kB") == 48000
    assert BYTES_PER_SECOND.parse("3352.32GB/s") == 3352320000000
    assert BYTES_PER_SECOND.parse("400Gbps") == 50 * 10**9
    assert HERTZ.parse("1980MHz") == HERTZ.parse("1.98GHz") == 1980000000
    assert bytes_text(84942979072) == "79.1 GiB"
    assert bytes_text(12) == "12 B"
