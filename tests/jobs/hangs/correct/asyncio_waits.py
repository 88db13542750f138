"""Rank 0 waits in an event loop for a slow request, while the other stands in a barrier."""

import asyncio
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    await asyncio.sleep(4)
    writer.close()


async def request() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"metrics\n")
    await reader.read()
    writer.close()
    server.close()


if dist.get_rank() == 0:
    asyncio.run(request())
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
