"""torchtitan as published trains Llama 3 8B: FSDP on 8 ranks, plus tensor parallel on 16, plus a pipeline on 32."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED_GIB = 82.4  # by torchtitan's team, for the job of fsdp.toml on H100s of 96 GB
STEPS = 4


def run_job(folder: Path, job: str, ranks: int) -> dict[int, list[float]]:
    """Runs scripts/torchtitan and returns, for each step, the memory in GiB that the ranks say they needed."""
    command = [str(ROOT / "scripts" / "torchtitan"), "--out", str(folder / "run"), job]
    ended = subprocess.run(
        [*command, "--job.dump_folder", str(folder / "output")], capture_output=True, text=True, timeout=3600
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output[-10000:]
    assert "is not emulated" not in output
    assert output.count("Training completed") == 1  # rank 0 says so
    assert len(list((folder / "run").glob("rank*.trace"))) == ranks
    memory: dict[int, list[float]] = {}
    for step, gib in re.findall(r"step: +(\d+) .* memory: +([\d.]+)GiB", output):
        memory.setdefault(int(step), []).append(float(gib))
    assert {step: len(said) for step, said in memory.items()} == dict.fromkeys(range(1, STEPS + 1), ranks)
    return memory


@pytest.mark.slow
def test_fsdp_needs_the_memory_that_was_measured(tmp_path: Path) -> None:
    memory = run_job(tmp_path, "fsdp", 8)
    assert len(set(memory[STEPS])) == 1, "all ranks do the same"
    assert memory[STEPS] == memory[STEPS - 1]
    assert abs(memory[STEPS][0] / PUBLISHED_GIB - 1) < 0.02
    packages = ROOT / ".venv" / "torchtitan" / "packages"
    assert not [path.name for path in packages.iterdir() if path.name.startswith(("torch-", "nvidia"))]


@pytest.mark.slow
def test_tensor_parallel_trains(tmp_path: Path) -> None:
    memory = run_job(tmp_path, "fsdp_tp", 16)
    assert len(set(memory[STEPS])) == 1


@pytest.mark.slow
def test_a_pipeline_trains(tmp_path: Path) -> None:
    memory = run_job(tmp_path, "fsdp_tp_pp", 32)
    # Stages differ: an early one keeps the activations of more micro-batches than a late one.
    assert max(memory[STEPS]) > 1.3 * min(memory[STEPS])


def test_generated_data_trains(tmp_path: Path) -> None:
    make_data = ROOT / "scripts" / "examples" / "torchtitan" / "make_data.py"
    for name in ("first", "second"):
        subprocess.run([sys.executable, str(make_data), str(tmp_path / name)], check=True, timeout=60)
    files = sorted(path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*") if path.is_file())
    assert len(files) == 32 + 1 + 1 + 2
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()

    tokenizer = json.loads((tmp_path / "first" / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= 2048
    for file in (tmp_path / "first" / "c4" / "en").iterdir():
        for document in file.read_text(encoding="utf-8").splitlines():
            assert set(json.loads(document)["text"].split()) <= vocabulary.keys()
