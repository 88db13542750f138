"""Layers of Megatron-core itself, for scripts/host_of_models: to compare their host time with that of train_gpt.py.

In: a folder with an unpacked wheel of megatron-core 0.5 (PyPI), and the number of layers. Out: a function that runs one
step, forward and backward, in fp16 with activation recomputation. torch's ops replace Apex, Transformer Engine and
Megatron-core's own CUDA kernels; biases, GELU and dropout are not fused, as TorchScript has no GPU to compile for.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEQUENCE, HIDDEN, HEADS = 1024, 1024, 16


def step_of(folder: Path, layers: int) -> Callable[[], None]:
    sys.path.insert(0, str(folder))
    import torch
    import torch.distributed as dist

    _replace_kernels(torch)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    from megatron.core import parallel_state  # type: ignore[import-not-found]
    from megatron.core.fusions import fused_layer_norm  # type: ignore[import-not-found]
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # type: ignore[import-not-found]
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # type: ignore[import-not-found]
    from megatron.core.transformer import transformer_block  # type: ignore[import-not-found]
    from megatron.core.transformer.transformer_config import TransformerConfig  # type: ignore[import-not-found]

    parallel_state.initialize_model_parallel(1, 1)
    model_parallel_cuda_manual_seed(1)
    transformer_block.TENorm = fused_layer_norm.FusedLayerNorm
    # Megatron-core looks up the version of Apex in every call. Older Megatron-LM did not.
    signature = types.SimpleNamespace(args=[])
    fused_layer_norm.inspect = types.SimpleNamespace(getfullargspec=lambda _: signature)
    config = TransformerConfig(
        num_layers=layers, hidden_size=HIDDEN, num_attention_heads=HEADS, fp16=True, params_dtype=torch.half,
        hidden_dropout=0.1, attention_dropout=0.1, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=True, persist_layer_norm=True, attention_softmax_in_fp32=False,
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1,
    )  # fmt: skip
    block = transformer_block.TransformerBlock(config, get_gpt_layer_local_spec()).cuda().half()
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda")

    def step() -> None:
        x = torch.empty(SEQUENCE, 1, HIDDEN, dtype=torch.half, device="cuda", requires_grad=True)
        block(x, mask).sum().backward()
        for parameter in block.parameters():
            parameter.grad = None

    return step


def _replace_kernels(torch: Any) -> None:
    from train_gpt_megatron import Norm  # type: ignore[import-not-found]

    class FastLayerNorm:
        forward = Norm.forward

        @staticmethod
        def apply(x: Any, weight: Any, bias: Any, epsilon: float) -> Any:
            return Norm.apply(x, weight, bias, weight.shape, epsilon)

    _module("apex.contrib.layer_norm.layer_norm", FastLayerNormFN=FastLayerNorm)
    _module("apex.normalization.fused_layer_norm", FusedLayerNormAffineFunction=Norm)
    _module("scaled_masked_softmax_cuda", get_batch_per_block=lambda *_: 4)
    _module(
        "scaled_upper_triang_masked_softmax_cuda",
        forward=lambda scores, _: scores.softmax(-1),
        backward=lambda gradient, shares, _: torch.ops.aten._softmax_backward_data(gradient, shares, -1, shares.dtype),
    )
    linear = "ColumnParallelLinear"
    names = ("DotProductAttention", f"LayerNorm{linear}", linear, "Norm", "RowParallelLinear")
    classes = {f"TE{name}": type(f"TE{name}", (torch.nn.Module,), {}) for name in names}
    sys.modules["megatron.core.transformer.custom_layers.transformer_engine"] = _new(
        "transformer_engine", SplitAlongDim=None, get_cpu_offload_context=None, **classes
    )


def _module(name: str, **content: Any) -> None:
    """Make an empty module, and the packages that contain it."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:count]), _new(parts[count - 1]))
    sys.modules[name] = _new(name, **content)


def _new(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    return module
