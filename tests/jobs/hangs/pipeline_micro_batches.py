"""Stages of a pipeline that disagree about the number of micro-batches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
stage = PipelineStage(nn.Linear(16, 16).to(device), rank, 2, device)
schedule = ScheduleGPipe(stage, n_microbatches=2 if rank == 0 else 4)
inputs = torch.ones(8, 16, device=device)
schedule.step(inputs) if rank == 0 else schedule.step()  # waits
torch.cuda.synchronize()
dist.destroy_process_group()
