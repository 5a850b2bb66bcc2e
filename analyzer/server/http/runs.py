"""Runs over HTTP: list, report, kernels, comparison, the original, deletion. Each team its own."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

import orjson
from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.render.json_text import builtins_of
from analyzer.reports.comparison import compare as compare_runs
from analyzer.reports.comparison.gate import judge_all
from analyzer.reports.prediction import DEFAULT, predict
from analyzer.reports.records import GatedComparison, Predictions, RunReport
from analyzer.reports.report import report as report_run
from analyzer.server.auth.principal import Principal
from analyzer.server.http import messages
from analyzer.server.http.access import long, service_of
from analyzer.server.http.uploads import errors
from analyzer.server.labels import Labels
from analyzer.server.service import Service
from analyzer.server.sql import child as sql_child
from analyzer.server.sql.runner import Answered
from analyzer.server.sql.snapshots import Crowded
from analyzer.server.uploads.uploads import Upload
from analyzer.store import Connection, open_store, sandbox
from analyzer.store.file import Damaged
from analyzer.store.write import delete_run

router = APIRouter()

_MOST_COMPARED = 20
_NO_LABELS = Labels()
_SORT = "^-?(name|model|ingested_at|created_at|hdbi|step_elapsed_ns)$"
Reader = Annotated[Principal, long("read")]


def as_json(value: object, status: int = 200) -> Response:
    """JSON of plain values; unknown is null, a time is text."""
    option = orjson.OPT_NON_STR_KEYS
    try:
        content = orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        content = orjson.dumps(sandbox.wide_as_text(value), default=str, option=option)
    return Response(content, status, media_type="application/json")


@contextmanager
def reading(service: Service, team: str) -> Generator[Connection, None, None]:
    """A team's store; 404 if it has none yet, 503 if it cannot be read now."""
    store = service.store(team)
    if not store.exists():
        raise HTTPException(404, "there is no run in the store yet; upload one.")
    opened = queries.connect(store, patience_s=service.limits.read_patience_seconds)
    try:
        connection = opened.__enter__()
    except Damaged:
        raise
    except AnalyzerError as error:
        service.log("store cannot be read", team=team, error=str(error))
        raise HTTPException(503, "the store cannot be read now; try again soon.") from error
    try:
        yield connection
    except BaseException as error:
        if not opened.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        opened.__exit__(None, None, None)


def find(connection: Connection, reference: str) -> str:
    """The run that a reference means; 404 if none or several."""
    try:
        return queries.find_run(connection, reference)
    except AnalyzerError as error:
        raise HTTPException(404, str(error)) from error


@router.get(
    "/runs",
    summary="Runs, newest first, with the figures to choose by",
    response_model=messages.RunList,
    responses=errors(),
)
def runs(
    request: Request,
    who: Reader,
    name: Annotated[str | None, Query(description="part of the name")] = None,
    model: str | None = None,
    mode: str | None = None,
    host: str | None = None,
    gpu: str | None = None,
    sha256: Annotated[str | None, Query(description="of an uploaded original")] = None,
    tag: Annotated[list[str] | None, Query(description="has each of them")] = None,
    owner: str | None = None,
    baseline: bool | None = None,
    archived: Annotated[bool, Query(description="those that are archived, instead")] = False,
    since: Annotated[date | None, Query(description="stored on this day (UTC) or later")] = None,
    until: Annotated[date | None, Query(description="stored before this day (UTC)")] = None,
    sort: Annotated[
        str | None, Query(pattern=_SORT, description="a figure; with -: the largest first")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
) -> Response:
    service = service_of(request)
    if not service.store(who.team).exists():
        return as_json({"runs": [], "total": 0, "next": None})
    labels = service.labels.of_team(who.team)
    with reading(service, who.team) as connection:
        listed = queries.listed_runs(connection)
    found = [
        messages.LabelledRun(**vars(run), **vars(labels.get(run.run_id, _NO_LABELS)))
        for run in listed
    ]
    found = [
        run
        for run in found
        if (run.archived_at is not None) == archived
        and set(tag or ()) <= set(run.tags)
        and owner in (None, run.owner)
        and baseline in (None, run.is_baseline)
        and (since is None or run.ingested_at >= since.isoformat())
        and (until is None or run.ingested_at < until.isoformat())
    ]
    if sha256 is not None:
        job = service.jobs.of_upload(who.team, sha256)
        found = [run for run in found if job and run.run_id in job.run_ids]
    for key, wanted in (("model", model), ("mode", mode), ("host", host), ("gpu", gpu)):
        if wanted is not None:
            found = [run for run in found if getattr(run, key) == wanted]
    if name:
        found = [run for run in found if name.lower() in run.name.lower()]
    if sort is not None:
        key = sort.removeprefix("-")
        known = [run for run in found if getattr(run, key) is not None]
        known.sort(key=lambda run: getattr(run, key), reverse=sort.startswith("-"))
        found = known + [run for run in found if getattr(run, key) is None]
    if cursor is not None:
        offset += next((i + 1 for i, run in enumerate(found) if run.run_id == cursor), len(found))
    page = found[offset : offset + limit]
    following = page[-1].run_id if offset + limit < len(found) else None
    return as_json({"runs": builtins_of(page), "total": len(found), "next": following})


@router.get(
    "/runs/{run}",
    summary="What a run is and what it was read from",
    response_model=messages.Described,
    responses=errors(404),
)
def run(run: str, request: Request, who: Reader) -> Response:
    with reading(service_of(request), who.team) as connection:
        value = queries.description(connection, find(connection, run))
    return as_json(value.with_json())


@router.get(
    "/runs/{run}/report",
    summary="Where a run's time went: what `analyzer report` prints",
    response_model=RunReport,
    responses={200: {"content": {"text/plain": {}}}, **errors(404)},
)
def report(
    run: str, request: Request, who: Reader, format: Literal["json", "text"] = "json"
) -> Response:
    with reading(service_of(request), who.team) as connection:
        value = report_run(connection, find(connection, run))
    if format == "json":
        return as_json(builtins_of(value))
    from analyzer.render.report import print_report
    from analyzer.render.tables import console

    text = io.StringIO()
    print_report(value, console(text))
    return PlainTextResponse(text.getvalue())


@router.get(
    "/runs/{run}/kernels",
    summary="Kernel identities with counts, device time and launch cost",
    response_model=messages.KernelList,
    responses=errors(404),
)
def kernels(
    run: str,
    request: Request,
    who: Reader,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> Response:
    with reading(service_of(request), who.team) as connection:
        run_id = find(connection, run)
        found = queries.kernel_records(connection, run_id, limit=limit)
    return as_json({"run_id": run_id, "kernels": builtins_of(found)})


@router.get(
    "/runs/{run}/predict",
    summary="What a change would win: what `analyzer predict` prints",
    response_model=Predictions,
    responses=errors(404),
)
def predicted(
    run: str,
    request: Request,
    who: Reader,
    what: Annotated[
        list[str] | None, Query(description="graphs, compile, cpu-faster:X or fuse:N")
    ] = None,
) -> Response:
    with reading(service_of(request), who.team) as connection:
        value = predict(connection, find(connection, run), what or DEFAULT)
    return as_json(builtins_of(value))


@router.get(
    "/compare",
    summary="Runs compared with the first of them: what `analyzer compare` prints",
    response_model=GatedComparison,
    responses={200: {"content": {"text/plain": {}}}, **errors(404)},
)
def compare(
    request: Request,
    who: Reader,
    runs: Annotated[str, Query(description="ids, prefixes or names, separated by commas")] = "",
    run: Annotated[list[str] | None, Query(description="one of them; may hold a comma")] = None,
    fail_if: Annotated[
        list[str] | None, Query(description='a gate, e.g. "T_Orchestration > +5%"')
    ] = None,
    format: Literal["json", "text"] = "json",
) -> Response:
    wanted = [*(run or ()), *(part.strip() for part in runs.split(",") if part.strip())]
    if not wanted:
        raise HTTPException(422, "name the runs to compare: `run=A&run=B`, or `runs=A,B`.")
    if len(wanted) > _MOST_COMPARED:
        raise HTTPException(422, f"{len(wanted)} runs are too many to compare at once.")
    with reading(service_of(request), who.team) as connection:
        found = compare_runs(connection, [find(connection, name) for name in wanted])
    value = judge_all(found, fail_if or ())
    if format == "json":
        return as_json(builtins_of(value))
    from analyzer.render.comparison import print_comparison
    from analyzer.render.tables import console

    text = io.StringIO()
    print_comparison(value, console(text))
    return PlainTextResponse(text.getvalue())


def _original(service: Service, team: str, run_id: str) -> Upload | None:
    """The upload that a run was made of."""
    job = service.jobs.of_run(team, run_id)
    return service.uploads.find(team, job.sha256) if job else None


@router.get(
    "/runs/{run}/original",
    summary="The file that a run was made of, as it was sent",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}, **errors(404)},
)
def original(run: str, request: Request, who: Reader) -> Response:
    service = service_of(request)
    with reading(service, who.team) as connection:
        run_id = find(connection, run)
    upload = _original(service, who.team, run_id)
    if upload is None or not upload.is_stored:
        raise HTTPException(404, "this run did not come by an upload; its files are elsewhere.")
    sha256, kind = upload.sha256, "application/octet-stream"
    if service.blobs.size(who.team, sha256) is None:
        raise HTTPException(404, "the original is no longer on the server.")
    headers = {"Hostbound-Sha256": sha256}
    if (file := service.blobs.file(who.team, sha256)) is not None:
        return FileResponse(file, media_type=kind, filename=_download_name(upload), headers=headers)
    name = quote(_download_name(upload))
    headers["Content-Disposition"] = f"attachment; filename*=utf-8''{name}"
    headers["Content-Length"] = str(upload.size)
    return StreamingResponse(service.blobs.pieces(who.team, sha256), 200, headers, kind)


def _download_name(upload: Upload) -> str:
    given = upload.metadata.get("file") or upload.name or upload.sha256[:12]
    base = "".join(c if c.isalnum() or c in "-_.+" else "_" for c in PurePosixPath(str(given)).name)
    suffix = "." + upload.format.partition(".")[2] if upload.format else ""
    return base if base.endswith(suffix) else base + suffix


@router.delete(
    "/runs/{run}",
    summary="Delete a run, and its original when no other run was made of it",
    response_model=messages.Deleted,
    responses=errors(404),
)
def delete(run: str, request: Request, who: Annotated[Principal, long("admin")]) -> dict[str, Any]:
    service = service_of(request)
    with reading(service, who.team) as connection:
        run_id = find(connection, run)
        name = queries.run(connection, run_id).name
        upload = _original(service, who.team, run_id)
        job = service.jobs.of_upload(who.team, upload.sha256) if upload else None
        others = [r for r in job.run_ids if r != run_id] if job else []
        kept = [
            other
            for other in others
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [other]).fetchall()
        ]
    # The run last: after a crash in between it is still there to be deleted again.
    if upload is not None and not kept:
        service.uploads.drop(who.team, upload.id)
    service.jobs.forget_run(who.team, run_id)
    with open_store(service.store(who.team)).writing() as connection:
        connection.execute("BEGIN TRANSACTION")
        delete_run(connection, run_id)
        connection.execute("COMMIT")
    service.labels.forget(who, run_id, name)
    service.log("run deleted", team=who.team, run=run_id, by=who.token_id)
    return {"deleted": run_id}


_FORMS: dict[sql_child.Form, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}


@router.post(
    "/sql",
    summary="One SELECT over the team's runs, read-only, within time and memory",
    response_model=messages.Answer,
    responses={
        200: {"content": {_FORMS["csv"]: {}, _FORMS["arrow"]: {}}},
        **errors(400, 404, 413, 507),
    },
)
async def sql(
    body: messages.Statement, request: Request, who: Reader, format: sql_child.Form = "json"
) -> Response:
    service = service_of(request)
    gone = threading.Event()

    def run() -> Answered:
        if not service.store(who.team).exists():
            raise HTTPException(404, "there is no run in the store yet; upload one.")
        return service.sql.run(who.team, body.sql, body.limit, body.time_limit_s, gone, format)

    watch = asyncio.ensure_future(_disconnected(request))
    watch.add_done_callback(lambda _: gone.set())
    try:
        answer = await run_in_threadpool(run)
    except Crowded as error:
        raise HTTPException(429, str(error), headers={"Retry-After": "1"}) from error
    finally:
        watch.cancel()
    headers = {"Hostbound-Truncated": "true"} if answer.truncated else {}
    return Response(answer.content, 200, headers, _FORMS[format])


async def _disconnected(request: Request) -> None:
    """Wait until the client has gone, which no longer waits for the answer."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
