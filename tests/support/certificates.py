"""TLS certificates for tests, made by the openssl command."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.programs import find_program


class Certificate(NamedTuple):
    """A self-signed certificate, and its key, as PEM files."""

    cert: Path
    key: Path

    @property
    def server_context(self) -> ssl.SSLContext:
        """TLS of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def make_certificate(folder: Path, *names: str, password: str | None = None) -> Certificate:
    """Make a certificate for names such as IP:127.0.0.1 and DNS:localhost. Skips the test if there is no openssl."""
    find_program("openssl", "openssl")
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    command += ["-subj", f"/CN={folder.name}", "-addext", f"subjectAltName={','.join(names)}"]
    command += ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    command += ["-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run(command, check=True, capture_output=True)
    return made
