"""Train a GPT, a Llama or a BERT of any shape on random tokens, in parallel in any of the usual ways.

torchrun --nproc-per-node 8 train_gpt.py --family llama --layers 16 --hidden 2048 --heads 32 --ffn 8192 \
    --tensor 2 --sequence-parallel --pipeline 2 --data zero1 --micro-batches 8

The ranks are tensor x context x data x pipeline, neighbours first, as Megatron-LM numbers them (or --order). Data
parallelism (--data):

ddp      torch's DistributedDataParallel; parameters in float32, computed in --dtype (autocast)
fsdp     torch's fully_shard; parameters in float32, computed in --dtype; fsdp-keep: not resharded after forward
buckets  parameters in --dtype, gradients in flat buckets, a float32 copy for the optimizer; zero1: the copy is sharded
"""

import argparse
import contextlib
import itertools
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from train_gpt_buckets import BucketedOptimizer
from train_gpt_context import Context
from train_gpt_interleaved import Chunks, InterleavedPipeline
from train_gpt_layers import Tensor, Transformer
from train_gpt_megatron import RANDOM, broadcast_batch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_argument_group("model")
    model.add_argument("--family", choices=["gpt", "llama", "bert"], default="llama")
    model.add_argument("--layers", type=int, default=4)
    model.add_argument("--hidden", type=int, default=512)
    model.add_argument("--heads", type=int, default=8)
    model.add_argument("--kv-heads", type=int, help="default: --heads")
    model.add_argument("--ffn", type=int, help="default: 4 times --hidden")
    model.add_argument("--vocabulary", type=int, default=32768)
    model.add_argument("--sequence", type=int, default=512)
    model.add_argument("--tied", action="store_true", help="one matrix for embedding and head; not in a pipeline")
    model.add_argument("--dropout", type=float, default=0.0)
    model.add_argument("--predictions", type=int, default=80, help="words per sequence that a BERT predicts")
    model.add_argument("--attention", choices=["fused", "efficient", "unfused"], default="fused")
    model.add_argument("--in-place-loss", action="store_true", help="no float32 logits, as FlashAttention's loss")
    model.add_argument(
        "--recompute", choices=["none", "gate", "products", "all"], default="none",
        help="gate: gate times up in a Llama; products: non-matmuls",
    )  # fmt: skip
    training = parser.add_argument_group("training")
    training.add_argument("--micro-batch", type=int, default=1, help="sequences per micro-batch")
    training.add_argument("--micro-batches", type=int, nargs="+", default=[1], help="per step: one number, or a list")
    training.add_argument("--steps", type=int, default=3, help="steps, if --micro-batches is one number")
    training.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    training.add_argument("--reduce-dtype", choices=sorted(DTYPES), default="fp32", help="for gradients (not for ddp)")
    training.add_argument("--lr", type=float, default=3e-4)
    training.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parallel = parser.add_argument_group("parallelism")
    parallel.add_argument("--data", choices=["ddp", "fsdp", "fsdp-keep", "buckets", "zero1"], default="zero1")
    parallel.add_argument("--sync-every", action="store_true", help="reduce gradients with every micro-batch")
    parallel.add_argument("--no-overlap", action="store_true", help="reduce gradients after backward (buckets, zero1)")
    parallel.add_argument("--overlap-gather", action="store_true", help="gather parameters of zero1 in the next step")
    parallel.add_argument("--accumulate-in-products", action="store_true", help="matmuls add to the gradients")
    parallel.add_argument("--bucket-bytes", type=int, default=100_000_000)
    parallel.add_argument("--tensor", type=int, default=1)
    parallel.add_argument("--sequence-parallel", action="store_true")
    parallel.add_argument("--context", type=int, default=1, help="ranks that share each sequence, by its tokens")
    parallel.add_argument("--keep-gathered", action="store_true", help="keep gathered tensors for backward")
    parallel.add_argument("--pipeline", type=int, default=1)
    parallel.add_argument("--virtual-stages", type=int, default=1, help="chunks of layers per rank: interleaved 1F1B")
    parallel.add_argument(
        "--balance-head", action="store_true", help="count the head as layers when cutting a pipeline"
    )
    parallel.add_argument("--short-ends", action="store_true", help="one layer less in the first and in the last stage")
    parallel.add_argument(
        "--fill-stages", action="store_true", help="the last stage has fewer layers if the stages cannot be equal"
    )
    parallel.add_argument("--order", choices=["tp-cp-dp-pp", "tp-cp-pp-dp"], default="tp-cp-dp-pp", help="of the ranks")
    parallel.add_argument("--megatron", action="store_true", help="with the host code of Megatron-LM of 2022")
    parallel.add_argument("--wait-for-messages", action="store_true", help="sync after send/recv (old Megatron-LM)")
    args = parser.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    args.ffn = args.ffn or 4 * args.hidden
    if args.pipeline > 1 and args.data not in ("buckets", "zero1"):
        parser.error("--pipeline works with --data buckets or zero1")
    if args.context > 1 and (args.family, args.attention, args.micro_batch, args.dropout) != ("llama", "fused", 1, 0.0):
        parser.error("--context works with --family llama --attention fused --micro-batch 1 --dropout 0")
    if args.context > 1 and (args.data not in ("buckets", "zero1") or args.device == "cpu"):
        parser.error("--context works with --data buckets or zero1 and --device cuda")
    if args.sequence % (2 * args.context) and args.context > 1:
        parser.error(f"--sequence is not a multiple of {2 * args.context}: two chunks for each of --context")
    stages, counts = args.pipeline * args.virtual_stages, args.micro_batches
    if args.virtual_stages > 1 and (args.pipeline % 2 or any(count % args.pipeline for count in counts)):
        parser.error("--virtual-stages works with an even --pipeline, and --micro-batches that are a multiple of it")
    if args.virtual_stages > 1 and args.wait_for_messages:
        parser.error("--wait-for-messages does not work with --virtual-stages")
    if args.short_ends and (stages == 1 or args.layers + 2 < stages or (args.layers + 2) % stages):
        parser.error(f"--short-ends needs a multiple of {stages} stages, less two, as --layers")
    if args.fill_stages and (
        args.balance_head or args.short_ends or (stages - 1) * -(-args.layers // stages) > args.layers
    ):
        parser.error(f"--fill-stages: no layers are left for the last of {stages} stages, or another option cuts them")
    if args.overlap_gather and (args.data != "zero1" or args.virtual_stages == 1):
        parser.error("--overlap-gather works with --data zero1 and --virtual-stages")
    if args.accumulate_in_products and args.data not in ("buckets", "zero1"):
        parser.error("--accumulate-in-products works with --data buckets or zero1")
    if args.megatron and (args.family, args.recompute, args.device) != ("gpt", "all", "cuda"):
        parser.error("--megatron works with --family gpt --recompute all --device cuda")
    return args


def stage_layers(args):
    """The number of layers in each (virtual) stage of the pipeline."""
    stages = args.pipeline * args.virtual_stages
    if stages == 1:
        return [args.layers]
    if args.short_ends:
        layers = (args.layers + 2) // stages
        return [layers - 1] + [layers] * (stages - 2) + [layers - 1]
    last = args.layers // stages
    if args.fill_stages:
        last = args.layers - (stages - 1) * -(-args.layers // stages)
    if args.balance_head:  # the head takes as long as some layers
        attention = (2 + 2 * args.kv_heads / args.heads) * args.hidden
        head = args.vocabulary / (attention + (3 if args.family == "llama" else 2) * args.ffn)
        last = max(0, round((args.layers + head) / stages - head))
    others = stages - 1
    return [(args.layers - last + others - 1 - stage) // others for stage in range(others)] + [last]


class Pipeline:
    """Micro-batches through the stages, one forward and one backward pass in turn (1F1B)."""

    def __init__(self, args, model, group, buffer, fetch):
        self.model, self.group, self.wait, self.fetch = model, group, args.wait_for_messages, fetch
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.buffer = lambda: buffer().requires_grad_()

    def exchange(self, to_next=None, to_previous=None, from_next=False, from_previous=False):
        """Sends and receives at once; returns the tensors from the next and from the previous stage."""
        messages, received = [], {}
        for step, sent, wanted in ((1, to_next, from_next), (-1, to_previous, from_previous)):
            peer = self.rank + step
            if not 0 <= peer < self.ranks:
                continue
            peer = dist.get_global_rank(self.group, peer)
            if sent is not None:
                messages.append(dist.P2POp(dist.isend, sent.contiguous(), peer, self.group))
            if wanted:
                received[step] = self.buffer()
                messages.append(dist.P2POp(dist.irecv, received[step].data, peer, self.group))
        if messages:
            for work in dist.batch_isend_irecv(messages):
                work.wait()
            if self.wait:
                torch.cuda.synchronize()
        return received.get(1), received.get(-1)

    def step(self, batches, optimizer):
        """Runs all micro-batches; returns the sum of the losses, on the last stage."""
        count, last, losses, inside = len(batches), self.rank == self.ranks - 1, [], []

        def forward(number, x):
            tokens, targets = self.fetch(batches[number]) if last or self.rank == 0 else (None, None)
            y = self.model(tokens if self.rank == 0 else x, targets)
            if last:
                y = y / count
                losses.append(y.detach())
            inside.append((x, y))
            return y.detach()

        def backward(number, gradient):
            optimizer.last_micro_batch = number == count - 1
            x, y = inside.pop(0)
            torch.autograd.backward(y, gradient)
            return None if x is None else x.grad

        warm_up = min(self.ranks - 1 - self.rank, count)
        for number in range(warm_up):
            _, x = self.exchange(from_previous=True)
            self.exchange(to_next=forward(number, x))
        x = self.exchange(from_previous=True)[1] if warm_up < count else None
        for number in range(count - warm_up):
            y = forward(warm_up + number, x)
            gradient, _ = self.exchange(to_next=y, from_next=True)
            gradient = backward(number, gradient)
            more = number + 1 < count - warm_up
            _, x = self.exchange(to_previous=gradient, from_previous=more)
        for number in range(count - warm_up, count):
            gradient, _ = self.exchange(from_next=True)
            self.exchange(to_previous=backward(number, gradient))
        return torch.stack(losses).sum() if losses else None


class DataParallelOnly:
    """Micro-batches one after the other."""

    def __init__(self, args, model, fetch):
        self.model, self.every, self.fetch = model, args.sync_every, fetch
        self.dtype = DTYPES[args.dtype]
        self.autocast = args.data == "ddp" and args.dtype in ("bf16", "fp16")

    def step(self, batches, optimizer):
        total = 0
        for number, batch in enumerate(batches):
            tokens, targets = self.fetch(batch)
            last = number == len(batches) - 1
            optimizer.last_micro_batch = last
            sync = last or self.every
            if hasattr(self.model, "set_requires_gradient_sync"):
                self.model.set_requires_gradient_sync(sync)
            without = hasattr(self.model, "no_sync") and not sync
            with self.model.no_sync() if without else contextlib.nullcontext():
                with torch.autocast(tokens.device.type, dtype=self.dtype, enabled=self.autocast):
                    loss = self.model(tokens, targets) / len(batches)
                loss.backward()
            total = total + loss.detach()
        return total


class PlainOptimizer:
    """For parameters that torch's own data parallelism takes care of."""

    def __init__(self, model, lr, fused):
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, fused=fused)
        self.last_micro_batch = False

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def build(args, mesh, device, context):
    """The optimizer of this rank's part of the model, and the schedule that runs its micro-batches."""
    tensor = Tensor(
        mesh["tensor"].get_group(), args.tensor, mesh["tensor"].get_local_rank(), args.sequence_parallel,
        keep=args.keep_gathered, overlap=args.sequence_parallel, accumulate=args.accumulate_in_products,
    )  # fmt: skip
    stage = mesh["pipeline"].get_local_rank()
    bucketed = args.data in ("buckets", "zero1")
    dtype = DTYPES[args.dtype]
    torch.set_default_dtype(dtype if bucketed else torch.float32)
    layers = stage_layers(args)
    ends = list(itertools.accumulate(layers))
    chunks = []
    with torch.device("meta" if args.data.startswith("fsdp") else device):
        for at in range(stage, len(layers), args.pipeline):
            mine = range(ends[at] - layers[at], ends[at])
            chunks.append(Transformer(args, tensor, mine, first=at == 0, last=at == len(layers) - 1, context=context))
    torch.set_default_dtype(torch.float32)
    for chunk in chunks:
        chunk.prepare(device, torch.float32 if args.data == "ddp" else dtype)
    model = Chunks(chunks) if args.virtual_stages > 1 else chunks[0]
    data = mesh["data"]
    if bucketed:
        groups = [mesh[name].get_group() for name in ("tensor", "pipeline") if mesh[name].size() > 1]
        shards = mesh["data", "context"]._flatten() if context else data
        optimizer = BucketedOptimizer(
            model, shards.get_group(), dtype=DTYPES[args.reduce_dtype], shard=args.data == "zero1",
            overlap=not args.no_overlap, overlap_gather=args.overlap_gather, bucket_bytes=args.bucket_bytes,
            norm_groups=groups, lr=args.lr,
        )  # fmt: skip
    elif args.data == "ddp":
        model = DistributedDataParallel(model, process_group=data.get_group(), gradient_as_bucket_view=True)
        optimizer = PlainOptimizer(model, args.lr, fused=device.type == "cuda")
    else:
        policy = MixedPrecisionPolicy(dtype, DTYPES[args.reduce_dtype])
        settings = {"mesh": data, "mp_policy": policy, "reshard_after_forward": args.data == "fsdp"}
        for block in model.blocks:
            fully_shard(block, **settings)
        fully_shard(model, **settings)
        model.to_empty(device=device)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        optimizer = PlainOptimizer(model, args.lr, fused=device.type == "cuda")
    fetch = tuple
    if args.megatron:
        RANDOM.add("split", 2718 + tensor.rank)
        first = dist.get_global_rank(tensor.group, 0)
        fetch = lambda batch: broadcast_batch(batch, tensor.group, first)  # noqa: E731
    sequence = args.sequence // args.context // (args.tensor if args.sequence_parallel else 1)
    buffer = lambda: torch.empty(sequence, args.micro_batch, args.hidden, dtype=dtype, device=device)  # noqa: E731
    if args.virtual_stages > 1:
        columns = mesh.mesh.movedim(mesh.mesh_dim_names.index("pipeline"), -1).flatten(0, -2).tolist()
        return optimizer, InterleavedPipeline(model, columns, buffer, fetch)
    if args.pipeline > 1:
        return optimizer, Pipeline(args, model, mesh["pipeline"].get_group(), buffer, fetch)
    return optimizer, DataParallelOnly(args, model, fetch)


def main():
    args = options()
    device = torch.device("cpu") if args.device == "cpu" else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if args.device == "cuda":
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    dist.init_process_group(
        "gloo" if args.device == "cpu" else "nccl", device_id=None if args.device == "cpu" else device
    )
    ranks = dist.get_world_size()
    data = ranks // (args.tensor * args.context * args.pipeline)
    sizes = {"pipeline": args.pipeline, "data": data, "context": args.context, "tensor": args.tensor}
    names = ["data", "pipeline"] if args.order == "tp-cp-pp-dp" else ["pipeline", "data"]
    names += ["context", "tensor"] if args.context > 1 else ["tensor"]
    mesh = init_device_mesh(args.device, tuple(sizes[name] for name in names), mesh_dim_names=tuple(names))
    torch.manual_seed(0)
    context = None
    if args.context > 1:
        place = mesh["context"].get_local_rank()
        context = Context(mesh["context"].get_group(), args.context, place, args.sequence).to(device)
    optimizer, runner = build(args, mesh, device, context)
    first = [mesh[name].get_local_rank() == 0 for name in names if name != "pipeline"]  # the same work on every rank
    reports = all(first)
    last = mesh["pipeline"].get_local_rank() == args.pipeline - 1
    counts = args.micro_batches if len(args.micro_batches) > 1 else args.micro_batches * args.steps

    for step, count in enumerate(counts):
        begin = time.perf_counter()
        generator = torch.Generator().manual_seed(step * data + mesh["data"].get_local_rank())
        tokens = torch.randint(args.vocabulary, (count * args.micro_batch, args.sequence + 1), generator=generator)
        tokens = tokens.to(device, non_blocking=True).split(args.micro_batch)
        batches = [(part[:, :-1], part[:, 1:]) for part in tokens]
        if context:
            batches = [(context.part(tokens, 1), context.part(targets, 1)) for tokens, targets in batches]
        loss = runner.step(batches, optimizer)
        optimizer.step()
        if context and last:
            dist.all_reduce(loss, dist.ReduceOp.AVG, mesh["context"].get_group())
        loss = loss.item() if last else 0.0
        seconds = time.perf_counter() - begin
        if reports and last:
            speed = data * count * args.micro_batch * args.sequence / seconds
            print(
                f"step {step}  loss {loss:.4f}  {1000 * seconds:.1f} ms  {speed / ranks:,.0f} tokens/s per GPU",
                flush=True,
            )
    if args.device == "cuda" and reports:
        memory = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30
        stage = f"stage {mesh['pipeline'].get_local_rank()}: " if args.pipeline > 1 else ""
        print(f"{stage}max memory {memory[0]:.2f} GiB, reserved {memory[1]:.2f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
