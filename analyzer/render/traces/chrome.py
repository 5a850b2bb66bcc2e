"""A file in the Chrome format: for ui.perfetto.dev, and loads here.

Its `ts` and `dur` are microseconds, written with exactly three decimals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO

from analyzer.render.traces.annotated import Place


def microseconds(ns: int) -> str:
    """Nanoseconds as the format writes a time: microseconds with three decimals, exact."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


class ChromeWriter:
    """Writes the events of one or several traces.

    Attributes:
        label: Of the trace whose events come next, if the file has several. It stands in every
            process, so that who loads the file can tell the traces apart.
    """

    def __init__(self, out: IO[str], metadata: Mapping[str, object]) -> None:
        self.label = ""
        self._out = out
        self._separator = "\n"
        fields = (f"{_text(key)}:{_text(value)}," for key, value in metadata.items())
        out.write(f'{{{"".join(fields)}"traceEvents":[')

    def finish(self) -> None:
        """Write the end of the document."""
        self._out.write("\n]}\n")

    def write_name(self, what: str, pid: int, tid: int, value: str, key: str = "name") -> None:
        self._event(
            f'"ph":"M","name":"{what}","pid":{self._pid(pid)},"tid":{tid},"ts":0.000,'
            f'"args":{{"{key}":{value}}}'
        )

    def write_slice(
        self, category: str, name: str, at: Place, start: int, dur: int, args: str, flows: list[int]
    ) -> None:
        self._event(
            f'"ph":"X","cat":"{category}","name":{name},"pid":{self._pid(at[0])},"tid":{at[1]},'
            f'"ts":{microseconds(start)},"dur":{microseconds(dur)},"args":{{{args}}}'
        )

    def write_arrow(self, number: int, source: Place, begin: int, target: Place, end: int) -> None:
        # One arrow, one id: a viewer ends a flow at its first "f", and a graph launch has many.
        for ph, at, time in (("s", source, begin), ("f", target, end)):
            self._event(
                f'"ph":"{ph}","bp":"e","id":{number},"cat":"ac2g","name":"launch",'
                f'"pid":{self._pid(at[0])},"tid":{at[1]},"ts":{microseconds(time)}'
            )

    def _pid(self, pid: int) -> str:
        return f'"[{self.label}] {pid}"' if self.label else str(pid)

    def _event(self, text: str) -> None:
        self._out.write(f"{self._separator}{{{text}}}")
        self._separator = ",\n"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
