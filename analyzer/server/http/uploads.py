"""Uploads over HTTP: announce a content, send it by tus 1.0, see what became of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import IO, Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from analyzer.server.auth.principal import Principal
from analyzer.server.http import messages
from analyzer.server.http.access import needs, service_of
from analyzer.server.jobs.job import Job
from analyzer.server.layout import is_id, is_sha256
from analyzer.server.service import Service
from analyzer.server.uploads.uploads import (
    Announced,
    Ended,
    TooLarge,
    Upload,
    WrongContent,
    WrongOffset,
)

PREFIX = "/api/v1"
TUS = {"Tus-Resumable": "1.0.0"}
_GATHER = 1 << 20

router = APIRouter()

ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": messages.Error}
    for code in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507)
}


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The described errors of a route: those that any has, and `codes`."""
    return {code: ERRORS[code] for code in (401, 403, 422, 429, 503, *codes)}


def job_shown(job: Job | None) -> dict[str, Any] | None:
    """A job as the API shows it."""
    return None if job is None else {key: getattr(job, key) for key in messages.Job.model_fields}


def stored_shown(upload: Upload, job: Job | None) -> dict[str, Any]:
    """The answer for a content that is here."""
    return {
        "status": "stored",
        "sha256": upload.sha256,
        "job": job_shown(job),
        "run_ids": job.run_ids if job else [],
    }


@router.post(
    "/uploads",
    summary="Announce a content; says where to send it, or that it is stored",
    response_model=messages.Stored,
    responses={201: {"model": messages.Incomplete}, **errors(400, 409, 413, 507)},
)
def announce(
    body: messages.Announcement,
    request: Request,
    who: Annotated[Principal, Depends(needs("upload"))],
) -> JSONResponse:
    service = service_of(request)
    metadata = {k: v for k, v in body.metadata.items() if k != "origin" or who.local}
    wanted = Announced(body.sha256, body.size, body.format, body.name, body.host, metadata)
    upload = service.uploads.announce(who.team, wanted, who.token_id)
    if upload.is_stored:
        job = service.jobs.of_upload(who.team, body.sha256)
        ended = job is None or job.has_ended
        if (metadata.get("replace") is True or metadata.get("again") is True) and ended:
            service.uploads.quotas.check_queue(who.team)
            job_id = service.uploads.convert_again(who.team, upload, wanted)
            service.workers.wake()
            job = service.jobs.get(who.team, job_id)
        return JSONResponse(stored_shown(upload, job))
    url = f"{request.scope.get('root_path', '')}{PREFIX}/uploads/{upload.id}"
    return JSONResponse(
        {"status": "incomplete", "protocol": "tus", "url": url, "offset": upload.offset},
        201,
        headers={"Location": url, "Upload-Offset": str(upload.offset), **TUS},
    )


_OPTIONS: dict[str, Any] = {
    "summary": "What this server's tus speaks; asked without a token",
    "status_code": 204,
    "response_class": Response,
    "openapi_extra": {"security": []},
}


@router.options("/uploads", **_OPTIONS)
def options(request: Request) -> Response:
    return Response(
        status_code=204,
        headers={
            **TUS,
            "Tus-Version": "1.0.0",
            "Tus-Extension": "termination",
            "Tus-Max-Size": str(service_of(request).limits.upload_bytes),
        },
    )


@router.options("/uploads/{upload}", responses={422: ERRORS[422]}, **_OPTIONS)
def options_of_one(upload: str, request: Request) -> Response:
    return options(request)


def _check_version(version: str | None) -> None:
    if version is not None and version != "1.0.0":
        raise HTTPException(
            400,
            f"tus {version[:20]!r} is not spoken here; 1.0.0 is.",
            headers={"Tus-Version": "1.0.0"},
        )


def _find(service: Service, who: Principal, reference: str) -> Upload:
    row = service.uploads.find(who.team, reference)
    if row is None:
        raise HTTPException(404, "there is no such upload; announce the content again.")
    return row


@router.head(
    "/uploads/{upload}",
    summary="Where an upload ends (tus)",
    responses=errors(400, 404),
    response_class=Response,
)
def head(
    upload: str,
    request: Request,
    who: Annotated[Principal, Depends(needs("upload"))],
    tus_resumable: Annotated[str | None, Header()] = None,
) -> Response:
    _check_version(tus_resumable)
    row = _find(service_of(request), who, upload)
    headers = {
        **TUS,
        "Upload-Offset": str(row.offset),
        "Upload-Length": str(row.size),
        "Cache-Control": "no-store",
    }
    if row.is_stored:
        headers["Hostbound-Sha256"] = row.sha256
    return Response(status_code=200, headers=headers)


@router.patch(
    "/uploads/{upload}",
    summary="Send the next bytes of an upload (tus)",
    status_code=204,
    response_class=Response,
    responses=errors(400, 404, 408, 409, 413, 415, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/offset+octet-stream": {
                    "schema": {"type": "string", "format": "binary"}
                }
            },
        }
    },
)
async def patch(
    upload: str,
    request: Request,
    who: Annotated[Principal, Depends(needs("upload"))],
    upload_offset: Annotated[int, Header(ge=0, le=2**63 - 1)],
    tus_resumable: Annotated[str | None, Header()] = None,
) -> Response:
    _check_version(tus_resumable)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/offset+octet-stream":
        raise HTTPException(415, "send `Content-Type: application/offset+octet-stream`.")
    service = service_of(request)
    row, writer, stream = await run_in_threadpool(
        _begin, service, who, upload, upload_offset, request.headers.get("content-length", "")
    )
    if writer is not None and stream is not None:
        return await _receive(service, row, upload_offset, request, writer, stream)
    if upload_offset != row.size:
        raise WrongOffset(f"this upload is complete with {row.size} bytes.")
    return _acknowledged(row)


def _begin(
    service: Service, who: Principal, upload: str, offset: int, announced: str
) -> tuple[Upload, AbstractContextManager[IO[bytes]] | None, IO[bytes] | None]:
    """The upload, and its file open at the offset; none if its content is here already."""
    row = _find(service, who, upload)
    if not row.is_stored:
        service.uploads.quotas.check_queue(who.team)
        if announced.isdigit() and offset + int(announced) > row.size:
            coming = offset + int(announced)
            raise TooLarge(f"{row.size} bytes were announced, {coming} would come.")
        writer: AbstractContextManager[IO[bytes]] = service.uploads.writer(row, offset)
        try:
            return row, writer, writer.__enter__()
        except Ended:
            row = _find(service, who, upload)
    return row, None, None


def _acknowledged(row: Upload) -> Response:
    return Response(
        status_code=204,
        headers={**TUS, "Upload-Offset": str(row.size), "Hostbound-Sha256": row.sha256},
    )


async def _receive(
    service: Service,
    row: Upload,
    offset: int,
    request: Request,
    writer: AbstractContextManager[IO[bytes]],
    stream: IO[bytes],
) -> Response:
    """Append what the request brings; the last byte makes it an original."""
    error: BaseException | None = None
    try:
        offset = await _append(service, row, offset, request, stream)
        if offset < row.size:
            return Response(status_code=204, headers={**TUS, "Upload-Offset": str(offset)})
        try:
            job_id = await run_in_threadpool(service.uploads.complete, row)
        except WrongContent:
            service.metrics.uploads_refused.inc()
            raise
        service.metrics.uploads_stored.inc()
        request_id = request.scope.get("hostbound", {}).get("id")
        service.log("upload stored", id=request_id, team=row.team, sha256=row.sha256, job=job_id)
        service.workers.wake()
        return _acknowledged(row)
    except BaseException as raised:
        error = raised
        raise
    finally:
        kind = type(error) if error is not None else None
        # Also for a request that is cancelled: the file must be closed and free again.
        writer.__exit__(kind, error, error.__traceback__ if error else None)


async def _append(
    service: Service, row: Upload, offset: int, request: Request, stream: IO[bytes]
) -> int:
    held = bytearray()

    async def flush() -> None:
        nonlocal offset
        piece = bytes(held)
        held.clear()
        await run_in_threadpool(_write_all, stream, piece)
        offset += len(piece)
        service.metrics.uploaded_bytes.inc(len(piece))

    try:
        async for piece in request.stream():
            held += piece
            if offset + len(held) > row.size:
                raise TooLarge(f"more than the announced {row.size} bytes came.")
            if len(held) >= _GATHER:
                await flush()
    except ClientDisconnect:  # or one that is too slow: the middleware says that it has gone
        await flush()  # what came is kept: the client goes on from there
        # 408, not 400: a client that was only slow, or asleep, is to try again.
        raise HTTPException(
            408, "the rest of the request did not come; go on from the offset."
        ) from None
    await flush()
    return offset


def _write_all(stream: IO[bytes], piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[stream.write(view) :]


@router.delete(
    "/uploads/{upload}",
    summary="Give up an upload that is not complete (tus)",
    status_code=204,
    response_class=Response,
    responses=errors(400, 404, 409),
)
def terminate(
    upload: str,
    request: Request,
    who: Annotated[Principal, Depends(needs("upload"))],
    tus_resumable: Annotated[str | None, Header()] = None,
) -> Response:
    _check_version(tus_resumable)
    service = service_of(request)
    row = _find(service, who, upload)
    if row.is_stored:
        raise HTTPException(409, "this upload is complete; an admin can delete its runs.")
    service.uploads.give_up(who.team, row.id)
    return Response(status_code=204, headers=TUS)


_NO_JOB: dict[str, Any] = {
    "state": "incomplete",
    "error": None,
    "run_ids": [],
    "attempts": 0,
    "job_id": None,
    "queued_at": None,
    "started_at": None,
    "finished_at": None,
    "results": [],
}


@router.get(
    "/uploads/{upload}",
    summary="An upload by its id or its content's SHA-256, and what has become of it",
    response_model=messages.UploadState,
    responses=errors(404),
)
def upload_state(
    upload: str, request: Request, who: Annotated[Principal, Depends(needs("upload"))]
) -> dict[str, Any]:
    service = service_of(request)
    if not (is_id(upload) or is_sha256(upload)):
        raise HTTPException(404, "there is no such upload; give an id or a SHA-256.")
    row = _find(service, who, upload)
    job = service.jobs.of_upload(who.team, row.sha256) if row.is_stored else None
    keys = ("id", "sha256", "size", "offset", "format", "name", "host")
    upload_shown = {key: getattr(row, key) for key in keys}
    if job is None:
        return {**_NO_JOB, **upload_shown}
    return {**upload_shown, **(job_shown(job) or {}), "id": row.id, "job_id": job.id}
