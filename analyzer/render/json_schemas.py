"""JSON Schemas of what `--json`, the API and the agents' tools give, made from the records.

    python -m analyzer.render.json_schemas schemas/json

writes them. A field's description is the comment that stands beside it. A schema's version goes up
when a field goes or changes its meaning; a new field is no new version, so readers must pass over
fields that they do not know.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import orjson

from analyzer.queries.records import ListedRun
from analyzer.reports.records import Diagnosis, GatedComparison, Predictions, RunReport

# Name to version and what a document is.
SCHEMAS: dict[str, tuple[int, Any]] = {
    "report": (1, RunReport),
    "compare": (1, GatedComparison),
    "predict": (1, Predictions),
    "doctor": (1, Diagnosis),
    "runs": (1, list[ListedRun]),
}
_FIELD = re.compile(r"^    (\w+): [^#]*#\s*(.+)$")
_REFERENCES = "#/$defs/{name}"


def schema(name: str) -> dict[str, Any]:
    """The schema of what a command's `--json` prints.

    Raises:
        KeyError: There is none of that name.
    """
    version, kind = SCHEMAS[name]
    (top,), parts = msgspec.json.schema_components(
        [kind], schema_hook=_foreign, ref_template=_REFERENCES
    )
    records = {record.__name__: record for record in _records(kind, set())}
    for part, described in parts.items():
        comments = _comments(records.get(part))
        for field, entry in described.get("properties", {}).items():
            if field in comments:
                entry["description"] = comments[field]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:hostbound:{name}:{version}",
        "title": f"analyzer {name} --json",
    }
    return {**head, **top, "$defs": parts}


def text(name: str) -> str:
    """The schema as its file has it."""
    return orjson.dumps(schema(name), option=orjson.OPT_INDENT_2).decode() + "\n"


def _foreign(kind: Any) -> dict[str, Any]:
    raise NotImplementedError(f"no schema for {kind}")


def _records(kind: Any, seen: set[type]) -> set[type]:
    """Every record that is reached from a type."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind not in seen:
        seen.add(kind)
        for base in kind.__mro__:
            for hint in inspect.get_annotations(base, eval_str=True).values():
                _records(hint, seen)
    for part in getattr(kind, "__args__", ()):
        _records(part, seen)
    return seen


def _comments(record: type | None) -> dict[str, str]:
    """Field to the comment beside it, those of bases too."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__ if record else ()):
        if dataclasses.is_dataclass(base):
            matches = map(_FIELD.match, inspect.getsource(base).splitlines())
            found |= {match[1]: match[2] for match in matches if match}
    return found


def main(folder: str) -> None:
    """Write all schemas into a folder."""
    for name in SCHEMAS:
        path = Path(folder) / f"{name}.schema.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
