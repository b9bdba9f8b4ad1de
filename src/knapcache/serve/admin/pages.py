"""The dashboard's files: read once, sent from memory, so that no path of a request ever reaches a disk.

They may run no script and take no style but their own files', load nothing from elsewhere, and stand in nobody's frame:
what a prompt or a model's name holds is text and stays text, even where the page forgets to make sure.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from knapcache.serve.http.asgi_request import RequestRejected

FOLDER = Path(__file__).parents[1] / "dashboard"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


class File(NamedTuple):
    """One of them."""

    content: bytes
    tag: str
    kind: str


class Pages:
    """All of them, by their path below the folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _file(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in TYPES and path.is_file()
        }

    async def serve(self, request: Request) -> Response:
        """GET or HEAD."""
        name = request.path_params.get("path") or "index.html"
        file = self._files.get(name)
        if file is None:
            raise RequestRejected(404, "there is no such page", "not_found")
        # no-cache: kept by the browser, and asked about each time; a new version shows at once.
        headers = {"etag": file.tag, "cache-control": "no-cache", "content-security-policy": POLICY}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)


def _file(path: Path) -> File:
    content = path.read_bytes()
    return File(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', TYPES[path.suffix])
