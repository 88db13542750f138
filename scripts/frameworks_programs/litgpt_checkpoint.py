"""Make what `litgpt finetune` reads: a small GPT of random weights with a tokenizer, and instructions as JSON.

    python litgpt_checkpoint.py FOLDER

writes FOLDER/checkpoint and FOLDER/instructions.json.
"""

import json
import random
import sys
from pathlib import Path

import torch
from litgpt import GPT, Config
from litgpt.utils import save_config

SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]


def main():
    folder = Path(sys.argv[1])
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    config = Config.from_name("pythia-14m")
    torch.manual_seed(0)
    torch.save(GPT(config).state_dict(), checkpoint / "lit_model.pth")
    save_config(config, checkpoint)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    added = [
        {"id": number, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, word in enumerate(SPECIAL)
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    } | dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(names))
    chance = random.Random(0)

    def sentence(length):
        return " ".join(chance.choices(WORDS, k=length))

    rows = [{"instruction": sentence(10), "input": "", "output": sentence(20)} for _ in range(200)]
    (folder / "instructions.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
