"""The API against its own description: generated requests get described answers, never a 5xx."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.team_server import TeamServer, make_token, packed, trace_bytes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server")]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
V1 = "/api/v1"
RUNS = ("latest", "trace", "gpt2-prefill-bs1-s512")
EXAMPLES = int(os.environ.get("HOSTBOUND_SCHEMA_EXAMPLES", "12"))


@schemathesis.serializer("application/offset+octet-stream")
def octets(ctx: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Iterator[Described]:
    """The description of a server with two runs, and a token for it."""
    data = tmp_path_factory.mktemp("schema") / "data"
    token = make_token(data)
    server = TeamServer(
        data, "--requests-per-second", "100000", "--sql-seconds", "2", "--workers", "1"
    ).start()
    with server.client(token) as client:
        client.upload(packed(samples_dir / "gpt2-prefill-bs1-s512"))
        client.upload(trace_bytes(), name="trace")
    yield Described(server.url, token)
    server.stop()


class Described:
    """A server's description, and what its token adds to a request."""

    def __init__(self, url: str, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}
        self.schema = schemathesis.openapi.from_url(
            f"{url}/api/v1/openapi.json", headers=self.headers
        )

    def operations(self) -> list[Any]:
        found = [result.ok() for result in self.schema.get_all_operations()]
        # What ends the test's own token or takes its runs away is left out.
        return [o for o in found if (o.method, o.path) not in {("delete", f"{V1}/runs/{{run}}")}]


def leads_somewhere(case: Any, number: int) -> None:
    """Every other request names something that is there."""
    given = case.path_parameters or {}
    if "run" in given and number % 2:
        given["run"] = RUNS[number % len(RUNS)]


def test_every_answer_is_as_described(described: Described) -> None:
    """schemathesis generates the requests, right and wrong ones, and judges the answers."""
    operations = described.operations()
    assert len(operations) >= 20
    asked = 0
    for operation in operations:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            leads_somewhere(case, asked)
            answer = case.call(headers=described.headers)
            case.validate_response(answer, checks=CHECKS)

        ask()
    assert asked >= len(operations) * EXAMPLES / 2
