"""Data parallelism of train_gpt.py as Megatron-LM does it: parameters and gradients in flat buckets.

Gradients of several micro-batches are summed in a buffer (in float32 or the parameters' dtype), averaged over the
ranks bucket by bucket, at the end or during the last backward pass, and used to step a float32 copy of the parameters.
With `shard` (ZeRO-1) each rank reduces, keeps and steps its part of a bucket only, and the parts are gathered.
"""

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, parameters, group, dtype, shard):
        self.ranks = dist.get_world_size(group)
        rank = dist.get_rank(group)
        self.group, self.shard, self.expected = group, shard and self.ranks > 1, len(parameters)
        size = sum(parameter.numel() for parameter in parameters)
        size += -size % (128 * self.ranks)
        first = parameters[0]
        self.weights = torch.zeros(size, dtype=first.dtype, device=first.device)  # with padding of the last part
        self.gradients = torch.zeros(size, dtype=dtype, device=first.device)
        at = 0
        for parameter in parameters:
            part = slice(at, at + parameter.numel())
            self.weights[part].copy_(parameter.detach().flatten())
            parameter.data = self.weights[part].view_as(parameter)
            parameter.sum = self.gradients[part].view_as(parameter)
            at = part.stop
        step = size // self.ranks
        self.mine = slice(rank * step, (rank + 1) * step) if self.shard else slice(0, size)
        self.master = torch.nn.Parameter(self.weights[self.mine].float())
        self.arrived, self.work, self.gathering = 0, None, None

    def reduce(self):
        if self.ranks == 1:
            return
        average = {"op": dist.ReduceOp.AVG, "group": self.group, "async_op": True}
        if self.shard:
            self.work = dist.reduce_scatter_tensor(self.gradients[self.mine], self.gradients, **average)
        else:
            self.work = dist.all_reduce(self.gradients, **average)

    def finish(self):
        if self.work:
            self.work.wait()
        self.arrived, self.work = 0, None
        self.master.grad = self.gradients[self.mine].float()  # no copy if it is float32 already

    def publish(self, wait=True):
        """Copy the stepped parameters to all ranks."""
        self.weights[self.mine].copy_(self.master.detach())
        if self.shard:
            part = self.weights[self.mine]
            self.gathering = dist.all_gather_into_tensor(self.weights, part, group=self.group, async_op=not wait)
        self.master.grad = None
        self.gradients.zero_()


class BucketedOptimizer:
    def __init__(self, model, group, *, dtype, shard, overlap, overlap_gather, bucket_bytes, norm_groups, lr):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad][::-1]
        self.overlap, self.buckets, self.last_micro_batch = overlap, [], False
        self.overlap_gather = overlap_gather
        self.partial, self.tensor_group = model.partial(), model.tensor.group
        waiting = []
        for parameter in parameters:
            waiting.append(parameter)
            if sum(each.numel() for each in waiting) * dtype.itemsize >= bucket_bytes:
                self.add(Bucket(waiting, group, dtype, shard), waiting)
                waiting = []
        if waiting:
            self.add(Bucket(waiting, group, dtype, shard), waiting)
        self.norm_groups = [*norm_groups, *([group] if shard else [])]
        masters = [bucket.master for bucket in self.buckets]
        self.optimizer = torch.optim.AdamW(masters, lr=lr, fused=masters[0].is_cuda)

    def add(self, bucket, parameters):
        self.buckets.append(bucket)
        for parameter in parameters:
            parameter.bucket = bucket
            parameter.register_post_accumulate_grad_hook(lambda each, bucket=bucket: self.arrived(each, bucket))

    def arrived(self, parameter, bucket):
        if not hasattr(parameter, "is_in_sum"):  # otherwise a matmul has added it already
            parameter.sum.add_(parameter.grad)
        parameter.grad = None
        bucket.arrived += self.last_micro_batch
        if self.overlap and bucket.arrived == bucket.expected:
            bucket.reduce()

    def step(self):
        if self.partial:
            flat = torch.cat([parameter.sum.flatten() for parameter in self.partial])
            dist.all_reduce(flat, group=self.tensor_group)
            parts = flat.split([parameter.numel() for parameter in self.partial])
            torch._foreach_copy_([parameter.sum.flatten() for parameter in self.partial], list(parts))
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.reduce()
        for bucket in self.buckets:
            bucket.finish()
        self.clip(1.0)
        self.optimizer.step()
        for bucket in self.buckets[::-1] if self.overlap_gather else self.buckets:  # the first layers are needed first
            bucket.publish(wait=not self.overlap_gather)

    def finish_gather(self, module):
        """Wait until the parameters of a module are there."""
        for bucket in {id(each.bucket): each.bucket for each in module.parameters()}.values():
            if bucket.gathering:
                bucket.gathering.wait()
            bucket.gathering = None

    def clip(self, largest):
        gradients = [bucket.master.grad for bucket in self.buckets]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        for group in self.norm_groups:
            dist.all_reduce(square, group=group)
        torch._foreach_mul_(gradients, largest / max(square.item() ** 0.5, largest))
