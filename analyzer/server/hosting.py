"""The server as its pages see it (`pages.Hosting`): who looks, whose store, SQL, uploads, jobs."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from analyzer.errors import AnalyzerError
from analyzer.ingest.ingested import Ingested
from analyzer.server.auth.policy import OPEN
from analyzer.server.auth.principal import Principal
from analyzer.server.jobs.job import STATES, Job
from analyzer.server.service import Service
from analyzer.server.uploads.uploads import Announced
from schemas.packing import RUN_DIRECTORY_TAR, TRACE_SUFFIXES

_PIECE = 1 << 20
_LOOK_S = 0.1
_MOST_ADMITTED = 10_000
_KNOWN = tuple(Ingested.__dataclass_fields__)


class ServiceHosting:
    """`pages.Hosting` over a service; what each method is for stands there."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def has_identity_provider(self) -> bool:
        return self._service.policy.oidc is not None

    def visitor(self, session: str | None, claims: Mapping[str, Any] | None) -> Principal | None:
        if session and (found := self._service.tokens.session(session)) and found.may("read"):
            return found
        provider = self._service.policy.oidc
        if provider is not None:
            team = provider.team_of(claims) if claims else None
            name = str((claims or {}).get("email", "somebody"))
            return Principal(team, frozenset(("read", "upload")), None, name) if team else None
        return None if self._service.needs_login() else OPEN

    def admit(self, page_session: str) -> None:
        known = self._service.admitted
        known.pop(page_session, None)
        known[page_session] = None
        while len(known) > _MOST_ADMITTED:
            known.pop(next(iter(known)), None)

    def store(self, visitor: Principal) -> Path:
        return self._service.store(visitor.team)

    def run_sql(
        self,
        visitor: Principal,
        sql: str,
        limit: int,
        time_limit_s: float,
        cancel: threading.Event,
    ) -> pa.Table:
        run = self._service.sql.run
        answer = run(visitor.team, sql, limit, time_limit_s, cancel, form="arrow")
        with pa.ipc.open_stream(answer.content) as reader:
            return reader.read_all()

    def jobs(self, visitor: Principal, limit: int = 200) -> tuple[list[Job], dict[str, int]]:
        jobs = self._service.jobs
        return jobs.list(visitor.team, STATES, limit), jobs.counts(visitor.team)

    def usage(self, visitor: Principal) -> str:
        return self._service.uploads.quotas.usage(visitor.team).line()

    def retry(self, visitor: Principal, job_id: str) -> bool:
        self._check_upload(visitor)
        self._service.uploads.quotas.check_queue(visitor.team)
        again = self._service.jobs.retry(visitor.team, job_id)
        self._service.workers.wake()
        return again is not None

    def keep(self, visitor: Principal, name: str, form: str | None, content: IO[bytes]) -> str:
        self._check_upload(visitor)
        digest, size = hashlib.sha256(), 0
        while piece := content.read(_PIECE):
            digest.update(piece)
            size += len(piece)
        if not size:
            raise AnalyzerError(f"{name[:100]} is empty; choose the file again.")
        sha256 = digest.hexdigest()
        label = _plain(name) if form == RUN_DIRECTORY_TAR else _run_name(name)
        wanted = Announced(sha256, size, form, label, None, {"file": name[-200:]})
        uploads = self._service.uploads
        upload = uploads.announce(visitor.team, wanted, visitor.token_id)
        if not upload.is_stored:
            with uploads.writer(upload, upload.offset) as stream:
                content.seek(upload.offset)
                while piece := content.read(_PIECE):
                    stream.write(piece)
                uploads.complete(upload)
            self._service.workers.wake()
        return sha256

    def results(
        self, visitor: Principal, hashes: Sequence[str], patience_s: float
    ) -> list[Ingested]:
        deadline = time.monotonic() + patience_s
        found: list[Ingested] = []
        for sha256 in hashes:
            job = self._service.jobs.of_upload(visitor.team, sha256)
            while job and not job.has_ended and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                job = self._service.jobs.of_upload(visitor.team, sha256)
            if job and job.has_ended:
                found += [_ingested(result) for result in job.results]
                if job.error and not job.results:
                    found.append(Ingested(str(job.name), "failed", error=job.error))
        return found

    def _check_upload(self, visitor: Principal) -> None:
        if not visitor.may("upload"):
            raise AnalyzerError("your token lacks the scope upload; ask an admin for one.")


def _ingested(result: dict[str, Any]) -> Ingested:
    known = {key: result.get(key) for key in _KNOWN if key != "findings"}
    return Ingested(**known)  # pyright: ignore[reportArgumentType]


def _run_name(file: str) -> str:
    base = file.replace("\\", "/").rsplit("/", 1)[-1]
    for suffix in (*TRACE_SUFFIXES, ".zip"):
        base = base.removesuffix(suffix)
    return _plain(base.removesuffix(".pt.trace")) or "trace"


def _plain(name: str) -> str:
    return "".join(c for c in name if c.isprintable())[:500]
