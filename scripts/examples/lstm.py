"""Train an LSTM language model on random texts of different lengths."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, hidden, layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens, lengths=None):
        x = self.embedding(tokens)
        if lengths is None:
            x, _ = self.lstm(x)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--packed", action="store_true", help="do not compute the padding")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    model = LanguageModel(args.vocabulary, args.hidden, args.layers, args.dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=args.steps)

    for step in range(args.steps):
        lengths = torch.randint(1, args.sequence + 1, (args.batch,))
        tokens = torch.randint(args.vocabulary, (args.batch, args.sequence + 1))
        padding = torch.arange(args.sequence) >= lengths[:, None]
        inputs = tokens[:, :-1].to(device)
        targets = tokens[:, 1:].masked_fill(padding, -100).to(device)
        logits = model(inputs, lengths if args.packed else None)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
