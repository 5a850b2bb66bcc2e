"""Uploads by way of a proxy that the environment names: a real one on loopback, which keeps all it
sees. It takes every name for the server's.
"""

from __future__ import annotations

import base64
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tus_server
from schemas.endpoint import parse_endpoint
from schemas.errors import UploadError
from schemas.packing import Archive, open_archive
from schemas.upload_client import GaveUp, Uploader

TOKEN = "hb_secret"


class Proxy(socketserver.ThreadingTCPServer):
    """Tunnels on CONNECT, and passes requests with a whole address on; `seen` is what clients sent.

    `wants` is the Proxy-Authorization without which it answers 407.
    """

    daemon_threads = True

    def __init__(self, behind: tuple[str, int], wants: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.behind, self.wants = behind, wants
        self.seen = bytearray()
        self.lines: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Client(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := self.request.recv(65536)):
                return
            head += piece
        proxy.seen += head
        line, _, rest = head.partition(b"\r\n")
        proxy.lines.append(line.decode())
        method, target, version = line.split()
        wants = proxy.wants
        if (
            wants is not None
            and f"proxy-authorization: {wants}".lower() not in head.decode().lower()
        ):
            self.request.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        with socket.create_connection(proxy.behind) as there:
            if method == b"CONNECT":
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = target.split(b"/", 3)[3]
                there.sendall(b"%s /%s %s\r\n%s" % (method, path, version, rest))
            back = threading.Thread(target=self._pass, args=(there, self.request, None))
            back.start()
            self._pass(self.request, there, proxy.seen)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, seen: bytearray | None) -> None:
        try:
            while piece := source.recv(65536):
                if seen is not None:
                    seen += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one side has hung up


@contextmanager
def proxied(server: tus_server.TusServer, wants: str | None = None) -> Iterator[Proxy]:
    parts = urlsplit(server.url)
    assert parts.port is not None
    with Proxy(("127.0.0.1", parts.port), wants) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "t.json").write_bytes(b"x" * 300_000)
    return open_archive(tmp_path / "t.json")


def send(url: str, archive: Archive, token: str | None = TOKEN, **options: Any) -> None:
    Uploader(parse_endpoint(url, token, **options), 0.0).send(archive, archive.sha256(), {})


def test_an_upload_goes_through_a_tunnel_in_which_the_proxy_reads_nothing(
    certificate: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with tus_server.running(certificate) as server, proxied(server) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        send("https://hostbound.test:8443", archive)

        assert list(server.stored) == [archive.sha256()]
        assert server.tokens == {f"Bearer {TOKEN}"}
        assert {line.rpartition(" ")[0] for line in proxy.lines} == {"CONNECT hostbound.test:8443"}
        assert len(proxy.seen) > 300_000
        for secret in (TOKEN.encode(), b"uploads", b"x" * 100):
            assert secret not in proxy.seen


def test_a_proxy_is_told_who_asks_and_the_server_is_not(
    certificate: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    wants = f"Basic {base64.b64encode(b'ada:p@ss').decode()}"
    with tus_server.running(certificate) as server, proxied(server, wants) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//ada:p%40ss@"))
        send("https://hostbound.test", archive)
        assert list(server.stored) == [archive.sha256()]

        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(UploadError, match=r"407.*USER:PASSWORD@"):
            send("https://hostbound.test", archive)


def test_no_proxy_is_asked_for_what_is_named_in_no_proxy_or_is_this_host(
    certificate: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with tus_server.running(certificate) as server, proxied(server) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        send(server.url, archive)
        assert list(server.stored) == [archive.sha256()]

        monkeypatch.setenv("NO_PROXY", "elsewhere.test,.test")
        with pytest.raises(GaveUp, match="name is not known"):
            send("https://hostbound.test", archive)
        assert proxy.lines == []


def test_a_proxy_of_plain_http_gets_the_whole_address_and_never_a_token(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tus_server.running() as server, proxied(server) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        with pytest.raises(UploadError, match="would read the token"):
            send("http://hostbound.test", archive, insecure=True)
        assert proxy.lines == []

        send("http://hostbound.test", archive, token=None)
        assert list(server.stored) == [archive.sha256()]
        assert proxy.lines[0] == "POST http://hostbound.test/api/v1/uploads HTTP/1.1"


def test_a_proxy_that_is_not_there_is_told_as_one(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
    with pytest.raises(GaveUp, match=rf"by the proxy 127\.0\.0\.1:{port}: connection refused"):
        send("https://hostbound.test", archive)


@pytest.mark.parametrize(
    "named", ["socks5://u:secret@h:1", "https://u:secret@h", "http://u:secret@h:port", "http://"]
)
def test_what_is_no_proxy_is_refused_and_not_shown(
    named: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    with pytest.raises(UploadError, match="HTTPS_PROXY names a proxy") as raised:
        send("https://hostbound.test", archive)
    assert "secret" not in str(raised.value)
