"""Hugging Face's Trainer: a small Llama on random tokens, by DDP, FSDP or DeepSpeed; with evaluation and checkpoints.

torchrun --nproc-per-node 2 transformers_trainer.py [ddp|fsdp|deepspeed|compile]
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

DEEPSPEED = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


class RandomTokens(Dataset):
    def __init__(self, length):
        self.rows = torch.randint(0, 1000, (length, 128), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_of(arguments):
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    return Trainer(model, arguments, train_dataset=RandomTokens(512), eval_dataset=RandomTokens(32))


def main(kind):
    settings = {
        "ddp": {"gradient_checkpointing": True},
        "compile": {"torch_compile": True},
        "fsdp": {
            "fsdp": "full_shard auto_wrap",
            "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "version": 2},
        },
        "deepspeed": {"deepspeed": DEEPSPEED},
    }[kind]
    arguments = TrainingArguments(
        output_dir=f"checkpoints-{kind}",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=6,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        bf16=True,
        dataloader_num_workers=1,
        report_to="none",
        **settings,
    )
    trainer = trainer_of(arguments)
    trainer.train()
    trainer.save_model(f"final-{kind}")
    if kind != "deepspeed":  # which allows one Trainer in a process
        arguments.max_steps = 8
        trainer = trainer_of(arguments)
        trainer.train(resume_from_checkpoint=True)
    print(f"rank {arguments.process_index}: {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ddp")
