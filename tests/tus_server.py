"""A small upload server with faults on demand: cut connections, refusals, lies.

It speaks the uploads part of the server's HTTP contract, over a real socket, and keeps everything
it was told, so that a test can look.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

UPLOADS = "/api/v1/uploads"


@dataclass
class Fault:
    """What goes wrong with the next request of a method.

    Attributes:
        keep: Take this many bytes of the body, keep them, and hang up.
        lose: Hang up after the whole request was carried out, before the answer.
        status: Answer this, carrying out nothing and reading no body.
        lie: Acknowledge this hash instead of the true one.
        silent: Acknowledge nothing.
        forget: Drop all unfinished uploads first.
    """

    method: str
    keep: int | None = None
    lose: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    lie: str | None = None
    silent: bool = False
    forget: bool = False


@dataclass
class Upload:
    declared: dict[str, Any]
    content: bytearray = field(default_factory=bytearray)


class TusServer:
    """State and address of a running server; `requests` are method and path, in order."""

    def __init__(self) -> None:
        self.uploads: dict[str, Upload] = {}
        self.stored: dict[str, bytes] = {}
        self.declared: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.states: list[dict[str, Any]] = []
        self.reject_hashes = 0
        self._made = 0
        self._lock = threading.RLock()
        outer = self

        class Handler(_Handler):
            state = outer

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def counts(self) -> Counter[str]:
        return Counter(method for method, _ in self.requests)

    def take_fault(self, method: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.method == method:
                    self.faults.remove(fault)
                    return fault
        return None

    def open_upload(self, declared: dict[str, Any]) -> tuple[str, Upload]:
        with self._lock:
            for key, upload in self.uploads.items():
                if upload.declared["sha256"] == declared["sha256"]:
                    return key, upload
            self._made += 1
            key = f"u{self._made}"
            self.uploads[key] = Upload(declared)
            return key, self.uploads[key]

    def reset(self) -> None:
        """Forget everything."""
        self.__dict__.update(
            uploads={}, stored={}, declared=[], faults=[], requests=[], tokens=set(), states=[]
        )
        self.reject_hashes = 0

    def speak_tls(self, certificate: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = self.url.replace("http://127.0.0.1", "https://localhost")

    def serve(self) -> threading.Thread:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def running(certificate: Path | None = None) -> Iterator[TusServer]:
    """A server on loopback for the length of the block; with a certificate and key, over TLS."""
    server = TusServer()
    if certificate is not None:
        server.speak_tls(certificate)
    thread = server.serve()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    state: TusServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, value: Any = None, headers: dict[str, str] | None = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self) -> Fault | None:
        """Note the request; returns its fault if it is still to be carried out."""
        self.state.requests.append((self.command, self.path))
        self.state.tokens.add(self.headers.get("Authorization"))
        self.close_connection = True
        fault = self.state.take_fault(self.command) or Fault(self.command)
        if fault.forget:
            self.state.uploads.clear()
        if fault.status is not None:
            self.answer(fault.status, {"detail": f"told to say {fault.status}"}, fault.headers)
            return None
        return fault

    def do_POST(self) -> None:
        if (fault := self.begin()) is None:
            return
        declared = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.state.declared.append(declared)
        digest = declared["sha256"]
        if digest in self.state.stored:
            value = {"status": "stored", "sha256": fault.lie or digest, "run_ids": ["r1"]}
            return None if fault.lose else self.answer(200, value)
        key, upload = self.state.open_upload(declared)
        value = {"status": "incomplete", "protocol": "tus", "url": f"{UPLOADS}/{key}"}
        if not fault.lose:
            self.answer(201, {**value, "offset": len(upload.content)})
        return None

    def do_HEAD(self) -> None:
        if self.begin() is None:
            return
        upload = self.state.uploads.get(self.path.rpartition("/")[2])
        if upload is None:
            self.answer(404)
        else:
            self.answer(200, None, {"Upload-Offset": str(len(upload.content))})

    def do_PATCH(self) -> None:
        if (fault := self.begin()) is None:
            return
        key = self.path.rpartition("/")[2]
        upload = self.state.uploads.get(key)
        if upload is None:
            return self.answer(404, {"detail": "no such upload"})
        if int(self.headers["Upload-Offset"]) != len(upload.content):
            return self.answer(409, {"detail": "wrong offset"})
        length = int(self.headers["Content-Length"])
        wanted = length if fault.keep is None else min(fault.keep, length)
        upload.content += self.rfile.read(wanted)
        if fault.keep is not None:
            return None
        self.finish_patch(key, upload, fault)

    def finish_patch(self, key: str, upload: Upload, fault: Fault) -> None:
        headers = {"Upload-Offset": str(len(upload.content)), "Tus-Resumable": "1.0.0"}
        if len(upload.content) == upload.declared["size"]:
            digest = hashlib.sha256(upload.content).hexdigest()
            del self.state.uploads[key]
            if digest != upload.declared["sha256"] or self.state.reject_hashes > 0:
                self.state.reject_hashes -= 1
                return self.answer(422, {"detail": "the hash is another"})
            self.state.stored[digest] = bytes(upload.content)
            if not fault.silent:
                headers["Hostbound-Sha256"] = fault.lie or digest
        if not fault.lose:
            self.answer(204, None, headers)

    def do_GET(self) -> None:
        if self.begin() is None:
            return
        states = self.state.states
        self.answer(200, states.pop(0) if len(states) > 1 else states[0])
