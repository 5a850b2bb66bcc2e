"""What the analyzer says, byte for byte: of our samples, cases and recordings, and of others'.

`tests/integration/golden/` holds the SHA-256 of every output, a file a group, and beside it a zip
of the texts themselves where the input is ours: a long one by its first lines only. Of recordings
that others made it holds digests alone.

    python -m tests.support.golden --write         write the golden files again
    python -m tests.support.golden --dump DIR      write all texts whole: `diff -r` two checkouts
    python -m tests.support.golden                 name what differs from the golden files

`--only 'samples/*'` plays some scenes and leaves what is kept of the others.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from .golden_scenes import GROUPS, OTHERS, ROOT, Outputs, Scene, scenes, shared_folder

GOLDEN = ROOT / "tests" / "integration" / "golden"
LONGEST = 60_000  # characters of a text that are kept whole
FIRST_LINES = 12  # of a longer one
DIFF_LINES = 40  # of a difference that are shown

Digests = dict[str, dict[str, str]]  # scene -> output -> SHA-256


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def kept_digests(group: str) -> Digests:
    """What is kept of a group's scenes; empty if nothing is."""
    found: Digests = {}
    path = GOLDEN / f"{group}.sha256"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        value, _, name = line.partition("  ")
        scene, _, output = name.partition(" ")
        found.setdefault(scene, {})[output] = value
    return found


def kept_texts(group: str) -> dict[str, str]:
    """Texts by "SCENE OUTPUT", the long ones cut; none of recordings that others made."""
    path = GOLDEN / f"{group}.zip"
    if not path.is_file():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def kept_scenes() -> list[str]:
    """Names of all scenes that something is kept of."""
    return [scene for group in GROUPS for scene in kept_digests(group)]


def differences(scene: str, outputs: Outputs) -> list[str]:
    """One text for each output that is not the kept one; empty if all are."""
    group = scene.partition("/")[0]
    expected = kept_digests(group).get(scene, {})
    actual = {name: digest(text) for name, text in outputs.items()}
    found: list[str] = []
    for name in sorted({*expected, *actual}):
        if name not in actual:
            found.append(f"{name}: is no longer there")
        elif name not in expected:
            found.append(f"{name}: is new")
        elif actual[name] != expected[name]:
            before = kept_texts(group).get(f"{scene} {name}")
            found.append(f"{name}: differs\n{_difference(before, outputs[name])}")
    return found


def _difference(before: str | None, after: str) -> str:
    if before is None:
        return "  (its text is not kept; compare two --dump folders)"
    if before != _cut(after):
        lines = difflib.unified_diff(
            before.splitlines(), _cut(after).splitlines(), "kept", "now", lineterm="", n=1
        )
        return "\n".join(
            f"  {line[:300]}" for line, _ in zip(lines, range(DIFF_LINES), strict=False)
        )
    return f"  (after its first {FIRST_LINES} lines, which are kept; compare two --dump folders)"


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    first = [line[:400] for line in text.splitlines()[:FIRST_LINES]]
    return "\n".join([*first, f"(of {text.count(chr(10))} lines)"])


def write_texts(outputs: Outputs, folder: Path) -> None:
    """Write outputs whole, a file each."""
    for name, text in outputs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


def keep(group: str, played: dict[str, Outputs], known: Sequence[str]) -> None:
    """Write a group's golden files: scenes played now, what was kept of the other known ones."""
    digests = {scene: kept for scene, kept in kept_digests(group).items() if scene in known}
    texts = {
        n: t for n, t in kept_texts(group).items() if n.split(" ")[0] in {*digests} - {*played}
    }
    for scene, outputs in played.items():
        digests[scene] = {name: digest(text) for name, text in sorted(outputs.items())}
        texts |= {f"{scene} {name}": _cut(text) for name, text in outputs.items()}
    GOLDEN.mkdir(exist_ok=True)
    lines = [f"{v}  {scene} {n}\n" for scene in sorted(digests) for n, v in digests[scene].items()]
    (GOLDEN / f"{group}.sha256").write_text("".join(lines), encoding="utf-8")
    if group == OTHERS:
        return
    with zipfile.ZipFile(GOLDEN / f"{group}.zip", "w") as archive:
        for name in sorted(texts):
            entry = zipfile.ZipInfo(name)  # of one fixed date: the same texts are the same file
            archive.writestr(entry, texts[name], zipfile.ZIP_DEFLATED, 9)


def main(argv: Sequence[str] | None = None) -> int:
    """Write, dump, or compare; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.golden", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="write the golden files again")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write all texts whole")
    parser.add_argument("--only", default="*", metavar="GLOB", help="scenes, e.g. 'samples/*'")
    args = parser.parse_args(argv)
    shared = shared_folder()
    if shared is None:
        sys.stderr.write("no recorded traces: scenes that need HOSTBOUND_SHARED are left out\n")
    everything = scenes(shared)
    # Without the recordings nobody can say which of the kept scenes are no more.
    known = kept_scenes() if shared is None else []
    known += [scene.name for scene in everything]
    wanted = [scene for scene in everything if fnmatch(scene.name, args.only)]
    differing = 0
    for group in GROUPS:
        played: dict[str, Outputs] = {}
        for scene in [scene for scene in wanted if scene.group == group]:
            outputs = _played(scene, shared)
            if args.dump:
                write_texts(outputs, args.dump / scene.name)
            if args.write:
                played[scene.name] = outputs
            else:
                differing += _tell(scene.name, differences(scene.name, outputs))
        if args.write:
            keep(group, played, known)
    return 1 if differing else 0


def _played(scene: Scene, shared: Path | None) -> Outputs:
    sys.stderr.write(f"{scene.name}\n")
    return scene.play(shared)


def _tell(scene: str, found: list[str]) -> int:
    for text in found:
        print(f"{scene}/{text}")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
