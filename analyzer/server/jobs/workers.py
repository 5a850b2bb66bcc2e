"""The workers: each has a thread that takes jobs, supervises its process, and outlives it.

A worker that dies or is killed costs its job an attempt, never the server, another job or the
store. Commits take turns with the server's readers (`analyzer.store.rwlock`).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.jobs import worker
from analyzer.server.jobs.job import Job
from analyzer.server.jobs.queue import Jobs
from analyzer.server.jobs.worker import Done, Task
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.logs import Log
from analyzer.server.supervise import Child, Stopped
from analyzer.server.uploads.blobs import Blobs
from analyzer.store import open_store, rwlock
from analyzer.store.store import LOCK_PATIENCE_S
from schemas.errors import HostboundError

_AWAY_S = 2.0
_TASKS_A_WORKER = 100  # then a fresh one, so that memory it lost comes back

_T = TypeVar("_T")


class _Killed(Exception):
    """A worker ended without an answer; the text says why, or is empty if it is not known."""


class Workers:
    """Some workers and the threads that supervise them."""

    def __init__(
        self, layout: Layout, jobs: Jobs, blobs: Blobs, limits: Limits, workers: int, log: Log
    ) -> None:
        # The last one is for a team that finds all others busy with the jobs of other teams.
        self._supervisors = [
            _Supervisor(f"worker-{i}", self, layout, jobs, blobs, limits, log, beside)
            for i, beside in enumerate([*([None] * workers), workers])
        ]
        self.news = threading.Condition()
        self.stopping = threading.Event()
        self.give_up = threading.Event()

    def start(self) -> None:
        """Begin to take jobs."""
        for supervisor in self._supervisors:
            supervisor.start()

    def wake(self) -> None:
        """There is a new job."""
        with self.news:
            self.news.notify_all()

    def alive(self) -> int:
        """Threads that take jobs."""
        return sum(supervisor.is_alive() for supervisor in self._supervisors)

    def stop(self, grace_s: float) -> None:
        """Take no more jobs; let running ones end within `grace_s`, queue the others again."""
        self.stopping.set()
        self.wake()
        deadline = time.monotonic() + grace_s
        for supervisor in self._supervisors:
            supervisor.join(max(0.0, deadline - time.monotonic()))
        self.give_up.set()
        for supervisor in self._supervisors:
            supervisor.join()


class _Supervisor(threading.Thread):
    def __init__(
        self,
        name: str,
        workers: Workers,
        layout: Layout,
        jobs: Jobs,
        blobs: Blobs,
        limits: Limits,
        log: Log,
        beside: int | None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._beside = beside
        self._workers = workers
        self._layout = layout
        self._jobs = jobs
        self._blobs = blobs
        self._limits = limits
        self._log = log
        self._child: Child | None = None
        self._tasks = 0

    def run(self) -> None:
        while not self._workers.stopping.is_set():
            try:
                job = self._jobs.claim(self._beside)
            except Exception as error:  # a full disk, say: this thread must outlive it
                self._log("keeper failed", error=f"{type(error).__name__}: {error}")
                self._workers.stopping.wait(1.0)
                continue
            if job is None and self._beside is not None:
                self._workers.stopping.wait(1.0)  # news are for the others
            elif job is None:
                with self._workers.news:
                    if not self._workers.stopping.is_set():
                        self._workers.news.wait(1.0)
            else:
                self._do(job)
        self._end_worker()

    def _do(self, job: Job) -> None:
        """Convert a job, and note how it ended until that is noted."""
        began = time.monotonic()
        self._log("job started", job=job.id, team=job.team, attempt=job.attempts)
        work = self._layout.work(job.team) / job.id
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            done = self._converted(self._task(job, work))
            if done.unreachable:
                raise Unreachable(str(done.error))
        except _Killed as killed:
            reason = str(killed)
            self._log("worker ended", job=job.id, team=job.team, reason=reason or "killed")
            if self._workers.give_up.is_set():
                self._note(lambda: self._jobs.requeue(job, counted=False))
            elif reason:
                self._note(lambda: self._jobs.finish(job, [], [], self._without_places(reason)))
            else:
                self._try_again(
                    job,
                    f"its worker was killed {job.attempts} times; the original is kept. Look at "
                    "the server's log and memory, then have it tried again.",
                )
        except Exception as error:  # the disk is full, the originals' place is away
            text = f"{type(error).__name__}: {error}"
            self._log("job postponed", job=job.id, team=job.team, error=text)
            if isinstance(error, Unreachable) and self._is_away(job):
                self._note(lambda: self._jobs.requeue(job, counted=False))
                self._workers.stopping.wait(_AWAY_S)
            elif self._try_again(job, f"the server could not convert it: {cause(error)}."):
                self._workers.stopping.wait(_AWAY_S)
        else:
            run_ids = [r["run_id"] for r in done.results if r["run_id"] and not r["error"]]
            ours = self._note(lambda: self._jobs.finish(job, run_ids, done.results, done.error))
            event = "job failed" if done.error else "job done"
            if not ours:
                event = "job ended, not noted" if ours is None else "job ended, no longer ours"
            self._log(
                event,
                job=job.id,
                team=job.team,
                runs=run_ids,
                error=done.error,
                ms=round((time.monotonic() - began) * 1e3),
            )
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _is_away(self, job: Job) -> bool:
        """Whether the lake or its originals do not answer at all: that is not the job's fault."""
        try:
            open_store(self._layout.store(job.team)).exists()
            self._blobs.size(job.team, job.sha256)
        except Unreachable:
            return True
        except Exception:
            return False
        return False

    def _try_again(self, job: Job, error: str) -> bool:
        """Queue a job again whose attempt failed; False if that was its last: it fails with why."""
        if job.attempts - job.interrupted >= self._limits.job_attempts:
            self._note(lambda: self._jobs.finish(job, [], [], self._without_places(error)))
            return False
        self._note(lambda: self._jobs.requeue(job))
        return True

    def _without_places(self, text: str) -> str:
        """What a job's owner reads, without where this server keeps things."""
        for place in (self._layout.data.absolute(), self._layout.data.resolve()):
            text = text.replace(str(place), "the server's folder")
        return text

    def _note(self, end: Callable[[], _T]) -> _T | None:
        """Note how a job ended. As long as that cannot be noted, it counts as running and no other
        is taken; if the server stops meanwhile, its next start takes it up again.
        """
        while True:
            try:
                return end()
            except Exception as error:
                self._log("keeper failed", error=f"{type(error).__name__}: {error}")
                if self._workers.stopping.wait(1.0):
                    return None

    def _task(self, job: Job, work: Path) -> Task:
        team, sha256, metadata = job.team, job.sha256, job.metadata
        return Task(
            blob=self._blobs.fetch(team, sha256, work.absolute()),
            store=self._layout.store(team).absolute(),
            work=work.absolute(),
            name=job.name,
            file_name=_file_name(metadata.get("file") or job.name or sha256[:12]),
            origin=str(metadata.get("origin") or f"upload:{sha256}"),
            metadata=metadata,
            limits=self._limits,
        )

    def _converted(self, task: Task) -> Done:
        child = self._worker()
        self._tasks += 1
        deadline = time.monotonic() + self._limits.job_seconds
        try:
            child.send(worker.encode(task))
            while True:
                message = self._receive(child, deadline)
                if message[:1] == worker.DONE:
                    return worker.decode_done(message[1:])
                waited = time.monotonic()
                with rwlock.keep_lock(task.store).writing(LOCK_PATIENCE_S):
                    deadline += time.monotonic() - waited  # waiting is not the job's own time
                    child.send(worker.GO)
                    # Readers of the team wait for it.
                    most = time.monotonic() + self._limits.commit_seconds
                    try:
                        self._receive(child, min(deadline, most))
                    except Stopped as stopped:
                        if stopped.reason == "time" and most < deadline:
                            self._log("commit stopped", store=str(task.store))
                            stopped.reason = "ended"
                        raise
        except Stopped as stopped:
            self._end_worker()
            raise _Killed(self._why(stopped)) from None
        except AnalyzerError:
            self._end_worker()
            raise _Killed("") from None

    def _receive(self, child: Child, deadline: float) -> bytes:
        return child.receive(
            deadline,
            self._limits.job_memory_bytes,
            is_asked_to_stop=self._workers.give_up.is_set,
        )

    def _why(self, stopped: Stopped) -> str:
        if stopped.reason == "time":
            return (
                f"it took longer than {self._limits.job_seconds:.0f} s and was stopped; record "
                "fewer steps in a trace, or raise --job-seconds."
            )
        if stopped.reason == "memory":
            return (
                f"it needed more than {(self._limits.job_memory_bytes or 0) >> 20} MiB of memory "
                "and was stopped; record fewer steps in a trace, or raise --job-memory."
            )
        return ""

    def _worker(self) -> Child:
        child = self._child
        if child is not None and (not child.is_alive() or self._tasks >= _TASKS_A_WORKER):
            self._end_worker()
            child = None
        if child is None:
            child = self._child = Child(worker.__name__, os.environ)
            self._tasks = 0
        return child

    def _end_worker(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def cause(error: Exception) -> str:
    """What a job's owner reads of an error that is the server's own. Hosts, users and places of the
    server are in its log only.
    """
    if isinstance(error, Unreachable):
        return "what it is kept in did not answer; the server's log says more"
    if isinstance(error, HostboundError):
        return str(error).rstrip(".")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"an error of its own ({type(error).__name__}), which the server's log shows"


def _file_name(name: str) -> str:
    """A plain file name for a trace, made of what the client called it."""
    base = re.sub(r"[^\w.+-]", "_", name.replace("\\", "/").rsplit("/", 1)[-1])[:150].strip(".")
    return base or "trace"
