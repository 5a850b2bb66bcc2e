"""Which of the files that were found hold the ranks of one job, and so are one run.

Told by the job that a manifest names, or by rank and world size in the first bytes of a trace, and
by names that differ in the rank alone. What does not tell is loaded as a run of its own; what
contradicts itself is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzer.trace.stream import first_bytes
from schemas.errors import RunDirectoryError
from schemas.run_directory import MANIFEST, read_manifest

FRONT_END = re.compile(r"\.async_llm\.")  # vLLM's, which launches nothing
_HEAD_BYTES = 1 << 18
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{')
_FIELD = {name: re.compile(rb'"' + name + rb'"\s*:\s*(\d+)') for name in (b"rank", b"world_size")}
# dp0_pp0_tp1_dcp0_ep1_rank1 of vLLM, 1700000000.1-TP-1-DP-0 of SGLang, trace_rank_1, rank1/trace.
_RANK = re.compile(r"(?<![A-Za-z])(rank|dp|pp|tp|dcp|pcp|ep|moedp|cp)([-_]?)(\d+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Found:
    """One run to load: a path, or the paths of its ranks, in order of rank."""

    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The path, of several what they have in common, `*` for the rank."""
        if len(self.paths) == 1:
            return self.paths[0]
        return self.folder / _masked(self.paths[0].relative_to(self.folder), "*")

    @property
    def folder(self) -> Path:
        """The folder that all are in."""
        if len(self.paths) == 1:
            return self.paths[0].parent
        return Path(os.path.commonpath([path.parent for path in self.paths]))

    @property
    def name(self) -> str:
        """The name of a run of ranks: theirs without the rank, else their folder's."""
        shown = re.sub(r"[-_.]*" + _RANK.pattern, "", self.paths[0].name, flags=re.IGNORECASE)
        shown = re.sub(r"(\.pt)?(\.trace)?(\.json|\.sqlite|\.pftrace)?(\.gz)?$", "", shown).strip(
            "-_. "
        )
        return shown if len(shown) > 1 else self.folder.name or "ranks"


@dataclass(frozen=True)
class _Ranked:
    path: Path
    rank: tuple[int, ...]
    world: int | None
    job: str | None  # of a manifest


def join(paths: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Put the ranks of one job together.

    Returns:
        What is to be loaded, in the order of the first path of each, and what was found and not
        joined, in sentences.
    """
    if len(paths) < 2:
        return [Found((path,)) for path in paths], []
    ranked = [one for path in paths if (one := _ranked(path))]
    groups: list[list[_Ranked]] = []
    remarks: list[str] = []
    left = list(ranked)
    # Names alike but for the rank; then, for the rest, but for any number (times, process ids).
    for mask in (_but_rank, _but_numbers):
        by_key: dict[tuple[str, int | None], list[_Ranked]] = {}
        for one in left:
            by_key.setdefault((one.job or mask(one.path), one.world), []).append(one)
        left = list[_Ranked]()
        for own in by_key.values():
            ranks = {one.rank for one in own}
            if len(own) > 1 and len(ranks) == len(own):
                groups.append(sorted(own, key=lambda one: one.rank))
            elif mask is _but_rank or len(own) == 1:
                left += own
            else:
                remarks.append(_twice(own))
        remarks += _other_worlds(by_key) if mask is _but_numbers else []
    joined = {one.path: tuple(r.path for r in own) for own in groups for one in own}
    for front in (path for path in paths if FRONT_END.search(path.name)):
        beside = {paths for path, paths in joined.items() if path.parent == front.parent}
        if len(beside) == 1:
            whole = (*next(iter(beside)), front)
            joined |= dict.fromkeys(whole, whole)
    found = dict.fromkeys(joined.get(path, (path,)) for path in paths)
    return [Found(own) for own in found], remarks


def _ranked(path: Path) -> _Ranked | None:
    """The rank of a path; None if it does not tell one of several."""
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            return None
        try:
            job = read_manifest(path).job
        except RunDirectoryError:  # said when it is loaded
            return None
        return _Ranked(path, (job.rank,), job.world_size, job.id) if job else None
    if FRONT_END.search(path.name):
        return None
    head = first_bytes(path, _HEAD_BYTES)
    info = _INFO.search(head)
    numbers = [text.search(head, info.end()) if info else None for text in _FIELD.values()]
    rank, world = (int(number[1]) if number else None for number in numbers)
    if rank is not None and (world or 0) > 1:
        return _Ranked(path, (rank,), world, None)
    in_name = {part.lower(): int(number) for part, _, number in _RANK.findall(path.name)}
    if info or not in_name:
        return None
    order = [in_name["rank"]] if "rank" in in_name else list(in_name.values())
    return _Ranked(path, tuple(order), None, None)


def _masked(path: Path, by: str) -> str:
    return _RANK.sub(rf"\1\2{by}", str(path))


def _but_rank(path: Path) -> str:
    return _masked(path.absolute(), "#")


def _but_numbers(path: Path) -> str:
    return _DIGITS.sub("#", str(path.absolute()))


def _twice(own: Sequence[_Ranked]) -> str:
    seen: dict[tuple[int, ...], list[str]] = {}
    for one in own:
        seen.setdefault(one.rank, []).append(one.path.name)
    rank, names = next((rank, names) for rank, names in seen.items() if len(names) > 1)
    return (
        f"rank {'.'.join(map(str, rank))} stands {len(names)} times ({', '.join(names[:3])}), so "
        f"these {len(own)} files were not joined; give the files of one recording."
    )


def _other_worlds(groups: Iterable[tuple[str, int | None]]) -> list[str]:
    """What is said of names alike whose jobs have another number of ranks."""
    worlds: dict[str, list[int]] = {}
    for name, world in groups:
        worlds.setdefault(name, []).append(world or 0)
    return [
        f"{Path(name).name} holds ranks of different jobs (of {' and '.join(map(str, own))} "
        "ranks), which were not joined."
        for name, own in worlds.items()
        if len(own) > 1
    ]
