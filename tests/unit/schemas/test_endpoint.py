"""Where a token may go, and what an answer says."""

from __future__ import annotations

from pathlib import Path

import pytest

import tus_server
from schemas.endpoint import Answer, Endpoint, parse_endpoint, read_token
from schemas.errors import UploadError
from schemas.packing import open_archive
from schemas.upload_client import Uploader

TOKEN = "hb_secret"


@pytest.mark.parametrize(
    "url",
    [
        "https://hostbound.example",
        "https://hostbound.example:8443/prefix/",
        "http://127.0.0.1:8000",
        "http://[::1]:8000",
        "http://localhost:8000",
        "http://127.8.9.1",
    ],
)
def test_a_token_goes_over_tls_or_to_this_host(url: str) -> None:
    assert parse_endpoint(url, TOKEN).base == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://hostbound.example",
        "http://10.0.0.1:8000",
        "http://127.0.0.1.example",
        "http://localhost.example",
        "http://[::2]",
        "http://0.0.0.0",
    ],
)
def test_a_token_goes_in_clear_to_no_other_host_unless_told_to(url: str) -> None:
    with pytest.raises(UploadError, match="plain http") as raised:
        parse_endpoint(url, TOKEN)

    assert TOKEN not in str(raised.value)
    assert parse_endpoint(url, TOKEN, insecure=True).token == TOKEN
    assert parse_endpoint(url, None).token is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hostbound.example",
        "ftp://hostbound.example",
        "https://",
        "https://h:0",
        "https://h:99999",
        "https://h:port",
        "https://user@h",
        "https://user:secret@h",
        "https://h?token=x",
        "https://h/#x",
        "https://h/a b",
        "https://h/\r\nX: y",
        "https://[::1",
    ],
)
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(UploadError) as raised:
        parse_endpoint(url, None)
    assert "secret" not in str(raised.value)


def test_a_server_behind_a_prefix_is_asked_under_it() -> None:
    endpoint = parse_endpoint("https://h/hostbound", TOKEN)

    assert endpoint.url("/api/v1/uploads") == "https://h/hostbound/api/v1/uploads"
    assert endpoint.url("/hostbound/api/v1/uploads/u1") == "https://h/hostbound/api/v1/uploads/u1"
    assert endpoint.url("https://h:443/api/x?y=1") == "https://h/hostbound/api/x?y=1"


@pytest.mark.parametrize("url", ["https://evil.example/u1", "//evil.example/u1", "http://h/u1"])
def test_a_server_cannot_send_the_token_elsewhere(url: str) -> None:
    with pytest.raises(UploadError, match="sends on to"):
        parse_endpoint("https://h", TOKEN).url(url)


def test_a_token_comes_from_its_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of_file\n")
    monkeypatch.setenv("HOSTBOUND_TOKEN", "of_environment")

    assert read_token(tmp_path / "token") == "of_file"
    assert read_token(None) == "of_environment"
    monkeypatch.delenv("HOSTBOUND_TOKEN")
    assert read_token(None) is None


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "ümlaut", "a\x00b"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)

    with pytest.raises(UploadError, match="no token") as raised:
        read_token(tmp_path / "token")
    assert not text.strip() or text.strip() not in str(raised.value)


def test_a_token_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UploadError, match="cannot be read"):
        read_token(tmp_path / "missing")


def test_an_upload_goes_over_tls_to_a_certificate_that_is_trusted(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_bytes(b"x" * 3_000_000)
    archive = open_archive(tmp_path / "t.json")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with tus_server.running(certificate) as server:
        Uploader(parse_endpoint(server.url, TOKEN), 0.0).send(archive, archive.sha256(), {})

        assert list(server.stored) == [archive.sha256()]
        assert server.tokens == {f"Bearer {TOKEN}"}


def test_a_certificate_that_nobody_vouches_for_is_told_and_gets_no_token(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_bytes(b"x")
    archive = open_archive(tmp_path / "t.json")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with tus_server.running(certificate) as server:
        with pytest.raises(UploadError, match="SSL_CERT_FILE"):
            Uploader(parse_endpoint(server.url, TOKEN), 0.0).send(archive, archive.sha256(), {})

        assert server.tokens == set()


def test_a_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(Endpoint("https://h", TOKEN))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
        # Dates of a host that lives in 1999: only their difference counts.
        (
            {
                "retry-after": "Fri, 31 Dec 1999 23:59:59 GMT",
                "date": "Fri, 31 Dec 1999 23:59:50 GMT",
            },
            9.0,
        ),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        (
            {
                "retry-after": "Fri, 31 Dec 1999 23:59:40 GMT",
                "date": "Fri, 31 Dec 1999 23:59:50 GMT",
            },
            0.0,
        ),
    ],
)
def test_how_long_to_wait_is_never_taken_from_this_hosts_clock(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert Answer(503, headers, b"").retry_after_s() == seconds


def test_an_answer_is_told_in_one_line() -> None:
    assert Answer(403, {}, b'{"detail": "not\\n  allowed"}').detail() == "not allowed"
    assert Answer(400, {}, b'{"detail": "a\\u001b[31mb"}').detail() == "a [31mb"
    assert Answer(503, {}, b"<html>").detail() == "Service Unavailable"
    assert Answer(200, {}, b"[1]").json() == {}
