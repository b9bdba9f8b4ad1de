"""The dashboard's files, and the features on it. Files are read once and sent from memory, so no path of a request
reaches the disk.

    /dashboard, /dashboard/VIEW              the page, which shows the view of its address
    /dashboard/FILE                          a file of the page
    /dashboard/features/NAME/panel.js        the module of a feature

The content security policy allows only the page's own scripts and styles, no other hosts and no framing. So a prompt or
a model name cannot run as code, even if the page failed to escape it.

The page imports the module of every feature that is on. It draws a view at `/dashboard/NAME` and a part of the overview
(dashboard/frame.js says how). Features without the file `panel.js` beside their module are not on the page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from knapcache.proxy.admin_routes import ResponseModel
from knapcache.proxy.feature_list import FeatureSpec, feature_specs
from knapcache.proxy.http.asgi_request import RequestRejected

FOLDER = Path(__file__).parents[1] / "dashboard"
VIEWS = ("entries", "requests", "savings", "settings")
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

FeaturePanel = tuple[FeatureSpec, Path]
"""A feature, and the file of its JavaScript module."""


class PanelRow(ResponseModel):
    """A feature as the dashboard shows it."""

    name: Annotated[str, Field(description="Its view is /dashboard/NAME.")]
    title: str
    about: str
    on: bool
    turn_on: Annotated[str, Field(description="Lines of the settings file that turn it on.")]
    module: Annotated[str, Field(description="Path of the JavaScript module with its view.")]


class PanelPage(ResponseModel):
    """The features of this proxy, on or off."""

    rows: list[PanelRow]


def panel_row(spec: FeatureSpec, *, on: bool) -> PanelRow:
    return PanelRow(
        name=spec.name, title=spec.title, about=spec.about, on=on, turn_on=spec.turn_on, module=panel_url(spec)
    )


def panel_url(spec: FeatureSpec) -> str:
    """Return the path of a feature's module."""
    return f"/dashboard/features/{spec.name}/panel.js"


def feature_panels() -> list[FeaturePanel]:
    """Return the features with a panel, in the order of the list."""
    found = []
    for spec in feature_specs():
        module = find_spec(spec.feature.partition(":")[0])  # imports only the packages that contain it
        if module is not None and module.origin is not None:
            panel = Path(module.origin).with_name("panel.js")
            found += [(spec, panel)] if panel.is_file() else []
    return found


class StaticFile(NamedTuple):
    """Content, ETag and media type."""

    content: bytes
    etag: str
    media_type: str


class Pages:
    """Serves the files of FOLDER by their relative paths, the modules of features, and the page for each view."""

    def __init__(self, panels: Sequence[FeaturePanel]) -> None:
        self._files = {
            f"/dashboard/{path.relative_to(FOLDER).as_posix()}": _file(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in TYPES and path.is_file()
        }
        self._files |= {panel_url(spec): _file(module) for spec, module in panels}
        page = self._files["/dashboard/index.html"]
        views = (*VIEWS, *(spec.name for spec, _ in panels))
        self._files |= {f"/dashboard{view}": page for view in ("", "/", *(f"/{name}" for name in views))}

    async def serve(self, request: Request) -> Response:
        """Serve GET and HEAD."""
        file = self._files.get(request.scope["path"])
        if file is None:
            raise RequestRejected(404, "Not found.", "not_found")
        # no-cache: the browser stores the file and revalidates it each time, so a new version shows at once.
        headers = {"etag": file.etag, "cache-control": "no-cache", "content-security-policy": POLICY}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


def _file(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', TYPES[path.suffix])


async def _redirect_to_dashboard(_: Request) -> Response:
    return RedirectResponse("/dashboard", 307)


def dashboard_routes(panels: Sequence[FeaturePanel]) -> list[Route]:
    pages = Pages(panels)
    return [
        Route("/dashboard", pages.serve, methods=["GET"]),
        Route("/dashboard/{path:path}", pages.serve, methods=["GET"]),
        Route("/", _redirect_to_dashboard, methods=["GET"]),
    ]
