"""Features on the dashboard: which are on, the module of each, and the setting that turns it on.

The page imports the module of every feature that is on, from `/dashboard/features/NAME/panel.js`. The module draws a
view at `/dashboard/NAME` and a part of the overview (dashboard/frame.js says how).
Features without the file `panel.js` beside their module are not on the page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from knapcache.proxy.admin.models import ResponseModel
from knapcache.proxy.feature_list import FeatureSpec, feature_specs


class FeaturePanel(NamedTuple):
    """A feature as the dashboard shows it."""

    name: str
    """Name in addresses."""
    title: str
    about: str
    """What it does, in one line."""
    turn_on: str
    """Lines of the settings file that turn it on."""
    is_on: Callable[[], bool]
    module: Path
    """The file of its JavaScript module."""


def panel_url(name: str) -> str:
    """Return the path of a feature's module."""
    return f"/dashboard/features/{name}/panel.js"


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


def panel_row(panel: FeaturePanel) -> PanelRow:
    """Return the row of a feature."""
    return PanelRow(
        name=panel.name,
        title=panel.title,
        about=panel.about,
        on=panel.is_on(),
        turn_on=panel.turn_on,
        module=panel_url(panel.name),
    )


def feature_panels(is_on: Callable[[FeatureSpec], bool]) -> list[FeaturePanel]:
    """Return the features with a panel, in the order of the list. is_on: says which are on now."""
    found = []
    for spec in feature_specs():
        module = find_spec(spec.feature.partition(":")[0])  # imports only the packages that contain it
        panel = None if module is None or module.origin is None else Path(module.origin).with_name("panel.js")
        if panel is not None and panel.is_file():
            found.append(
                FeaturePanel(
                    name=spec.name,
                    title=spec.title,
                    about=spec.about,
                    turn_on=spec.turn_on,
                    is_on=partial(is_on, spec),
                    module=panel,
                )
            )
    return found
