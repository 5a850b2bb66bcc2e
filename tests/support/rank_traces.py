"""Traces of the ranks of one job, as their profilers would have written them."""

from __future__ import annotations

from pathlib import Path

from tests.support.tracebuilder import TraceBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class RankTrace(TraceBuilder):
    """The trace of one rank; `clock_us` is added to every time that is given."""

    def __init__(self, rank: int, world_size: int, clock_us: int = 0) -> None:
        super().__init__()
        self.rank, self.clock_us = rank, clock_us
        self.head |= {
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}
        }

    def add(self, category: str, name: str, start_us, dur_us, **fields) -> None:
        super().add(category, name, start_us + self.clock_us, dur_us, **fields)

    def add_collective(
        self,
        start_us: int,
        end_us: int,
        correlation: int,
        group: str | None,
        ranks: list[int],
        elements: int = 1_000_000,
        stream: int = 20,
    ) -> RankTrace:
        """An all-reduce of bf16 elements; without a group the trace tells nothing of it."""
        args = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": group,
            "Process Group Ranks": str(ranks),
        }
        self.add_kernel(
            ALL_REDUCE,
            start_us,
            end_us - start_us,
            correlation,
            stream,
            device=self.rank,
            **(args if group else {}),
        )
        return self


def three_ranks() -> list[RankTrace]:
    """docs/measurement.md, "Three ranks by hand": clocks of ranks 1 and 2 are 3 us ahead, 2 behind.

    X is of ranks 1 and 2, Y and Z are of all.
    """
    zero, one, two = RankTrace(0, 3), RankTrace(1, 3, clock_us=3), RankTrace(2, 3, clock_us=-2)
    for rank in (zero, one, two):
        rank.add_annotation("step#0", 0, 1000)
    one.add_call("cudaLaunchKernel", 100, 10, 1).add_collective(120, 450, 1, "tp", [1, 2])
    two.add_op("aten::mm", 100, 300).add_call("cudaLaunchKernel", 380, 20, 1)
    two.add_collective(420, 450, 1, "tp", [1, 2])
    for rank, call, start in ((zero, 150, 200), (one, 130, 460), (two, 440, 455)):
        rank.add_call("cudaLaunchKernel", call, 10, 2)
        rank.add_collective(start, 500, 2, "world", [0, 1, 2])
    for rank in (zero, one):
        rank.add_call("cudaLaunchKernel", 510, 10, 3)
        rank.add_collective(530, 660, 3, "world", [0, 1, 2])
    two.add_op("aten::add", 600, 20).add_call("cudaLaunchKernel", 605, 10, 3)
    two.add_collective(640, 660, 3, "world", [0, 1, 2])
    return [zero, one, two]


def write_ranks(ranks: list[RankTrace], folder: Path, name: str = "job-rank{}.json") -> list[Path]:
    """Write each rank's file, as engines name them; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [rank.write(folder / name.format(rank.rank)) for rank in ranks]
