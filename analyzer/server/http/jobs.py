"""Jobs over HTTP: what is queued, running, done or failed; and how much a team uses."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from analyzer.server.auth.principal import Principal
from analyzer.server.http import messages
from analyzer.server.http.access import needs, service_of
from analyzer.server.http.uploads import errors, job_shown
from analyzer.server.jobs.job import STATES

router = APIRouter()


@router.get(
    "/jobs",
    summary="Conversions, newest first",
    response_model=messages.JobList,
    responses=errors(),
)
def jobs(
    request: Request,
    who: Annotated[Principal, Depends(needs("upload|read"))],
    state: Annotated[Literal["queued", "running", "done", "failed"] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> dict[str, Any]:
    found = service_of(request).jobs
    rows = found.list(who.team, (state,) if state else STATES, limit, offset)
    return {"jobs": [job_shown(row) for row in rows], "counts": found.counts(who.team)}


@router.get(
    "/jobs/{job_id}", summary="One conversion", response_model=messages.Job, responses=errors(404)
)
def job(
    job_id: str, request: Request, who: Annotated[Principal, Depends(needs("upload|read"))]
) -> dict[str, Any]:
    found = job_shown(service_of(request).jobs.get(who.team, job_id))
    if found is None:
        raise HTTPException(404, "there is no such job.")
    return found


@router.post(
    "/jobs/{job_id}/retry",
    summary="Try a failed conversion again",
    response_model=messages.Job,
    responses=errors(404, 409),
)
def retry(
    job_id: str, request: Request, who: Annotated[Principal, Depends(needs("upload"))]
) -> dict[str, Any]:
    service = service_of(request)
    if service.jobs.get(who.team, job_id) is None:
        raise HTTPException(404, "there is no such job.")
    service.uploads.quotas.check_queue(who.team)
    again = job_shown(service.jobs.retry(who.team, job_id))
    if again is None:
        raise HTTPException(409, "only a failed job can be tried again.")
    service.workers.wake()
    return again


@router.get(
    "/usage",
    summary="What the team keeps and has queued, and how much of it it may",
    response_model=messages.Usage,
    responses=errors(),
)
def usage(
    request: Request, who: Annotated[Principal, Depends(needs("upload|read"))]
) -> dict[str, Any]:
    found = service_of(request).uploads.quotas.usage(who.team)
    return {**dataclasses.asdict(found), "text": found.line()}
