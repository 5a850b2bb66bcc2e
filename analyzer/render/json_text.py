"""Records as the JSON that commands print."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import orjson


def builtins_of(value: Any) -> Any:
    """A record as dicts, lists and plain values, its fields in their order."""
    return msgspec.to_builtins(value, enc_hook=str)


def print_json(value: Any) -> None:
    """Print a record to stdout; unknown is null."""
    text = orjson.dumps(builtins_of(value), option=orjson.OPT_INDENT_2)
    sys.stdout.write(text.decode() + "\n")
