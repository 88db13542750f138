"""Train a vision transformer on random images, with bf16 autocast."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class VisionTransformer(nn.Module):
    def __init__(self, image, patch, hidden, layers, heads, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (image // patch) ** 2, hidden))
        layer = nn.TransformerEncoderLayer(
            hidden, heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    model = VisionTransformer(args.image, args.patch, args.hidden, args.layers, args.heads, args.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.image, args.image).to(device)
        labels = torch.randint(args.classes, (args.batch,)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        right = (logits.argmax(dim=1) == labels).sum().item()
        print(f"step {step}  loss {loss.item():.4f}  {right} of {len(labels)} right")


if __name__ == "__main__":
    main()
