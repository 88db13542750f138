"""Published training runs as jobs of scripts/examples/train_gpt.py: rows of a table in, command lines out.

The table (CSV) has a row for each run: source, model, layers, hidden, heads, kv_heads, ffn, vocab, seq, micro_batch,
global_batch, dtype, gpus, gpu_type, tp, pp, cp, ep, dp_kind, activation_ckpt, metric, value, peak_mem_GiB, notes. The
row leaves out properties of its framework (its attention, when it reduces gradients, how it cuts pipelines). This file
adds them, one function for each framework, from the frameworks' code and launch scripts.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, str]


class NotExpressible(Exception):
    """Why a row cannot be run."""


@dataclass(frozen=True)
class TrainingJob:
    """The job for a row, and its measurements."""

    number: int  # index of the row, from 0
    sweep: str  # rows of one sweep are compared in their order
    label: str
    gpus: int
    gpu: str
    cluster: str  # a name, or "name:nics=4" for a preset with other network cards
    options: tuple[str, ...]  # options of train_gpt.py, without --micro-batches
    micro_batches: int  # per step
    stages: int
    measured_ms: float  # per step
    measured_memory: float | None  # as printed
    memory_unit: int  # bytes in the unit of the printed value
    memory_kind: str  # "allocated" or "reserved"
    host: str = "reference"  # name in the catalogue, docs/host-time.md
    host_op: str = ""  # cost of an op, if it differs from the host's file

    @property
    def counts(self) -> list[int]:
        """Micro-batches of the steps to run: the step's own number, or two smaller ones to extrapolate from."""
        fewer = max(2, self.stages)
        if self.micro_batches <= fewer + max(2, self.stages):
            return [self.micro_batches] * 2
        return [fewer, fewer, fewer + max(2, self.stages)]

    @property
    def representatives(self) -> range:
        """The first rank of each pipeline stage: train_gpt.py numbers the ranks of a stage in a row."""
        return range(0, self.gpus, self.gpus // self.stages)

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens per GPU in a step."""
        option = dict(itertools.pairwise(self.options))
        batch = self.micro_batches * int(option["--micro-batch"]) * int(option["--sequence"])
        return batch / (int(option["--tensor"]) * self.stages)

    def step_ms(self, steps: list[float]) -> float:
        """The length of a whole step, from the lengths of the steps that ran."""
        counts = self.counts
        if len(steps) != len(counts):
            raise ValueError(f"{len(steps)} steps were found in a run of {len(counts)}")
        if len(counts) == 2:
            return steps[-1]
        each = (steps[2] - steps[1]) / (counts[2] - counts[1])
        return steps[1] + each * (self.micro_batches - counts[1])


def read_rows(file: Path) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def job_of(number: int, row: Row) -> TrainingJob:
    """The job for a row; `NotExpressible` if there is none."""
    for part, make in _FRAMEWORKS.items():
        if part in row["script/framework"]:
            return make(number, row)
    raise NotExpressible(f"{row['script/framework']}: no mapping")


def _number(row: Row, name: str) -> int:
    text = row[name].replace("k", "000")
    if not text:
        raise NotExpressible(f"{name} is not given")
    if not text.isdigit():
        raise NotExpressible(f"{name} is {row[name]!r}")
    return int(text)


def _refuse_unknown(row: Row) -> None:
    if row["cp"] not in ("", "1"):
        raise NotExpressible("context parallel")
    if row["ep"] not in ("", "1", "n/a"):
        raise NotExpressible("mixture of experts")
    if row["float8"] or "8" in row["dtype"].replace("bf16", ""):
        raise NotExpressible("8-bit floating point")


def _shape(row: Row, vocabulary: int) -> list[str]:
    options = {name: _number(row, name) for name in ("layers", "hidden", "heads", "ffn")}
    options["kv-heads"] = _number(row, "kv_heads") if row["kv_heads"] else options["heads"]
    options |= {"vocabulary": vocabulary, "sequence": _number(row, "seq"), "micro-batch": _number(row, "micro_batch")}
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def _step_ms(row: Row) -> float:
    value = float(row["value"])
    if row["metric"] == "step_time_ms":
        return value
    if row["metric"] == "step_time_s":
        return 1000 * value
    if row["metric"] == "sequences/s":
        return 1000 * _number(row, "global_batch") / value
    if row["metric"] == "tokens/s/GPU":
        return 1000 * _number(row, "global_batch") * _number(row, "seq") / (_number(row, "gpus") * value)
    raise NotExpressible(f"metric {row['metric']!r}")


def _job(
    number: int, row: Row, sweep: str, gpu: str, cluster: str, options: list[str], *,
    memory_unit: int = 2**30, memory_kind: str = "allocated", host: str = "reference", host_op: str = "",
) -> TrainingJob:  # fmt: skip
    gpus, micro_batch = _number(row, "gpus"), _number(row, "micro_batch")
    tensor, stages = int(row["tp"] or 1), int(row["pp"] or 1)
    replicas = gpus // (tensor * stages)
    if replicas * tensor * stages != gpus:
        raise NotExpressible(f"{gpus} GPUs are no multiple of {tensor} x {stages}")
    heads, layers = _number(row, "heads"), _number(row, "layers")
    if heads % tensor or layers < stages:
        raise NotExpressible(f"{heads} heads, {layers} layers on {tensor} x {stages}")
    micro_batches = max(1, round(_number(row, "global_batch") / (micro_batch * replicas)))
    parallel = ["--tensor", str(tensor), "--pipeline", str(stages)]
    label = (
        f"{row['model'].strip()} {layers}x{row['hidden']} s{row['seq']} mb{micro_batch}x{micro_batches} "
        f"{gpus} GPUs tp{tensor} pp{stages} dp{replicas}"
    )
    memory = float(row["peak_mem_GiB"]) if row["peak_mem_GiB"] else None
    return TrainingJob(
        number, sweep, label, gpus, gpu, cluster, (*options, *parallel), micro_batches, stages, _step_ms(row), memory,
        memory_unit, memory_kind, host, host_op,
    )  # fmt: skip


def _nanotron(number: int, row: Row) -> TrainingJob:
    """Llama, FlashAttention 2, tensor and sequence parallelism, gradients in float32, DDP-like buckets."""
    options = ["--family", "llama", *_shape(row, _number(row, "vocab")), "--balance-head", "--bucket-bytes", "50000000"]
    if int(row["tp"]) > 1:
        options += ["--sequence-parallel", "--keep-gathered"]
    if row["model"] in ("Llama-like 1B", "Llama-like 3B") and row["pp"] == "1":
        options.append("--tied")
    options += ["--data", "zero1" if row["dp_kind"].startswith("zero-1") else "buckets"]
    sweep = f"nanotron {row['model'].removeprefix('Llama-like ')}"
    return _job(number, row, sweep, "h100", "aws-p5", options, memory_unit=10**9, memory_kind="reserved")


_A100_HOST = "dgx-a100"

# A layer of Megatron-core, by the ops of `train_gpt.py --megatron --recompute all`, takes the host 2.79 times as long
# as an op of a GPT that keeps its activations (docs/host-time.md), which takes 8.1 us.
_MEGATRON_OP = "22.7us"


def _megatron_vocabulary(vocabulary: int, tensor: int) -> int:
    """The vocabulary, padded as Megatron-LM does it."""
    return -(-vocabulary // (128 * tensor)) * 128 * tensor


def _megatron_deepspeed(number: int, row: Row) -> TrainingJob:
    """GPT from before FlashAttention: unfused attention with dropout, gradients reduced after backward, in fp16, and
    Megatron-LM's host code around the ops. vTrain's rows leave these out; assumed: fp16, 50,257 tokens, 80 GB."""
    vocabulary = _number(row, "vocab") if row["vocab"] else 50257
    tensor = int(row["tp"])
    if "chronicles-prequel" in row["source"]:
        row = _with_bigscience_shape(row, vocabulary)
    dtype = row["dtype"] or "fp16"
    options = ["--family", "gpt", *_shape(row, _megatron_vocabulary(vocabulary, tensor))]
    options += ["--attention", "unfused", "--dropout", "0.1", "--recompute", "all", "--megatron"]
    options += ["--dtype", dtype, "--reduce-dtype", "fp32" if dtype == "bf16" else "fp16"]
    options += ["--no-overlap", "--bucket-bytes", "500000000"]
    options += ["--data", "zero1" if row["dp_kind"].startswith("zero-1") else "buckets"]
    if row["pp"] == "1":
        options.append("--tied")
    else:
        options.append("--wait-for-messages")
    source, memory_kind = row["source"], "allocated"
    if "ground_truth_single" in source:
        sweep, cluster, gpu = f"vTrain one node, hidden {row['hidden']}", "dgx-a100", "a100-80"
    elif "ground_truth_multi" in source:
        sweep, cluster, gpu = f"vTrain {row['model'].strip()}", "dgx-a100:nics=4", "a100-80"
    elif "V100" in row["gpu_type"]:
        raise NotExpressible("nodes of four V100 with Omni-Path: no such cluster")
    else:
        sweep, cluster, gpu = "bigscience 176B", "dgx-a100:nics=4,nic_rate=100Gbps", "a100-80"
        memory_kind = "reserved"  # nvidia-smi's figure, which also has CUDA's context and NCCL's buffers
        # "type:transformer|embedding", which came with bf16, counts the embedding and the head as a layer each; before,
        # "the last stage has 1 block, while the rest have 7" of 78.
        options.append("--short-ends" if dtype == "bf16" else "--fill-stages")
    return _job(
        number, row, sweep, gpu, cluster, options, memory_kind=memory_kind, host=_A100_HOST, host_op=_MEGATRON_OP
    )


def _with_bigscience_shape(row: Row, vocabulary: int) -> Row:
    """The row with what its source (chronicles-prequel.md) gives elsewhere: "all NHEADS=64" if not said otherwise; the
    number of layers follows from that of the parameters."""
    hidden, parameters = _number(row, "hidden"), float(row["params"].removesuffix("B")) * 1e9
    layers = round((parameters - vocabulary * hidden) / (12 * hidden**2))
    return {**row, "heads": row["heads"] or "64", "layers": row["layers"] or str(layers)}


def _llm_foundry(number: int, row: Row) -> TrainingJob:
    """MPT under FSDP: learned positions, gradients reduced with every micro-batch. The launch script's attention is
    FlashAttention 1 in Triton. torch has no such kernel; the memory-efficient one of that time replaces it."""
    _refuse_unknown(row)
    pure = "MPmode PURE" in row["notes"]
    options = ["--family", "gpt", *_shape(row, _number(row, "vocab")), "--tied", "--sync-every", "--in-place-loss"]
    options += ["--attention", "efficient"]
    options += ["--reduce-dtype", "bf16" if pure else "fp32"]
    options += ["--data", "fsdp-keep" if "zero-2" in row["dp_kind"] else "fsdp"]
    if row["activation_ckpt"] == "full":
        options += ["--recompute", "all"]
    elif row["activation_ckpt"] != "none":
        raise NotExpressible(f"activation_ckpt {row['activation_ckpt']!r}")
    gpu = {"A100-40GB": "a100-40", "A100-80GB": "a100-80", "H100-80GB": "h100"}[row["gpu_type"]]
    cluster, host = ("dgx-h100", "reference") if gpu == "h100" else ("dgx-a100", _A100_HOST)
    return _job(number, row, f"llm-foundry {gpu}", gpu, cluster, options, host=host)


def _bert(number: int, row: Row) -> TrainingJob:
    """BERT pre-training with torch's DDP; LAMB is a fused AdamW here."""
    if "V100" in row["gpu_type"]:
        raise NotExpressible("torch for CUDA 13 has no kernels for V100")
    if row["seq"] == "512":  # more tokens a second than with 128, on V100 more operations than its peak
        raise NotExpressible("padding was not computed, and its share of the sequences is not given")
    dtype = {"amp fp16": "fp16", "tf32": "tf32"}[row["dtype"]]
    options = ["--family", "bert", *_shape(row, _number(row, "vocab")), "--tied", "--dropout", "0.1"]
    options += ["--attention", "unfused", "--dtype", dtype, "--data", "ddp"]
    options += ["--predictions", "20"]
    return _job(number, row, "BERT A100", "a100-80", "dgx-a100", options, host=_A100_HOST)


def _simumax(number: int, row: Row) -> TrainingJob:
    """Megatron-LM with Transformer Engine: sequence parallelism, distributed optimizer, nothing overlapped; GEMMs
    accumulate into the gradients, which is its default; the loss is fused ("cef" in the runs' names)."""
    _refuse_unknown(row)
    tensor = int(row["tp"])
    options = ["--family", "llama", *_shape(row, _megatron_vocabulary(_number(row, "vocab"), tensor))]
    options += ["--data", "zero1", "--no-overlap", "--bucket-bytes", "160000000"]
    options += ["--accumulate-in-products", "--in-place-loss"]
    if tensor > 1:
        options.append("--sequence-parallel")
    return _job(number, row, "SimuMax B200", "b200", "dgx-b200", options)


def _torchtitan(number: int, row: Row) -> TrainingJob:
    raise NotExpressible("torchtitan itself runs: scripts/torchtitan")


def _megatron_bridge(number: int, row: Row) -> TrainingJob:
    _refuse_unknown(row)
    raise NotExpressible("options of the recipe are not given")


def _convolutions(number: int, row: Row) -> TrainingJob:
    raise NotExpressible("the batch size is not given")


_FRAMEWORKS: dict[str, Callable[[int, Row], TrainingJob]] = {
    "torchtitan": _torchtitan,
    "nanotron": _nanotron,
    "Megatron-LM 23e00ed": _simumax,
    "Megatron-Bridge": _megatron_bridge,
    "Megatron-LM + DeepSpeed 3D": _megatron_deepspeed,
    "Megatron-LM": _megatron_deepspeed,
    "Megatron-DeepSpeed": _megatron_deepspeed,
    "llm-foundry": _llm_foundry,
    "BERT": _bert,
    "ConvNets": _convolutions,
}
