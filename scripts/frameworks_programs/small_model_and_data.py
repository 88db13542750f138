"""Make what command-line trainers read: a tokenizer, a small Llama of random weights, and data sets as JSON lines.

    python small_model_and_data.py FOLDER

writes FOLDER/model (transformers' format, with the tokenizer) and FOLDER/{text,chat,prompts,preferences}/train.jsonl.
"""

import json
import random
import sys
from pathlib import Path

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def write_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, "user", "assistant", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(names)


def write_model(folder, words):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=3,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_data(folder):
    chance = random.Random(0)

    def sentence(length):
        return " ".join(chance.choices(WORDS, k=length))

    def said(role):
        return {"role": role, "content": sentence(20)}

    kinds = {
        "text": lambda: {"text": sentence(200)},
        "chat": lambda: {"messages": [said("user"), said("assistant")]},
        "prompts": lambda: {"prompt": [said("user")]},
        "preferences": lambda: {"prompt": sentence(10), "chosen": sentence(20), "rejected": sentence(20)},
        "instructions": lambda: {"instruction": sentence(10), "input": "", "output": sentence(20)},
    }
    for kind, make in kinds.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        with (folder / kind / "train.jsonl").open("w") as file:
            file.writelines(json.dumps(make()) + "\n" for _ in range(256))


def main():
    folder = Path(sys.argv[1])
    words = write_tokenizer(folder / "model")
    write_model(folder / "model", words)
    write_data(folder)


if __name__ == "__main__":
    main()
