"""`maya net show`: the picture of a cluster in the terminal and as SVG."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from helpers.cluster_files import FABRICS, text_of

from maya.cli.main import main
from netmodel.cluster import cluster_names

_SVG = "{http://www.w3.org/2000/svg}"


def _show(*words: str) -> Result:
    return CliRunner().invoke(main, ["net", "show", *words])


def test_the_catalogue_is_listed() -> None:
    lines = _show().output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == cluster_names()
    [h100] = [line for line in lines if line.startswith("dgx-h100")]
    assert " ".join(h100.split()) == (
        "dgx-h100 h100 8 NVSwitch 450 GB/s 8 × 400 Gbps rail-optimised DGX H100, NDR InfiniBand"
    )


def test_commands_are_listed() -> None:
    result = CliRunner().invoke(main, ["net"])
    assert "show" in result.output


def test_a_preset_is_drawn() -> None:
    result = _show("dgx-h100", "--gpus", "1024")
    assert result.exit_code == 0
    text = result.output
    assert "1024 GPUs (h100) in 128 nodes" in text
    assert "cpu1 ─┬─ pcie4 ── gpu4 nic4" in text
    assert "spine   16 switches" in text
    assert "1024 cables of 400 Gbps up, oversubscription 1:1" in text
    assert "bisection bandwidth 25.6 TB/s" in text
    assert "node0/gpu0 node0/pcie0 node0/nic0 leaf0 node1/nic0 node1/pcie0 node1/gpu0" in text
    assert "\nSources  NVIDIA DGX H100 User Guide" in text
    assert "\nTimes of collectives  fitted: " in text


def test_a_mesh_is_drawn_as_nvidia_smi_does() -> None:
    lines = [" ".join(line.split()) for line in _show("dgx-1v").output.splitlines()]
    assert "gpu3 2 1 2 · 1" in lines


def test_an_oversubscribed_tree_says_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text_of("oversubscribed"))
    text = _show(str(file), "--gpus", "64").output
    assert "oversubscription 2:1" in text
    assert "50% of what their NICs could send" in text


def test_faults_are_drawn(tmp_path: Path) -> None:
    svg = tmp_path / "faults.svg"
    result = _show("pcie-box", "--gpus", "576", "--fault", "spine1", "--fault", "node1/nic0=25%", "--svg", str(svg))
    assert result.exit_code == 0
    assert "spine1: lost" in result.output
    assert "node1/nic0: 0.25 of its rate left" in result.output
    dashed = [line for line in ElementTree.parse(svg).iter(f"{_SVG}line") if line.get("stroke-dasharray")]
    assert len(dashed) == 3  # from spine1 to each leaf


@pytest.mark.parametrize("name", cluster_names())
@pytest.mark.parametrize("gpus", [1, 200])
def test_every_preset_as_svg(tmp_path: Path, name: str, gpus: int) -> None:
    svg = tmp_path / "drawing.svg"
    assert _show(name, "--gpus", str(gpus), "--svg", str(svg)).output.endswith(f"Drawing  {svg}\n")
    root = ElementTree.parse(svg).getroot()
    assert root.tag == f"{_SVG}svg"
    texts = [element.text for element in root.iter(f"{_SVG}text")]
    assert "gpu0" in texts
    assert "leaf0" in texts
    assert "node0" in texts
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for box in root.iter(f"{_SVG}rect"):
        if "%" not in box.get("width", ""):
            assert 0 <= float(box.get("x", 0)) <= width - float(box.get("width", 0))
            assert 0 <= float(box.get("y", 0)) <= height - float(box.get("height", 0))


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_fabric_is_drawn(tmp_path: Path, fabric: str) -> None:
    file, svg = tmp_path / "mine.toml", tmp_path / "drawing.svg"
    file.write_text(text_of(fabric).replace('"made up"', '"5 < 6 & \\"7\\""'))
    result = _show(str(file), "--gpus", "48", "--svg", str(svg))
    assert result.exit_code == 0, result.output
    assert "12 nodes of 2 NICs" in result.output
    ElementTree.parse(svg)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dgx-h10"], 'Error: unknown cluster "dgx-h10" (did you mean dgx-h100'),
        (["dgx-h100", "--gpus", "0"], "0 is not in the range x>=1"),
        (["dgx-h100", "--fault", "a b"], '"a b" is not a fault; write a link as "node3/nic5"'),
        (["dgx-h100", "--fault", "node9/nic0"], 'fault of "node9/nic0": nothing here has that name'),
        (["dgx-1v", "--gpus", "100000"], "raise fabric.radix"),
        (["dgx-h100", "--svg", "/nowhere/at/all.svg"], "cannot write /nowhere/at/all.svg: No such file"),
    ],
)
def test_errors_are_explained(words: list[str], message: str) -> None:
    result = _show(*words)
    assert result.exit_code != 0
    assert message in result.output


def test_the_documentation_shows_the_current_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "clusters.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    _show("dgx-h100", "--gpus", "256", "--svg", "dgx-h100.svg")
    assert Path("dgx-h100.svg").read_bytes() == (docs / "images" / "dgx-h100.svg").read_bytes()
    toml = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    Path("lab.toml").write_text(toml[0], encoding="utf-8")
    Path("graph.toml").write_text(toml[0].split("[fabric]")[0] + toml[1], encoding="utf-8")
    shown = re.findall(r"^    maya net show([^\n]*)\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert len(shown) == 3
    for words, output in shown:
        assert _show(*words.split()).output == output
    assert "row-a: core (4 × 800 Gbps), node0-15" in _show("graph.toml", "--gpus", "256").output
