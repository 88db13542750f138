"""Megatron-core's training loop on random tokens; the options are those of its `pretrain_gpt.py`.

torchrun --nproc-per-node 4 megatron_pretrain.py --tensor-model-parallel-size 2 --num-layers 4 ...
"""

from functools import partial

import torch
from megatron.core.enums import ModelType
from megatron.training import get_args, pretrain
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args
from torch.utils.data import Dataset


class RandomTokens(Dataset):
    def __init__(self, length, sequence, words):
        self.length, self.sequence, self.words = length, sequence, words

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = torch.randint(0, self.words, (self.sequence + 1,), generator=torch.Generator().manual_seed(int(index)))
        return {"tokens": tokens[:-1], "labels": tokens[1:], "positions": torch.arange(self.sequence)}


def datasets(samples, vp_stage=None):
    args = get_args()
    return tuple(RandomTokens(max(number or 0, 1), args.seq_length, args.padded_vocab_size) for number in samples)


datasets.is_distributed = True  # every rank makes its own


def loss_of(output):
    loss, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int, device=output.device)
    return loss, count, {"lm loss": torch.cat([loss.detach().view(1), count.view(1)])}


def forward_step(batches, model):
    batch = {name: tensor.cuda(non_blocking=True) for name, tensor in next(batches).items()}
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])
    return output, partial(loss_of)


if __name__ == "__main__":
    args = parse_and_validate_args()
    config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
    pretrain(config, datasets, ModelType.encoder_or_decoder, forward_step)
