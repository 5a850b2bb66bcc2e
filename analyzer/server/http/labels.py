"""What people say of runs, over HTTP, and the audit log of a team."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from analyzer.server.auth.principal import Principal
from analyzer.server.http import messages
from analyzer.server.http.access import long, needs, service_of
from analyzer.server.http.runs import find, reading
from analyzer.server.http.uploads import errors
from analyzer.server.labels import AuditEntry, Labels
from analyzer.store import open_store

router = APIRouter()


@router.patch(
    "/runs/{run}",
    summary="Rename a run, or change what is said of it; to archive it takes the scope admin",
    response_model=Labels,
    responses=errors(404, 413),
)
def change(
    run: str,
    body: messages.RunChange,
    request: Request,
    who: Annotated[Principal, long("upload")],
) -> dict[str, Any]:
    service = service_of(request)
    given = body.model_dump(exclude_unset=True)
    if "archived" in given and not who.may("admin"):
        raise HTTPException(403, "this token lacks the scope admin, which archives runs.")
    with reading(service, who.team) as connection:
        run_id = find(connection, run)
    name = given.pop("name", None)
    if name is not None:
        with open_store(service.store(who.team)).writing() as connection:
            connection.execute("UPDATE runs SET name = ? WHERE run_id = ?", [name, run_id])
        service.labels.note(who, "run renamed", run_id, {"name": name})
    service.log("run changed", team=who.team, run=run_id, by=who.token_id)
    return asdict(service.labels.change(who, run_id, given))


@router.get(
    "/audit",
    summary="Who changed or deleted what, newest first",
    response_model=messages.AuditLog,
    responses=errors(),
)
def audited(
    request: Request,
    who: Annotated[Principal, Depends(needs("admin"))],
    cursor: Annotated[int | None, Query(ge=0, le=2**53, description="`next` of a page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    found: list[AuditEntry] = service_of(request).labels.audited(who.team, cursor, limit)
    after = found[-1].seq if len(found) == limit else None
    return {"entries": [asdict(entry) for entry in found], "next": after}
