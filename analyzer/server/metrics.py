"""Figures for Prometheus: requests, uploads, conversions, SQL; no team and no name among them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from analyzer.server.jobs.queue import Jobs


class _JobCounts(Collector):
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("hostbound_jobs", "Conversions by state", labels=["state"])
        for state, count in self._jobs.counts().items():
            family.add_metric([state], count)
        yield family


class Metrics:
    """One registry a server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, jobs: Jobs) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_JobCounts(jobs))
        self.requests = Counter(
            "hostbound_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "hostbound_request_duration_seconds",
            "Time to answer a request",
            ["route"],
            registry=self.registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.uploaded_bytes = Counter(
            "hostbound_uploaded_bytes", "Bytes of uploads received", registry=self.registry
        )
        self.uploads_stored = Counter(
            "hostbound_uploads_stored", "Uploads acknowledged", registry=self.registry
        )
        self.uploads_refused = Counter(
            "hostbound_uploads_refused", "Uploads whose content was wrong", registry=self.registry
        )
        self.sql = Counter(
            "hostbound_sql_statements",
            "SQL statements by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.sql_running = Gauge(
            "hostbound_sql_running", "SQL statements running", registry=self.registry
        )

    def text(self) -> bytes:
        """The exposition that Prometheus reads."""
        return generate_latest(self.registry)
