"""Load a folder of traces by the Ray cluster that RAY_ADDRESS names, and kill workers on the way.

Usage: ray_load.py FOLDER DB KILLS. Prints one line of JSON: states, who was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from analyzer.ingest import ingest
from analyzer.ingest.executors import Ray

# How Ray names a process that is at work on a task.
AT_WORK = b"ray::_done"


def at_work() -> list[int]:
    """Processes that work on a run right now."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(AT_WORK):
                    found.append(int(entry.name))
            except OSError:  # it has ended
                continue
    return found


def kill_some(kills: int, killed: list[int], done: threading.Event) -> None:
    """Kill a process at work, every now and then."""
    while len(killed) < kills and not done.is_set():
        victims = [process for process in at_work() if process not in killed]
        if victims and len(victims) + len(killed) > 0:
            time.sleep(0.3 + 0.4 * len(killed))  # somewhere within its work
            try:
                os.kill(victims[0], signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(victims[0])
        time.sleep(0.05)


def main() -> None:
    folder, db, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    killed: list[int] = []
    done = threading.Event()
    killer = threading.Thread(target=kill_some, args=(kills, killed, done))
    killer.start()
    began = time.monotonic()
    try:
        results = ingest(folder, db, engine=Ray())
    finally:
        done.set()
        killer.join()
    print(
        json.dumps(
            {
                "seconds": time.monotonic() - began,
                "states": [result.state for result in results],
                "errors": [result.error for result in results if result.error],
                "killed": len(killed),
                "write_seconds": [result.write_seconds for result in results],
                "work_seconds": [
                    (result.read_seconds or 0) + (result.analyse_seconds or 0) for result in results
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
