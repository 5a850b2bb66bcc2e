"""Login of the pages by an identity provider: one TOML file names it and maps its people to teams.

    [auth]                     as Streamlit's: redirect_uri, cookie_secret, client_id, ...
    [hostbound]
    claim = "groups"           which claim tells the team; a text or a list of texts
    [hostbound.teams]
    "gpu-performance" = "perf"

Who has no team here sees nothing. The API knows tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from analyzer.errors import AnalyzerError
from analyzer.server.layout import check_team

_SHORTEST_SECRET = 32
_ASKED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")


class Teams(msgspec.Struct, forbid_unknown_fields=True):
    """Which claim tells the team, and which of its values is which team."""

    teams: dict[str, str]
    claim: str = "email"


class Provider(msgspec.Struct, forbid_unknown_fields=True):
    """The file: `auth` goes to Streamlit as it is."""

    auth: dict[str, Any]
    hostbound: Teams

    def team_of(self, claims: Mapping[str, Any]) -> str | None:
        """The team of somebody who has logged in; None for one without."""
        if self.hostbound.claim == "email" and claims.get("email_verified") is False:
            return None
        value: Any = claims.get(self.hostbound.claim)
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, str) and one in self.hostbound.teams:
                return self.hostbound.teams[one]
        return None


def read(path: Path) -> Provider:
    """Read and check the file.

    Raises:
        AnalyzerError: It cannot be read, or lacks what is needed.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=Provider)
    except OSError as error:
        raise AnalyzerError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnalyzerError(
            f"{path} is no description of an identity provider: {error}."
        ) from error
    for team in found.hostbound.teams.values():
        check_team(team)
    if missing := [key for key in _ASKED if not found.auth.get(key)]:
        raise AnalyzerError(f"{path} lacks {', '.join(missing)} in [auth].")
    if len(str(found.auth["cookie_secret"])) < _SHORTEST_SECRET:
        raise AnalyzerError(
            f"cookie_secret in [auth] of {path} can be guessed: give {_SHORTEST_SECRET} random "
            "characters or more, e.g. of `openssl rand -hex 32`."
        )
    return found
