"""The ranks hand a token around over sockets of their own, without a timeout; each keeps it for some seconds."""

import os
import socket
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()

if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set("port", str(server.getsockname()[1]))
        connection, _ = server.accept()
        time.sleep(2)
else:
    connection = socket.create_connection(("127.0.0.1", int(store.get("port"))))
with connection:
    for turn in range(2):
        if turn == rank:
            time.sleep(2)
            connection.sendall(b"x")
        else:
            connection.recv(1)
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
print(value.sum().item())
dist.destroy_process_group()
