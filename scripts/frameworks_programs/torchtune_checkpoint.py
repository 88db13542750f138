"""Make what torchtune's recipes read: a small Llama of random weights, a tokenizer of bytes, and instructions as JSON.

    python torchtune_checkpoint.py FOLDER

writes FOLDER/model.pt, FOLDER/tokenizer.model and FOLDER/instructions.json, for torchtune_full.yaml.
"""

import base64
import json
import random
import sys
from pathlib import Path

import torch
from torchtune.models.llama3 import llama3


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    model = llama3(
        vocab_size=128256, num_layers=4, num_heads=4, num_kv_heads=2, embed_dim=128, max_seq_len=512,
        intermediate_dim=256,
    )  # fmt: skip
    torch.save(model.state_dict(), folder / "model.pt")
    lines = [f"{base64.b64encode(bytes([number])).decode()} {number}" for number in range(256)]
    (folder / "tokenizer.model").write_text("\n".join(lines) + "\n")
    chance = random.Random(0)

    def sentence(length):
        return " ".join(chance.choices(["red", "green", "blue", "round", "square"], k=length))

    rows = [{"instruction": sentence(10), "input": "", "output": sentence(20)} for _ in range(200)]
    (folder / "instructions.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
