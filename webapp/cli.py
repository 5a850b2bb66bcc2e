"""`webapp`: serve the pages over one store. Imports little at first: a bare install answers."""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.endpoint import is_base_path
from schemas.extras import require
from webapp import settings


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, check that the extra is there, and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="webapp", description="Browse recorded runs.")
    parser.add_argument("--db", default="hostbound.duckdb", help="the store (default %(default)s)")
    parser.add_argument("--port", type=int, default=8501, help="port (default %(default)s)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve on (default %(default)s: this machine only)",
    )
    parser.add_argument(
        "--base-path",
        default="",
        metavar="PATH",
        help="path of the pages, as behind a proxy: /hostbound (default: none)",
    )
    arguments = parser.parse_args(argv)
    require("webapp", "streamlit", "altair", "duckdb", "polars", "vl_convert")
    if not 1 <= arguments.port <= 65535:
        print(f"{arguments.port} is no port; give one from 1 to 65535.", file=sys.stderr)
        return 2
    if not is_base_path(arguments.base_path):
        print(f"{arguments.base_path!r} is no path; write it as /hostbound.", file=sys.stderr)
        return 2
    if not _is_loopback(arguments.host):
        print(
            f"note: {arguments.host} can be reached by others; the pages have no login: "
            "whoever reaches them reads, queries and adds to this store.",
            file=sys.stderr,
        )
    os.environ[settings.STORE_VARIABLE] = str(Path(arguments.db).absolute())
    _serve(arguments.host, arguments.port, arguments.base_path)
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve(host: str, port: int, base_path: str) -> None:
    """Run Streamlit in this process."""
    # Deferred: a bare install answers what is missing.
    from streamlit.web import bootstrap

    from webapp import hosting, store

    store.lock_in_process()
    flags = hosting.configure(settings.options(host, port, base_path))
    bootstrap.run(str(settings.APP), False, [], flags)


if __name__ == "__main__":
    sys.exit(main())
