"""torch.distributed.checkpoint: an FSDP2 model and its optimizer, saved by any number of ranks, resumed by any other.

torchrun --nproc-per-node 8 checkpoint.py --folder checkpoints
torchrun --nproc-per-node 4 checkpoint.py --folder checkpoints     # goes on where the eight stopped
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class Training(Stateful):
    """The whole state that a checkpoint restores."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step, self.ranks = model, optimizer, 0, dist.get_world_size()

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step, "ranks": dist.get_world_size()}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step, self.ranks = state["step"], state["ranks"]


def main():
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the checkpoints, one per saved step")
    parser.add_argument("--asynchronous", action="store_true", help="write while training goes on")
    args = parser.parse_args()

    device = start(args)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(args, device)
    for block in model.blocks.values():
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    training = Training(model, optimizer)

    saved = sorted(args.folder.glob("step*/.metadata"))
    if saved:
        dcp.load({"training": training}, checkpoint_id=saved[-1].parent)
        if rank == 0:
            print(f"{ranks} ranks resume at step {training.step}, saved by {training.ranks} ranks")

    # A thread plans and writes while training goes on, so it needs a process group of its own.
    writers = dist.new_group(backend="gloo") if args.asynchronous else None
    writing = None
    for _ in range(args.steps):
        inputs, targets = batch_of(args, training.step, device, rank, ranks)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report(training.step, loss)
        training.step += 1
        if writing is not None:
            writing.result()
        folder = args.folder / f"step{training.step:04}"
        if args.asynchronous:
            writing = dcp.async_save({"training": training}, checkpoint_id=folder, process_group=writers)
        else:
            dcp.save({"training": training}, checkpoint_id=folder)
    if writing is not None:
        writing.result()
    dist.barrier()
    if rank == 0:
        print(f"saved in {folder.name}: {len(list(folder.glob('*.distcp')))} files")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
