"""The page of a report, alive in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from helpers.browser import needs_browser, open_page, take_picture
from helpers.report_content import synthetic_content

from maya.report.content import MeshDimension
from maya.report.write import page, write_page

HOSTILE = "</script><script>document.title='hacked'</script>{{style}}<b>&"


@needs_browser
def test_page_draws_itself(tmp_path: Path) -> None:
    opened = open_page(page(synthetic_content(8)), tmp_path)
    assert opened.complaints == []
    assert 'data-ready="true"' in opened.dom
    assert opened.text_of("title") == "train_gpt.py"
    breakdown = opened.text_of("breakdown-table")
    assert "matrix products" in breakdown
    assert "410 ms" in breakdown
    assert "57.1 %" in breakdown
    assert "718 ms" in opened.text_of("bars")
    assert "flash_fwd_kernel" in opened.text_of("kernels-table")
    assert "at most 63.5 GiB of 79.0 GiB" in opened.text_of("memory-details")
    assert "fitted" in opened.text_of("origins-network")
    assert "719 ms from 3.60 s, step 6" in opened.text_of("streams-range")


@needs_browser
def test_texts_of_a_run_are_escaped(tmp_path: Path) -> None:
    opened = open_page(page(synthetic_content(2, title=HOSTILE)), tmp_path)
    assert opened.complaints == []
    assert opened.text_of("title") == HOSTILE
    assert "<title>hacked" not in opened.dom


@needs_browser
def test_keys_move_and_zoom(tmp_path: Path) -> None:
    actions = """
      const press = (id, ...keys) => keys.forEach((key) =>
        document.getElementById(id).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })));
      press("streams-chart", "+", "+", "ArrowDown", "n", "n");
      press("traffic-map", "ArrowRight");
      press("ranks-map", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight");
    """
    opened = open_page(page(synthetic_content(8)), tmp_path, actions=actions)
    assert opened.complaints == []
    assert "rank 5" in opened.text_of("ranks-details")
    assert "Streams shown below: rank 5" in opened.text_of("ranks-details")
    assert "rank 0 to rank 1: 70.0 GiB" in opened.text_of("traffic-details")


@needs_browser
def test_events_are_found_and_described(tmp_path: Path) -> None:
    actions = """
      const find = document.getElementById("streams-find");
      find.value = "flash";
      find.dispatchEvent(new Event("input"));
      const chart = document.getElementById("streams-chart");
      chart.dispatchEvent(new KeyboardEvent("keydown", { key: "n" }));
    """
    opened = open_page(page(synthetic_content(8)), tmp_path, actions=actions)
    assert opened.complaints == []
    said = opened.text_of("streams-details")
    assert "stream 7: flash_fwd_kernel" in said
    assert "launched 400 µs before" in said
    assert "duration: measured, ± 4 %" in said


@needs_browser
def test_clicks_sort_tables_and_switch_the_theme(tmp_path: Path) -> None:
    light = open_page(page(synthetic_content(1)), tmp_path)  # a job of one rank is drawn as well
    assert light.complaints == []
    assert 'data-theme="light"' in light.dom
    sort_twice = "document.querySelectorAll('#kernels-table th button')[4].click();" * 2
    actions = sort_twice + "document.getElementById('theme').click();"
    opened = open_page(page(synthetic_content(8)), tmp_path, actions=actions)
    rows = opened.text_of("kernels-table")
    assert rows.index("vectorized_elementwise") < rows.index("flash_fwd") < rows.index("s16816gemm")
    assert 'aria-sort="ascending"' in opened.dom
    assert 'data-theme="dark"' in opened.dom


@needs_browser
def test_a_thousand_ranks_are_drawn(tmp_path: Path) -> None:
    opened = open_page(page(synthetic_content(1024)), tmp_path)
    assert opened.complaints == []
    assert 'data-ready="true"' in opened.dom
    assert "one of 1,023 alike" in opened.text_of("streams-rank")


@needs_browser
def test_thousands_of_ranks_are_drawn_by_their_coordinates_in_the_mesh(tmp_path: Path) -> None:
    mesh = [MeshDimension(8, 1), MeshDimension(64, 8), MeshDimension(16, 512)]
    content = replace(synthetic_content(8192), mesh=mesh)
    down = "const map = document.getElementById('ranks-map');" + (
        "map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));"
        "map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));"
    )
    opened = open_page(page(content), tmp_path, actions=down)
    assert opened.complaints == []
    assert "by mesh coordinates" in opened.dom
    assert "coordinates 0, 1, 1 in the mesh" in opened.text_of("ranks-details")  # rank 9, in the second line


@needs_browser
def test_page_becomes_a_picture(tmp_path: Path) -> None:
    write_page(synthetic_content(8), tmp_path / "report.html")
    take_picture(tmp_path / "report.html", tmp_path / "report.png", "--window-size=1280,3000")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.png").stat().st_size > 50_000
