"""Where work on many sources runs: processes of this machine, or a Ray cluster.

An engine maps a function over items and knows nothing of traces or stores. A worker that dies takes
no result with it: its item is done again, so the function must bear being run twice.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from analyzer.errors import AnalyzerError
from schemas.extras import require

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items handed out for each worker: one in work, one waiting. More would only hold memory.
AHEAD = 2
# How often an item that was in work when a process died is tried in a process for itself.
POOL_ATTEMPTS = 2
# How often Ray may start an item again because its worker or node died.
RAY_RETRIES = 5


@dataclass(frozen=True)
class Lost:
    """No result: whatever worked on the item died, again and again."""

    error: str


class Engine(Protocol):
    """What `ingest` asks of an engine."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result | Lost]]:
        """Each item's index and result, as they are done. What `function` raises is raised."""
        ...


class Pool:
    """Processes of this machine."""

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result | Lost]]:
        """See `Engine.map`."""
        suspects: list[int] = []
        waiting = list(range(len(items)))[::-1]
        while waiting:
            suspects += yield from self._until_one_dies(function, items, waiting, self.workers)
        # One of them may have killed its process, by its size say: now each has one for itself.
        for index in suspects:
            for _ in range(POOL_ATTEMPTS):
                if not (yield from self._until_one_dies(function, items, [index], 1)):
                    break
            else:
                yield index, Lost("the process that worked on it died each time; out of memory?")

    def _until_one_dies(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        waiting: list[int],
        workers: int,
    ) -> Generator[tuple[int, Result | Lost], None, list[int]]:
        """Work `waiting` off from its end; returns what was in work when a process died."""
        running: dict[Future[Result], int] = {}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _end_with_parent) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < AHEAD * workers:
                        index = waiting.pop()
                        running[pool.submit(function, items[index])] = index
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        yield running.pop(future), result
            except BrokenExecutor:
                return sorted(running.values())
        return []


def _end_with_parent() -> None:
    """Let this process end when the one that started it does, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Ray:
    """A Ray cluster: one that is named, that RAY_ADDRESS names, or one of this machine."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result | Lost]]:
        """See `Engine.map`. Every node must be able to import `function` and see what it reads."""
        ray = self._connected()
        task = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(function)
        running: dict[Any, int] = {}
        waiting = list(range(len(items)))[::-1]
        try:
            while waiting or running:
                # Nodes come and go: as many as there are now.
                ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while waiting and len(running) < ahead:
                    index = waiting.pop()
                    running[task.remote(items[index])] = index
                done, _ = ray.wait(list(running), num_returns=1, timeout=10)
                for reference in done:
                    index = running.pop(reference)
                    yield index, self._result(ray, reference)
        finally:
            for reference in running:  # the caller has stopped asking
                ray.cancel(reference)
            ray.shutdown()

    def _connected(self) -> Any:
        require("fleet", "ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: nothing is sent
        # Deferred: a second, and only this engine needs it. By name: checks do without it.
        ray: Any = importlib.import_module("ray")
        try:
            ray.init(
                address=self.address,
                logging_level="ERROR",
                log_to_driver=False,
                namespace="hostbound",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = self.address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise AnalyzerError(
                f"no Ray cluster answers at {place}: {str(error).strip().splitlines()[0]} Start "
                "one with `ray start --head`, or name another with --ray-address."
            ) from error
        return ray

    @staticmethod
    def _result(ray: Any, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            return Lost(f"Ray lost it: {str(error).strip().splitlines()[0]}")
