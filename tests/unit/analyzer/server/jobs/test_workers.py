"""What a job says of an error that is the server's own."""

from __future__ import annotations

import pytest

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.jobs import workers


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            Unreachable('/srv/lake.toml did not answer: host "10.0.0.5", user "hostbound"'),
            "what it is kept in did not answer; the server's log says more",
        ),
        (
            AnalyzerError("The original is gone; upload it again."),
            "The original is gone; upload it",
        ),
        (OSError(28, "No space left on device", "/srv/spool/7"), "No space left on device"),
        (
            ValueError("connection to 10.0.0.5 lost"),
            "an error of its own (ValueError), which the server's log shows",
        ),
    ],
)
def test_a_job_tells_its_owner_why_but_not_where_the_server_keeps_things(
    error: Exception, expected: str
) -> None:
    told = workers.cause(error)

    assert told.startswith(expected)
    assert "/srv" not in told
    assert "10.0.0.5" not in told
    assert not told.endswith(".")
