"""What `collector upload` and `collector record --upload` do: spooled runs to their servers, one
after the other.

One run that is refused does not keep the others; a server that was not reached for one run is not
waited for again with the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.errors import CollectorError
from collector.progress import Progress
from collector.upload.spool import Busy, Entry, Spool, Vanished, default_folder
from schemas.endpoint import Endpoint, parse_endpoint, read_token
from schemas.errors import HostboundError
from schemas.upload_client import Conversion, GaveUp, Stored, Uploader


@dataclass(frozen=True)
class Options:
    """How to send. `spool` None is the default folder; `patience_s` is time without progress."""

    token_file: Path | None = None
    insecure: bool = False
    spool: Path | None = None
    patience_s: float = 300.0
    delete_after: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        """Raise CollectorError for a patience that is none."""
        if not self.patience_s >= 0:
            raise CollectorError(f"--patience is {self.patience_s:g}; give seconds, 0 or more.")

    def open_spool(self) -> Spool:
        """The spool that these options name."""
        return Spool(self.spool or default_folder())

    def later(self) -> str:
        """What to tell about a run that is not sent."""
        where = f" {self.spool}" if self.spool else ""
        return f"It stays spooled; `collector upload --spool{where}` sends it later."

    def endpoint(self, url: str) -> Endpoint:
        """The server at an address, with the token.

        Raises:
            CollectorError: The address or the token cannot be used.
        """
        return parse_endpoint(url, read_token(self.token_file), self.insecure)


@dataclass(frozen=True)
class Outcome:
    """What became of one entry: `stored`, or an `error` (beside it if only the wait failed)."""

    entry: Entry
    stored: Stored | None
    conversion: Conversion | None
    error: HostboundError | None

    @property
    def code(self) -> int:
        """Exit code: 0 stored (and converted, if that was waited for), 1 not yet, 2 refused."""
        if self.error is not None:
            return 1 if isinstance(self.error, GaveUp | Vanished | Busy) else 2
        return int(self.conversion is not None and self.conversion.state != "done")


def check(options: Options, url: str) -> str:
    """See before the work that a run could be sent after it; returns the address as it is noted.

    Raises:
        CollectorError: The address, token or spool cannot be used.
    """
    base = options.endpoint(url).base
    options.open_spool().check()
    return base


def send(options: Options, entries: Iterable[Entry]) -> Iterator[Outcome]:
    """Send entries in turn; what is not stored stays in the spool."""
    spool = options.open_spool()
    silent: set[str] = set()
    for entry in entries:
        if entry.url in silent:
            yield Outcome(entry, None, None, GaveUp(f"{entry.path} is not sent. {options.later()}"))
            continue
        bar = Progress(f"upload {entry.name}")
        try:
            uploader = Uploader(options.endpoint(entry.url), options.patience_s, progress=bar)
            stored = spool.deliver(entry, uploader, options.delete_after)
        except GaveUp as error:
            silent.add(entry.url)
            text = f"{entry.url} did not take {entry.path}: {error}. {options.later()}"
            yield Outcome(entry, None, None, GaveUp(text))
        except HostboundError as error:
            yield Outcome(entry, None, None, error)
        else:
            yield (
                _waited(entry, stored, uploader)
                if options.wait
                else Outcome(entry, stored, None, None)
            )


def _waited(entry: Entry, stored: Stored, uploader: Uploader) -> Outcome:
    try:
        return Outcome(entry, stored, uploader.wait(stored.sha256), None)
    except GaveUp as error:
        text = f"{entry.path} is stored, but {entry.url} does not say what became of it: {error}."
        return Outcome(entry, stored, None, GaveUp(text))
    except HostboundError as error:
        return Outcome(entry, stored, None, error)
