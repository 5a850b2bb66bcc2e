"""What the dashboard asks for is what the server tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

from analyzer.server.metrics import Metrics
from support.server_parts import ServerParts


def test_the_dashboard_asks_for_metrics_that_there_are(root: Path, parts: ServerParts) -> None:
    metrics = Metrics(parts.jobs)
    metrics.requests.labels("GET", "/x", 200).inc()
    metrics.request_seconds.labels("/x").observe(1)
    metrics.sql.labels("answered").inc()
    told = metrics.text().decode()

    panels = json.loads((root / "deploy" / "grafana.json").read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"(?:hostbound|process)_\w+", target["expr"])
    }
    assert len(asked) > 5
    assert {name for name in asked if not re.search(rf"^{name}[ {{]", told, re.MULTILINE)} == set()
