"""The command line as a client of a server: asks, uploads a file in pieces, waits for its job.

Follows redirects nowhere and sends a token over plain HTTP to this machine only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from analyzer.errors import AnalyzerError
from schemas.run_directory import file_sha256

_PIECE = 8 << 20
_TRIES = 5
_LOOK_S = 0.1


class Client:
    """One server and a token."""

    def __init__(self, url: str, token: str) -> None:
        """Prepare; asks nothing yet.

        Raises:
            AnalyzerError: The address is none, or the token would go in clear over a network.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AnalyzerError(f"{url!r} is no address of a server; give http(s)://HOST:PORT.")
        local = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
        if token and parts.scheme == "http" and not local:
            raise AnalyzerError(f"{url} would carry the token in clear; use https.")
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=60.0, trust_env=not local
        )

    def get(self, path: str, query: dict[str, Any] | None = None) -> Any:
        """The JSON at a path.

        Raises:
            AnalyzerError: The server cannot be reached or refuses.
        """
        return self._send("GET", path, params=query).json()

    def upload(
        self,
        path: Path,
        *,
        form: str | None,
        name: str | None,
        metadata: dict[str, Any],
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Send a file, from where the server has it; returns the answer "stored" with its job.

        Raises:
            AnalyzerError: The file cannot be read, or the server refuses it.
        """
        try:
            size, sha256 = path.stat().st_size, file_sha256(path)
        except OSError as error:
            raise AnalyzerError(f"{path} cannot be read: {error.strerror}.") from error
        body = {
            "sha256": sha256,
            "size": size,
            "format": form,
            "name": name,
            "metadata": metadata,
        }
        for _ in range(_TRIES):
            answer = self._send("POST", "/api/v1/uploads", json=body).json()
            if answer["status"] == "stored":
                return answer
            with path.open("rb") as stream:
                self._send_bytes(answer["url"], stream, answer["offset"], size, progress)
            body["metadata"] = {k: v for k, v in metadata.items() if k not in ("replace", "again")}
        raise AnalyzerError(f"{path} did not arrive whole at {self.url}; try again.")

    def _send_bytes(
        self,
        url: str,
        stream: IO[bytes],
        offset: int,
        size: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        def pieces() -> Iterator[bytes]:
            done = offset
            while piece := stream.read(_PIECE):
                yield piece
                done += len(piece)
                if progress:
                    progress(done)

        stream.seek(offset)
        self._send(
            "PATCH",
            url,
            content=pieces(),
            headers={
                "Content-Type": "application/offset+octet-stream",
                "Content-Length": str(size - offset),
                "Upload-Offset": str(offset),
                "Tus-Resumable": "1.0.0",
            },
        )

    def wait(self, job_id: str) -> dict[str, Any]:
        """A job once it has ended.

        Raises:
            AnalyzerError: The server went away.
        """
        while True:
            job = self.get(f"/api/v1/jobs/{job_id}")
            if job["state"] in ("done", "failed"):
                return job
            time.sleep(_LOOK_S)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise AnalyzerError(
                f"{self.url} does not answer: {error}; is the server up?"
            ) from error
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = answer.reason_phrase
        raise AnalyzerError(f"{self.url} refused ({answer.status_code}): {detail}")
