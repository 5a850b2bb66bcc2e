"""One archive to a Hostbound server: declared by its hash, sent by tus 1.0, gone on with after a
cut.

    POST  /api/v1/uploads        its hash, size, format: 200 the server has it, 201 an upload
    HEAD  the upload             how many bytes the server has
    PATCH the upload             bytes from there; the answer to the last piece acknowledges the
                                 hash

Nothing counts as stored until the server has named the very hash of what was sent. What may pass
is tried again, later and later, for as long as patience lasts; what will not pass ends at once.
Clocks of the two hosts are never compared. The clock, the wait and the dice are passed in. Standard
library only.

    archive = packing.open_archive(path)
    uploader = Uploader(parse_endpoint(url, token), patience_s=30.0)
    stored = uploader.send(archive, archive.sha256(), {"client": "..."})
    conversion = uploader.wait(stored.sha256)
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from schemas.endpoint import TOKEN_VARIABLE, Answer, Endpoint, Unreachable, one_line
from schemas.errors import UploadError
from schemas.packing import Archive

UPLOADS = "/api/v1/uploads"
PIECE_BYTES = 64 << 20

_TUS = {"Tus-Resumable": "1.0.0"}
_PASSING = (408, 423, 425, 429)  # and every 5xx
_LONGEST_NAME = 200  # characters; a server takes 500
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_SHORTEST_SILENCE_S = 5.0
_LONGEST_SILENCE_S = 60.0
_REMEDY = {
    401: f"give a token of it in {TOKEN_VARIABLE} or --token-file",
    403: "ask for a token that may upload",
    404: "no Hostbound server answers at that address; check it",
    413: "record fewer steps, or ask for a higher limit",
}


class Refused(UploadError):
    """The server will not take it, however often it is sent."""


class GaveUp(UploadError):
    """Patience ran out; nothing is lost, and a later call goes on where this one stopped."""


@dataclass(frozen=True)
class Stored:
    """The server has it.

    Attributes:
        sha256: The hash that it has acknowledged.
        run_ids: What it has made of it before; empty if it had not yet.
        sent_bytes: 0 if it had it before.
    """

    sha256: str
    run_ids: list[str] = field(default_factory=list[str])
    sent_bytes: int = 0


@dataclass(frozen=True)
class Conversion:
    """What became of an upload on the server.

    Attributes:
        state: "done" or "failed".
        run_ids: The runs that were made of it.
        error: Why it failed, in one line.
        results: One entry a run, as the server's API describes them.
    """

    state: str
    run_ids: list[str]
    error: str | None
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class Patience:
    """How long to go on without progress, and how long to wait before the next try.

    Waits double from half a second to half a minute, each shortened by up to a half at random so
    that many hosts do not come back at the same moment.

    Args:
        seconds: Time without progress, from the first trouble on, after which `wait` gives up.
            A long piece on a slow line is no trouble.
    """

    def __init__(
        self,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.seconds = seconds
        self._sleep, self._now, self._dice = sleep, now, dice
        self.progress()

    def progress(self) -> None:
        """Something got through: patience is as long as ever, waits are short again."""
        self._tries = 0
        self._trouble_since: float | None = None

    def left_s(self) -> float:
        """Seconds until `wait` gives up; all of them while nothing is wrong."""
        if self._trouble_since is None:
            return self.seconds
        return max(0.0, self._trouble_since + self.seconds - self._now())

    def wait(self, why: str, at_least_s: float | None = None) -> None:
        """Sleep before another try.

        Raises:
            GaveUp: Patience is over, or would be before the server wants to be asked again.
        """
        if self._trouble_since is None:
            self._trouble_since = self._now()
        left = self.left_s()
        if left <= 0 or (at_least_s or 0.0) > left:
            again = f"; it asks to come back in {at_least_s:.0f} s" if at_least_s else ""
            raise GaveUp(f"no progress for {self.seconds - left:.0f} s ({why}{again})")
        pause = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self._tries, 16))
        pause *= 1 - self._dice() / 2
        self._tries += 1
        self._sleep(min(max(pause, at_least_s or 0.0), left))


class _Gone(Exception):
    """The server dropped what it had of an upload; it is to be declared again."""


class _Mismatch(Exception):
    """The server found another hash or size than was declared; `detail` is what it says."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Uploader:
    """Sends archives to one server.

    Args:
        patience_s: Seconds without one more byte taken after which it gives up.
        progress: Called with bytes that the server has, and bytes of all.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        patience_s: float = 300.0,
        *,
        piece_bytes: int = PIECE_BYTES,
        progress: Callable[[int, int], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.endpoint = endpoint
        self._patience = Patience(patience_s, sleep, now, dice)
        self._piece_bytes = piece_bytes
        self._progress = progress
        self._sleep = sleep

    def send(
        self,
        archive: Archive,
        sha256: str,
        metadata: Mapping[str, Any],
        once: Mapping[str, Any] | None = None,
    ) -> Stored:
        """Send what the server lacks of it; returns when the server has acknowledged `sha256`.

        Args:
            metadata: Kept beside the upload.
            once: Metadata of the first declaration alone: what asks for work, such as "again", must
                not ask twice when an upload is declared once more after a cut.

        Raises:
            Refused: The server will not take it.
            GaveUp: There was no progress for `patience_s`.
            UploadError: A file cannot be read, or changed while it was sent.
        """
        self._patience.progress()
        sending = _Sending(archive, sha256, dict(metadata), dict(once or {}))
        mismatches = 0
        while True:
            try:
                if (stored := self._declare(sending)) is not None:
                    return stored
                self._send_bytes(sending)
                if sending.acknowledged:
                    return Stored(sha256, sent_bytes=sending.sent_bytes)
                # The answer to the last piece was cut off, or named no hash: declared again, the
                # server says what it holds.
                self._patience.wait("the server acknowledged nothing")
            except _Gone:
                self._patience.wait("the server dropped the upload")
            except _Mismatch as error:
                mismatches += 1
                if archive.sha256() != sha256:
                    raise UploadError(
                        f"{archive.path} changed while it was sent; send it again when nothing "
                        "writes to it."
                    ) from error
                sending.furthest = 0
                if mismatches == 2:
                    raise Refused(
                        f"{self.endpoint.base} refused {archive.path} twice: {error.detail}."
                    ) from error
                self._patience.wait(error.detail)

    def wait(self, sha256: str) -> Conversion:
        """Ask until the server has converted an upload, or has failed to.

        Raises:
            Refused: The server does not know it, or does not tell.
            GaveUp: The server gave no answer for as long as patience lasts.
        """
        self._patience.progress()
        pause = 0.2
        while True:
            answer = self._ask("GET", f"{UPLOADS}/{sha256}")
            if answer.status != 200:
                raise self._refusal(answer, f"to tell about {sha256[:12]}...")
            found = answer.json()
            state, error = found.get("state"), found.get("error")
            if state in ("done", "failed"):
                reason = one_line(error, 500) if isinstance(error, str) else None
                return Conversion(state, _run_ids(found), reason, _items(found, "results"))
            self._patience.progress()  # it answers: however long the conversion takes
            self._sleep(pause)
            pause = min(5.0, pause * 1.5)

    def _declare(self, sending: _Sending) -> Stored | None:
        """Tell the server what comes; returns what it holds already, or None and where to go on."""
        answer = self._ask("POST", UPLOADS, sending.declaration())
        sending.once = {}
        if answer.status == 422:
            raise _Mismatch(answer.detail())
        found = answer.json()
        if answer.status == 200 and found.get("status") == "stored":
            self._acknowledge(sending, found.get("sha256"))
            return Stored(sending.sha256, _run_ids(found), sending.sent_bytes)
        url, offset = found.get("url"), found.get("offset")
        if answer.status in (200, 201) and isinstance(url, str) and isinstance(offset, int):
            sending.url = url
            self._go_on_from(sending, offset)
            return None
        raise self._refusal(answer, f"{sending.archive.path}")

    def _send_bytes(self, sending: _Sending) -> None:
        """Send from the server's offset to the end."""
        size = sending.archive.size
        while True:
            # A length of 0 asks for the acknowledgement of what is there.
            length = min(self._piece_bytes, size - sending.offset)
            headers = {
                **_TUS,
                "Content-Type": "application/offset+octet-stream",
                "Content-Length": str(length),
                "Upload-Offset": str(sending.offset),
            }
            try:
                answer = self.endpoint.request(
                    "PATCH",
                    sending.url,
                    body=sending.archive.read(sending.offset, length),
                    headers=headers,
                    timeout_s=self._timeout_s(),
                )
            except Unreachable as error:
                self._patience.wait(str(error))
                self._ask_offset(sending)
                if sending.offset >= size:
                    return
                continue
            if answer.status == 204:
                self._taken(sending, answer, length)
                if sending.acknowledged or sending.offset >= size:
                    return
            elif answer.status in (404, 410):
                raise _Gone
            elif answer.status == 422:
                raise _Mismatch(answer.detail())
            elif answer.status == 409:
                before = sending.offset
                self._ask_offset(sending)
                if sending.offset == before:
                    self._patience.wait(answer.detail(), answer.retry_after_s())
            elif _is_passing(answer):
                self._patience.wait(answer.detail(), answer.retry_after_s())
                self._ask_offset(sending)
            else:
                raise self._refusal(answer, f"{sending.archive.path}")

    def _taken(self, sending: _Sending, answer: Answer, length: int) -> None:
        if (acknowledged := answer.headers.get("hostbound-sha256")) is not None:
            self._acknowledge(sending, acknowledged)
        text = answer.headers.get("upload-offset", "")
        offset = int(text) if text.isdigit() else sending.offset + length
        sending.sent_bytes += max(0, offset - sending.offset)
        if offset == sending.offset and not sending.acknowledged and length:
            self._patience.wait("the server took nothing")
        self._go_on_from(sending, offset)

    def _ask_offset(self, sending: _Sending) -> None:
        answer = self._ask("HEAD", sending.url)
        if answer.status in (404, 410):
            raise _Gone
        text = answer.headers.get("upload-offset", "")
        if answer.status not in (200, 204) or not text.isdigit():
            raise self._refusal(answer, f"{sending.archive.path}")
        self._go_on_from(sending, int(text))

    def _go_on_from(self, sending: _Sending, offset: int) -> None:
        size = sending.archive.size
        if not 0 <= offset <= size:
            raise Refused(
                f"{self.endpoint.base} claims to have {offset} bytes of {sending.archive.path}, "
                f"which has {size}."
            )
        sending.offset = offset
        if offset > sending.furthest:
            sending.furthest = offset
            self._patience.progress()
        if self._progress is not None:
            self._progress(offset, size)

    def _acknowledge(self, sending: _Sending, sha256: object) -> None:
        if not isinstance(sha256, str) or sha256.lower() != sending.sha256:
            raise Refused(
                f"{self.endpoint.base} acknowledged {sha256!r} instead of {sending.sha256} for "
                f"{sending.archive.path}; it is not stored."
            )
        sending.acknowledged = True

    def _ask(self, method: str, path: str, value: dict[str, Any] | None = None) -> Answer:
        """A small request, until there is an answer that is no passing trouble."""
        body = None if value is None else json.dumps(value).encode()
        headers = _TUS if method == "HEAD" else {"Accept": "application/json"}
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        while True:
            try:
                answer = self.endpoint.request(
                    method, path, body=body, headers=headers, timeout_s=self._timeout_s()
                )
            except Unreachable as error:
                self._patience.wait(str(error))
                continue
            if not _is_passing(answer):
                return answer
            self._patience.wait(answer.detail(), answer.retry_after_s())

    def _timeout_s(self) -> float:
        return min(_LONGEST_SILENCE_S, max(_SHORTEST_SILENCE_S, self._patience.left_s()))

    def _refusal(self, answer: Answer, what: str) -> Refused:
        if 300 <= answer.status < 400:
            said = f"it sends on to {one_line(answer.headers.get('location', 'nowhere'), 200)}"
            remedy = "give that address if you trust it"
        else:
            said, remedy = answer.detail().rstrip("."), _REMEDY.get(answer.status)
        if answer.status in (200, 201, 204):
            said, remedy = "its answer is not one of a Hostbound server", _REMEDY[404]
        end = f"; {remedy}." if remedy else "."
        return Refused(f"{self.endpoint.base} refused {what}: {said} ({answer.status}){end}")


@dataclass
class _Sending:
    """One archive on its way: where the server has it, and how far."""

    archive: Archive
    sha256: str
    metadata: dict[str, Any]
    once: dict[str, Any]
    url: str = ""
    offset: int = 0
    furthest: int = 0
    sent_bytes: int = 0
    acknowledged: bool = False

    def declaration(self) -> dict[str, Any]:
        return {
            "sha256": self.sha256,
            "size": self.archive.size,
            "format": self.archive.format,
            "name": _shortened(self.archive.name),
            "host": _shortened(self.archive.host),
            "metadata": {**self.metadata, **self.once},
        }


def _shortened(text: str | None) -> str | None:
    return None if text is None else one_line(text, _LONGEST_NAME)


def _is_passing(answer: Answer) -> bool:
    return answer.status in _PASSING or answer.status >= 500


def _run_ids(found: Mapping[str, Any]) -> list[str]:
    return [one_line(str(run_id), 100) for run_id in _items(found, "run_ids")]


def _items(found: Mapping[str, Any], key: str) -> list[Any]:
    """The list at a key of somebody else's JSON; empty if there is none."""
    value = found.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []
