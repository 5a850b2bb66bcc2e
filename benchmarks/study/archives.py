"""The archives in which a recording leaves the GPU host: few files of limited size."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from benchmarks.study.index import INDEX, say
from benchmarks.study.worker import TINY


def pack(out: Path, target: Path, most: int = 8, limit: int = 15 << 20) -> list[Path]:
    """Put what was recorded into at most `most` archives of at most `limit` bytes each.

    What does not fit is left out, the largest first, and said. The index goes first.
    """
    target.mkdir(parents=True, exist_ok=True)
    packed: list[tuple[str, bytes]] = []
    for path in sorted(out.iterdir()):
        if path.name == TINY or path.name.startswith("."):
            continue
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=5) as archive:
            archive.add(path, path.name)
        packed.append((path.name, buffer.getvalue()))
    packed.sort(key=lambda entry: (entry[0] != INDEX, -len(entry[1])))
    bins: list[list[tuple[str, bytes]]] = []
    for name, data in packed:
        if len(data) > limit:
            say(f"{name} is {len(data)} bytes packed and is left out")
            continue
        fitting = [b for b in bins if sum(len(d) for _, d in b) + len(data) + 2048 < limit]
        if fitting:
            fitting[0].append((name, data))
        elif len(bins) < most:
            bins.append([(name, data)])
        else:
            say(f"{name} does not fit into {most} archives and is left out")
    written: list[Path] = []
    for number, entries in enumerate(bins):
        path = target / f"study-{number}.tar"
        with tarfile.open(path, "w") as archive:
            for name, data in entries:
                info = tarfile.TarInfo(f"{name}.tar.gz")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        written.append(path)
    return written


def unpack(source: Path, out: Path) -> int:
    """Undo `pack`: every archive of a folder into `out`; returns how many entries there were."""
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(source.glob("study-*.tar")):
        with tarfile.open(path) as outer:
            for member in outer:
                stream = outer.extractfile(member)
                if stream is None:
                    continue
                with tarfile.open(fileobj=io.BytesIO(stream.read()), mode="r:gz") as inner:
                    inner.extractall(out, filter="data")
                count += 1
    return count
