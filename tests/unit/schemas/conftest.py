"""Fixtures of the tests of uploads: a certificate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost and hostbound.test that only itself vouches for, with its key."""
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    names = "subjectAltName=DNS:localhost,DNS:hostbound.test"
    subject = ["-subj", "/CN=localhost", "-addext", names, "-days", "2"]
    files = ["-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    try:
        subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    except OSError:
        pytest.skip("no openssl here")
    path.write_text(path.read_text() + path.with_name("key.pem").read_text())
    return path
