"""What a reader of one trace format is: a module with the functions `sniff` and `read`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from analyzer.trace.events import Trace
from analyzer.trace.stream import TraceError

Read = TypeVar("Read")


@dataclass(frozen=True)
class ReadOptions:
    """How a trace file is read.

    Attributes:
        keep_python: Keep the events of Python functions; they are counted in any case.
        most_bytes: Bytes of JSON in the file that are read; more is refused. None: any number.
        most_events: Events of a document that are read; more is refused. None: any number.
        progress: Called with the file bytes read so far.
    """

    keep_python: bool = False
    most_bytes: int | None = None
    most_events: int | None = None
    progress: Callable[[int], None] | None = None

    def behind(self, done: int) -> ReadOptions:
        """Return the options for a file of several, before which `done` bytes were read."""
        told = self.progress

        def progress(at: int) -> None:
            if told:
                told(done + at)

        return replace(self, progress=progress)

    def check_size(self, path: Path, size: int) -> None:
        """Refuse a source of more bytes than are read.

        Raises:
            TraceError: It has more.
        """
        if self.most_bytes is not None and size > self.most_bytes:
            raise TraceError(
                f"{path} holds more than {self.most_bytes} bytes, the most that is read here; "
                "record a shorter time."
            )


DEFAULTS = ReadOptions()


class TraceReader(Protocol):
    """One trace format. Its module is the only one that knows the format's spelling and units."""

    def sniff(self, path: Path) -> bool:
        """Return whether a file is of this format, by its content; False if it cannot be read."""
        ...

    def read(self, path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
        """Read all traces in a file, several if several processes wrote it.

        Raises:
            TraceError: The file cannot be read, is no trace, holds no event, or more than the
                options allow. The message is one line.
        """
        ...


def ran_together(spans: Sequence[tuple[int, int] | None]) -> bool:
    """Whether files are of one job: there is a moment at which all of their processes ran.

    Args:
        spans: Start and end of each; None where it is not known.
    """
    known = [span for span in spans if span]
    if len(spans) < 2 or len(known) < len(spans):
        return len(spans) == 1
    return max(start for start, _ in known) <= min(end for _, end in known)


def each_file(
    folder: Path,
    files: Sequence[Path],
    options: ReadOptions,
    read: Callable[[Path, ReadOptions], Read],
) -> list[Read]:
    """Read the files of a folder that is one trace.

    Raises:
        TraceError: One cannot be read; the folder is named, since a file's name may be its host's.
    """
    done, found = 0, list[Read]()
    for file in files:
        try:
            found.append(read(file, options.behind(done)))
            done += file.stat().st_size
        except TraceError as error:
            raise TraceError(str(error).replace(str(file), str(folder))) from None
    return found
