"""`webapp`: serve the pages over one store. Imports nothing heavy: a bare install must answer."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.extras import require

APP = Path(__file__).parent / "app.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, check that the extra is there, and hand over to Streamlit."""
    parser = argparse.ArgumentParser(prog="webapp", description="Browse recorded runs.")
    parser.add_argument("--db", default="hostbound.duckdb", help="the store (default %(default)s)")
    parser.add_argument("--port", type=int, default=8501, help="port on 127.0.0.1 (%(default)s)")
    arguments = parser.parse_args(argv)
    require("webapp", "streamlit", "altair", "duckdb", "polars")
    if not APP.is_file():
        print(
            "this version has no pages yet: `analyzer report RUN` and `analyzer compare A B` "
            "print what a store holds",
            file=sys.stderr,
        )
        return 2
    command = [sys.executable, "-m", "streamlit", "run", str(APP)]
    command += ["--server.address", "127.0.0.1", "--server.port", str(arguments.port)]
    return subprocess.call([*command, "--", "--db", arguments.db])


if __name__ == "__main__":
    sys.exit(main())
