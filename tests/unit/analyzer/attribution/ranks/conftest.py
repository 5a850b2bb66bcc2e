from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from analyzer.attribution import decomposition, ledger
from analyzer.attribution.decomposition import UNKNOWN, Floor
from analyzer.attribution.links import link_trace
from analyzer.attribution.ranks import JoinedRanks, join_ranks
from analyzer.trace import kineto
from tests.support.rank_traces import RankTrace, write_ranks


@pytest.fixture
def joined(tmp_path: Path) -> Callable[..., tuple[list[JoinedRanks], list[str]]]:
    """Link traces of ranks and join them: one entry a repetition, and the codes of findings."""

    def run(ranks: Sequence[RankTrace], *globs: str, name: str = "job-rank{}.json"):
        paths = write_ranks(list(ranks), tmp_path, name)
        linked = [link_trace(kineto.read(path)[0], globs) for path in paths]
        spans = [decomposition.spans(one) for one in linked]
        for one, launches in zip(linked, spans, strict=True):
            decomposition.decompose(one, launches, Floor("none", UNKNOWN, {}))
        found, findings = join_ranks(
            linked, lambda i, thread: ledger.owned(linked[i], spans[i], thread)
        )
        return found, [finding.code for finding in findings]

    return run
