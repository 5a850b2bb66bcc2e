"""The questions that an agent may ask of a store, one method each; nothing here writes.

Each answer carries what the run's evidence allows (`Judged`) and the keys that resolve to events:
run_id, trace_id, step_id, kernel_id, call_id. Times are integer nanoseconds, unknown is null.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from typing import Any

from analyzer import queries
from analyzer.agents.answer import Answer, Judged, offset, page
from analyzer.agents.glossary import explain, terms
from analyzer.errors import AnalyzerError
from analyzer.queries.costs import Costs, Ledger, Step, mean
from analyzer.queries.window import window
from analyzer.reports.comparison import compare
from analyzer.reports.evidence import evidence, withheld
from analyzer.reports.prediction import DEFAULT, predict
from analyzer.reports.records import Evidence
from analyzer.reports.report import figures, summary
from analyzer.store import Connection, Store
from analyzer.store.sandbox import rows, run_sql

_SQL_ROWS = 500  # more do not fit into an answer
_SQL_SECONDS = 30.0
_LARGEST = 8  # rows of a list inside a record
_SHOWN = (
    "elapsed_ns",
    "wall_ns",
    "device_active_ns",
    "device_busy_ns",
    "device_idle_ns",
    "orchestration_ns",
    "ft_ns",
    "ct_ns",
    "kt_ns",
    "tklqt_ns",
    "kernels",
    "launches",
)


class Tools:
    """A store's answers.

    Args:
        store: Gives the store of whoever asks.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def all(self) -> list[Callable[..., str]]:
        """Every tool; its name, arguments and docstring are what an agent is told of it."""
        return [
            self.runs, self.report, self.checks, self.ledger, self.steps, self.ops, self.kernels,
            self.timeline, self.compare, self.predict, self.sql, self.explain,
        ]  # fmt: skip

    def runs(self, contains: str = "", cursor: str | None = None) -> str:
        """List runs, newest last: id, name, model, mode, batch, steps, HDBI, median step.

        Args:
            contains: Only runs whose name, model, mode or GPU contains this text.
            cursor: That of the last answer, for what follows.
        """
        if not self._store().exists():  # a team's before its first run
            return page([], cursor, {}).text()
        wanted = contains.casefold()
        with self._connected() as connection:
            found = [
                run
                for run in queries.listed_runs(connection)
                if any(
                    wanted in str(text).casefold()
                    for text in (run.name, run.model, run.mode, run.gpu)
                )
            ]
            shown = [{k: v for k, v in asdict(run).items() if k != "phases"} for run in found]
            return page(shown, cursor, {}).text()

    def report(self, run: str = "latest") -> str:
        """Is the run host-bound, and which account is to blame? Verdict, balance, phases, latency.

        Args:
            run: Id, unambiguous prefix, name, or latest.
        """
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            found = summary(connection, run_id)
            phases = {
                name: {
                    "steps": figures.steps,
                    "hdbi": figures.hdbi,
                    "median_elapsed_ns": figures.median_elapsed_ns,
                    "median_orchestration_ns": figures.median_orchestration_ns,
                    "mean_step": _costs(mean(figures)),
                    "ledger_of_all_steps": _nonzero(figures.ledger),
                }
                for name, figures in islice(found.phases.items(), _LARGEST)
            }
            families = queries.families(connection, run_id)
            answer = {
                "run_id": run_id,
                "name": found.run.name,
                "model": found.run.model,
                "mode": found.run.mode,
                "batch_size": found.run.batch_size,
                "gpu": found.run.gpu,
                "verdict": found.verdict,
                "hdbi": found.measured.hdbi,
                "all_steps": _costs(found.measured),
                "phases": phases,
                "families_by_device_ns": {
                    name: family.device_ns for name, family in islice(families.items(), _LARGEST)
                },
                "latency_without_profiler": found.latency,
                "launch_floor_ns": found.totals.launch_floor_ns,
                "floor_source": found.totals.floor_source,
                "warnings": found.warnings[:_LARGEST],
            }
            return Answer(self._judged(connection, run_id), answer).text()

    def checks(self, run: str = "latest", cursor: str | None = None) -> str:
        """What the run's traces can prove: each check with verdict, what it touches, and remedy.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            cursor: That of the last answer, for what follows.
        """
        return self._rows(run, cursor, queries.checks)

    def ledger(self, run: str = "latest", phase: str = "") -> str:
        """Where the host's time of all steps went: each nanosecond in one account, exposed or not.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            phase: Only steps of this phase (prefill, decode, ...).
        """
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            own = [
                step
                for step in figures(connection, run_id).steps
                if not phase or step.phase == phase
            ]
            if not own:
                raise AnalyzerError(f"the run has no steps of phase {phase[:40]!r}.")
            sums = queries.added(own)
            answer = {
                "run_id": run_id,
                "steps": sums.steps,
                "wall_ns": sums.wall_ns,
                "device_idle_ns": sums.device_idle_ns,
                "accounts": sums.ledger,
            }
            return Answer(self._judged(connection, run_id), answer).text()

    def steps(self, run: str = "latest", cursor: str | None = None) -> str:
        """The run's steps in order of time: phase, start, elapsed, device and host costs.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            cursor: That of the last answer, for what follows.
        """

        place = ("step_id", "trace_id", "name", "phase", "batch", "start_ns", "end_ns", "hdbi")
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            shown = [
                {key: getattr(step, key) for key in place} | _costs(step)
                for step in figures(connection, run_id).steps
            ]
            return page(shown, cursor, self._judged(connection, run_id)).text()

    def ops(self, run: str = "latest", cursor: str | None = None) -> str:
        """Operators by what launching their kernels cost the host, most first.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            cursor: That of the last answer, for what follows.
        """
        return self._rows(run, cursor, queries.op_records)

    def kernels(self, run: str = "latest", cursor: str | None = None) -> str:
        """Kernels by device time, most first: counts, times, operator, launch cost, match.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            cursor: That of the last answer, for what follows.
        """
        return self._rows(run, cursor, queries.kernel_records)

    def timeline(
        self,
        run: str = "latest",
        step_id: int | None = None,
        trace_id: int = 0,
        start_ns: int | None = None,
        end_ns: int | None = None,
        least_ns: int = 0,
        cursor: str | None = None,
    ) -> str:
        """Ops, calls and device events of a step or of a window, in order of start.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            step_id: The window is this step, from its start to the end of its last kernel.
            trace_id: Without step_id: of which trace.
            start_ns: Without step_id: the window's start on the trace's clock.
            end_ns: Without step_id: its end.
            least_ns: Leave out what is shorter.
            cursor: That of the last answer, for what follows.
        """
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            if step_id is not None:
                step = next(
                    (s for s in queries.steps(connection, run_id) if s.step_id == step_id), None
                )
                if step is None:
                    raise AnalyzerError(f"the run has no step {step_id}; `steps` lists them.")
                trace_id, start_ns = step.trace_id, step.start_ns
                end_ns = step.start_ns + step.elapsed_ns
            if start_ns is None or end_ns is None or end_ns <= start_ns:
                raise AnalyzerError("a window needs step_id, or start_ns and an end_ns after it.")
            first = offset(cursor)
            events = window(
                connection, run_id, trace_id, start_ns, end_ns,
                least_ns=least_ns, first=first, limit=_SQL_ROWS,
            )  # fmt: skip
            return page(events, cursor, self._judged(connection, run_id), start=first).text()

    def compare(self, base: str, other: str) -> str:
        """What changed from one run to another: verdict, step times, accounts, largest changes.

        Args:
            base: Id, unambiguous prefix or name of the run that is the base.
            other: Of the run that is compared with it.
        """
        with self._connected() as connection:
            ids = [queries.find_run(connection, run) for run in (base, other)]
            found = compare(connection, ids)
            (pair,) = found.pairs
            answer = {
                "verdict": pair.verdict,
                "runs": [
                    {
                        "run_id": run.run_id,
                        "name": run.name,
                        "hdbi": run.hdbi,
                        "steps": run.steps,
                        "mean_step": _costs(run.per_step),
                    }
                    for run in found.runs
                ],
                "times": pair.times,
                "accounts": [row for row in pair.waterfall if row.before_ns or row.after_ns],
                "ops": pair.ops[:5],
                "kernels": [row for row in pair.kernels if row.status != "same"][:3],
                "warnings": pair.warnings,
            }
            evidence = {k: v for run in ids for k, v in self._judged(connection, run).items()}
            return Answer(evidence, answer).text()

    def predict(self, run: str = "latest", what: str = "") -> str:
        """What a change would win, predicted from one run, with bounds.

        Args:
            run: Id, unambiguous prefix, name, or latest.
            what: One change, e.g. graphs or cpu-faster:2; empty: the usual ones.
        """
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            found = predict(connection, run_id, [what] if what else DEFAULT)
            answer = {
                "run_id": run_id,
                "predictions": found.predictions,
                "exposed_ns": found.exposed,
                "measured": found.measured,
                "notes": found.notes,
                "validated": found.validated,
            }
            return Answer(self._judged(connection, run_id), answer).text()

    def sql(self, statement: str, cursor: str | None = None) -> str:
        """Answer one read-only SELECT in DuckDB's SQL. `SHOW TABLES` and `DESCRIBE t` work too.

        Args:
            statement: One statement; no files, no settings.
            cursor: That of the last answer, for what follows.
        """
        first = offset(cursor)
        table = run_sql(
            self._store(),
            statement,
            limit=first + _SQL_ROWS,
            time_limit_s=_SQL_SECONDS,
            shared=True,
        )
        named = [
            dict(zip(table.column_names, row, strict=True))
            for row in islice(rows(table), first, None)
        ]
        return page(named, cursor, {}, start=first).text()

    def explain(self, term: str = "") -> str:
        """What a word means that answers use.

        Args:
            term: E.g. HDBI, exposed, dFT; empty: which words are known.
        """
        return Answer({}, explain(term) if term else terms()).text()

    def _rows(
        self, run: str, cursor: str | None, ask: Callable[[Connection, str], list[Any]]
    ) -> str:
        with self._connected() as connection:
            run_id = queries.find_run(connection, run)
            known = evidence(connection, run_id)
            found = [withheld(row, known) for row in ask(connection, run_id)]
            return page(found, cursor, {run_id: judged(connection, run_id, known)}).text()

    def _connected(self) -> AbstractContextManager[Connection]:
        store = self._store()
        if not store.exists():
            raise AnalyzerError("there is no run yet.")
        return queries.connect(store)

    def _judged(self, connection: Connection, run_id: str) -> dict[str, Judged]:
        return {run_id: judged(connection, run_id, evidence(connection, run_id))}


def judged(connection: Connection, run_id: str, found: Evidence) -> Judged:
    """What a run's evidence says of its figures."""
    counts = queries.coverage(connection, run_id)
    reasons = [
        f"{bound.figures}: {bound.kind}. {bound.reason}. {bound.remedy}"
        for bound in found.bounds.values()
    ]
    return Judged(
        not reasons,
        reasons,
        {
            "device_events": counts.device_events,
            "with_launch": counts.with_launch,
            "with_op": counts.with_op,
            "launches": counts.launches,
        },
    )


def _costs(costs: Costs | Step) -> dict[str, int | None]:
    return {name: getattr(costs, name) for name in _SHOWN}


def _nonzero(ledger: Ledger) -> Ledger:
    return {name: time for name, time in ledger.items() if time.ns}
