"""Tokens over HTTP, for an admin of the team: make, list, revoke."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request

from analyzer.server.auth.principal import Principal
from analyzer.server.http import messages
from analyzer.server.http.access import needs, service_of
from analyzer.server.http.uploads import errors

router = APIRouter()
Admin = Annotated[Principal, Depends(needs("admin"))]


@router.post(
    "/tokens",
    summary="Make a token for this team; it is shown once",
    status_code=201,
    response_model=messages.CreatedToken,
    responses=errors(400, 413),
)
def create(body: messages.NewToken, request: Request, who: Admin) -> dict[str, Any]:
    service = service_of(request)
    text, token = service.tokens.create(who.team, body.scopes, body.name, body.expires_days)
    service.labels.note(who, "token created", token.id, {"scopes": token.scopes})
    service.log("token created", team=who.team, token=token.id, scopes=token.scopes)
    return {**dataclasses.asdict(token), "token": text}


@router.get(
    "/tokens",
    summary="The team's tokens, without their secrets",
    response_model=messages.TokenList,
    responses=errors(),
)
def tokens(request: Request, who: Admin) -> dict[str, Any]:
    return {"tokens": [dataclasses.asdict(one) for one in service_of(request).tokens.all(who.team)]}


@router.delete(
    "/tokens/{token_id}",
    summary="Revoke a token",
    response_model=messages.Deleted,
    responses=errors(404),
)
def revoke(token_id: str, request: Request, who: Admin) -> dict[str, Any]:
    service = service_of(request)
    if not service.tokens.revoke(token_id, who.team):
        raise HTTPException(404, "there is no such token.")
    service.labels.note(who, "token revoked", token_id, {})
    service.log("token revoked", team=who.team, token=token_id)
    return {"deleted": token_id}
