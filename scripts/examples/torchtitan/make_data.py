"""A data set and a tokenizer for torchtitan's own data loader, generated here so that nothing has to be downloaded.

    python make_data.py FOLDER

writes FOLDER/c4, a folder that `datasets` reads as the C4 data set (configuration "en", splits "train" and
"validation", JSON lines with the text under "text"), and FOLDER/tokenizer, a tokenizer with one token per word. The
vocabulary fits the smallest flavor of torchtitan's Llama 3 ("debugmodel", 2048 tokens); other flavors have larger
ones. The files are the same each time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

_SHARDS = 32  # files of the training split, so that up to 32 data-parallel ranks each read files of their own
_DOCUMENTS_A_SHARD = 16
_WORDS_A_DOCUMENT = 1500
_VOCABULARY = 2000
_SPECIAL_TOKENS = ("<unknown>", "<begin>", "<end>")

_DESCRIPTION = """\
---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/train-*.json
  - split: validation
    path: en/validation-*.json
---
"""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: make_data.py FOLDER")
    folder = Path(sys.argv[1])
    words = _words(random.Random(0))
    _write_data_set(folder / "c4", words)
    _write_tokenizer(folder / "tokenizer", words)


def _words(chance: random.Random) -> list[str]:
    """Distinct pronounceable words, the most frequent first."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words: dict[str, None] = {}
    while len(words) < _VOCABULARY:
        words["".join(chance.choices(syllables, k=chance.randint(1, 4)))] = None
    return list(words)


def _write_data_set(folder: Path, words: list[str]) -> None:
    (folder / "en").mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(_DESCRIPTION, encoding="utf-8")
    # Zipf's law, as in natural text: the word of rank r is 1/r as frequent as the first.
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    names = [f"train-{shard:05d}" for shard in range(_SHARDS)] + ["validation-00000"]
    for number, name in enumerate(names):
        chance = random.Random(number)
        with (folder / "en" / f"{name}.json").open("w", encoding="utf-8") as file:
            for _ in range(_DOCUMENTS_A_SHARD):
                text = " ".join(chance.choices(words, weights, k=_WORDS_A_DOCUMENT))
                file.write(json.dumps({"text": text}) + "\n")


def _write_tokenizer(folder: Path, words: list[str]) -> None:
    """Write the two files that torchtitan reads from a Hugging Face tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    unknown, begin, end = _SPECIAL_TOKENS
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(_SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {token: number for number, token in enumerate([*_SPECIAL_TOKENS, *words])},
            "unk_token": unknown,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": begin, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main()
