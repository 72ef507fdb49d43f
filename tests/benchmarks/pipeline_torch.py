"""The peer of the pipeline benchmark: the same models in torch.distributed.pipelining, one process and core per stage.

`serial` runs the model unsplit on one core. A schedule (`1f1b`, `gpipe`) runs two stages with gloo on loopback; rank 0
answers, after all stages have updated their parameters.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tests.benchmarks.pipeline_workloads import WORKLOADS, Workload, batch
from tests.benchmarks.turns import answer_turns

NUM_STAGES = 2
SCHEDULES: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class _Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_a(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm_b(x))))


def _blocks(workload: Workload) -> list[nn.Module]:
    if workload.kind == "dense":
        return [nn.Sequential(nn.Linear(workload.width, workload.width), nn.ReLU()) for _ in range(workload.depth)]
    blocks: list[nn.Module] = [_Block(workload.width, workload.num_heads) for _ in range(workload.depth)]
    blocks[0] = nn.Sequential(nn.Embedding(workload.vocabulary, workload.width), blocks[0])
    head = nn.Linear(workload.width, workload.vocabulary)
    blocks[-1] = nn.Sequential(blocks[-1], nn.LayerNorm(workload.width), head)
    return blocks


def _loss(workload: Workload, found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if workload.kind == "dense":
        return nn.functional.mse_loss(found, expected)
    return nn.functional.cross_entropy(found.flatten(0, 1), expected.flatten())


def _optimizer(workload: Workload, module: nn.Module) -> torch.optim.Optimizer:
    if workload.kind == "dense":
        return torch.optim.SGD(module.parameters(), 1e-3)
    return torch.optim.Adam(module.parameters(), 1e-3)


def _start(workload: Workload, core: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {core})
    x, y = (torch.from_numpy(values) for values in batch(workload))
    return x, (y if workload.kind == "dense" else y.long())


def _serial(workload: Workload) -> None:
    x, y = _start(workload, 0)
    model = nn.Sequential(*_blocks(workload))
    optimizer = _optimizer(workload, model)

    def step() -> None:
        optimizer.zero_grad()
        _loss(workload, model(x), y).backward()
        optimizer.step()

    answer_turns(step)


class _Stage:
    """One of the processes: its half of the blocks, and the schedule that it runs with the other."""

    def __init__(self, rank: int, port: int, workload: Workload, schedule: str, num_microbatches: int) -> None:
        self.rank = rank
        self.x, self.y = _start(workload, rank)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=NUM_STAGES)
        blocks = _blocks(workload)
        half = len(blocks) // NUM_STAGES
        module = nn.Sequential(*blocks[rank * half : (rank + 1) * half])
        self.optimizer = _optimizer(workload, module)
        stage = PipelineStage(module, rank, NUM_STAGES, torch.device("cpu"))
        loss = functools.partial(_loss, workload)
        self.runner = SCHEDULES[schedule](stage, num_microbatches, loss_fn=loss)

    def step(self, more: bool = True) -> bool:
        """One training step in both processes; or none, if rank 0 says that there is no more. Returns what it said."""
        said = torch.tensor(more)
        dist.broadcast(said, 0)
        if said:
            self.optimizer.zero_grad()
            if self.rank == 0:
                self.runner.step(self.x)
            else:
                self.runner.step(target=self.y, losses=[])
            self.optimizer.step()
            dist.barrier()
        return bool(said)


def _follow(*arguments: Any) -> None:
    stage = _Stage(1, *arguments)
    while stage.step():
        pass


def main() -> None:
    """Answer each line on stdin with the seconds of one training step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("schedule", choices=["serial", *SCHEDULES])
    parser.add_argument("num_microbatches", type=int)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    if options.schedule == "serial":
        _serial(workload)
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = (port, workload, options.schedule, options.num_microbatches)
    follower = multiprocessing.get_context("spawn").Process(target=_follow, args=arguments, daemon=True)
    follower.start()
    stage = _Stage(0, *arguments)
    answer_turns(stage.step)
    stage.step(more=False)
    follower.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
