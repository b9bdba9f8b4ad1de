"""Secrets in the forms in which prompts contain them, made from a seed."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable
from typing import NamedTuple

ALNUM = string.ascii_letters + string.digits
URL_SAFE = ALNUM + "-_"


class CorpusSecret(NamedTuple):
    """A secret, as it is in a text, and its random part, of which nothing may be left."""

    form: str
    text: str
    core: str


def corpus(count: int, seed: int) -> list[CorpusSecret]:
    """Return so many secrets, of all forms in turn."""
    draw = random.Random(seed)

    def token(length: int, letters: str = ALNUM) -> str:
        # A digit early on, as nearly every random key has.
        return "".join(draw.choices(letters, k=3)) + "7" + "".join(draw.choices(letters, k=length - 4))

    def pem(label: str, headers: str = "") -> CorpusSecret:
        body = base64.b64encode(draw.randbytes(600)).decode()
        lines = "\n".join(body[k : k + 64] for k in range(0, len(body), 64))
        return CorpusSecret(label, f"-----BEGIN {label}-----\n{headers}{lines}\n-----END {label}-----", body)

    def simple(form: str, before: str, core: str, after: str = "") -> CorpusSecret:
        return CorpusSecret(form, before + core + after, core)

    def jwt() -> CorpusSecret:
        core = ".".join(base64.urlsafe_b64encode(draw.randbytes(n)).decode().rstrip("=") for n in (36, 32))
        return simple("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJ", core)

    encrypted = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n"
    forms: list[Callable[[], CorpusSecret]] = [
        lambda: simple("OpenAI", draw.choice(("sk-proj-", "sk-svcacct-", "sk-")), token(48)),
        lambda: simple("Anthropic", "sk-ant-api03-", token(80, URL_SAFE)),
        lambda: simple("after a letter", draw.choice(("Xsk-", "keysk-proj-", "9sk-or-v1-")), token(48)),
        lambda: simple("other provider", draw.choice(("gsk_", "hf_", "xai-", "pplx-", "ghp_", "glpat-")), token(36)),
        lambda: simple("Google", "AIza", token(35, URL_SAFE)),
        lambda: simple("AWS", f"AKIA{token(16, string.ascii_uppercase + string.digits)} aws_secret_access_key = ",
                       token(40, ALNUM + "+/")),
        lambda: pem(draw.choice(("PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"))),
        lambda: pem("RSA PRIVATE KEY", encrypted),
        lambda: pem("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2 - test\nComment: https://example.com/a-b\n\n"),
        jwt,
        lambda: simple("header", draw.choice(("Authorization: Bearer ", "Authorization: Basic ", "x-api-key: ")),
                       token(40)),
        lambda: simple("URL", f"postgres://app:{draw.choice(('', '(', '!:'))}", token(20), "@db.example.com:5432/main"),
    ]  # fmt: skip
    return [forms[k % len(forms)]() for k in range(count)]


def left_of(secret: CorpusSecret, text: str, window: int = 10) -> bool:
    """Return whether a piece of the random part is in a text."""
    core = secret.core
    pieces = {core[k : k + window] for k in range(0, len(core) - window + 1, window // 2)}
    return any(piece in text for piece in pieces)
