"""Trains on a device mesh: collectives along every dimension, send/recv along the first one.

    represented_mesh.py 2x2x4 SEED [log]

The seed decides which collectives there are, and on which dimensions a rank's layers depend. log: rank 0 prints its
loss, the others do not.
"""

import os
import random
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

sizes = [int(size) for size in sys.argv[1].split("x")]
chance = random.Random(int(sys.argv[2]))
rank_0_logs = "log" in sys.argv
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", tuple(sizes), mesh_dim_names=[f"dimension{number}" for number in range(len(sizes))])
groups = [mesh.get_group(number) for number in range(len(sizes))]
place = mesh.get_coordinate()
calls = [
    (
        chance.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
        chance.randrange(len(sizes)),
    )
    for _ in range(5)
]
width = 64
for index, size in zip(place, sizes, strict=True):
    width += 32 * chance.choice([0, index, int(index < chance.randrange(size + 1))])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(2)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def communicate(name: str, number: int) -> None:
    group, size = groups[number], sizes[number]
    one, every = torch.zeros(512, device="cuda"), torch.zeros(512 * size, device="cuda")
    if name == "all_reduce":
        dist.all_reduce(one, group=group)
    elif name == "all_gather":
        dist.all_gather_into_tensor(every, one, group=group)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(one, every, group=group)
    elif name == "all_to_all":
        dist.all_to_all_single(every, torch.zeros_like(every), group=group)
    else:
        dist.broadcast(one, group=group, group_src=0)


for _ in range(3):
    passed_on = torch.zeros(256, device="cuda")
    if place[0] > 0:
        dist.recv(passed_on, group=groups[0], group_src=place[0] - 1)
    if place[0] < sizes[0] - 1:
        dist.send(passed_on, group=groups[0], group_dst=place[0] + 1)
    loss = model(torch.zeros(16, width, device="cuda")).sum()
    loss.backward()
    for name, number in calls:
        communicate(name, number)
    dist.all_reduce(torch.zeros(8, device="cuda"))
    optimizer.step()
    if not rank_0_logs or dist.get_rank() == 0:
        print("loss", loss.item())
dist.destroy_process_group()
