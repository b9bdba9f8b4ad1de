"""The part of the semantic tier that the admin API uses."""

from __future__ import annotations

from typing import Any, Protocol

from knapcache.features.semantic.event import SemanticEvent


class SemanticControl(Protocol):
    """The semantic tier of the owner process. Its methods run on the event loop's thread."""

    async def report(self) -> list[dict[str, Any]]:
        """Return the state of each scope whose mode is not off.

        scope, mode, error, failure    failure: why the tier cannot match now; empty if it can
        model, questions, limit        build of the embedding model; questions in the index, and their maximum number
        and the report of the learner (learner.py). The last two lines are missing until the tier has started.
        """

    async def sweep(self) -> None:
        """Remove the questions whose entries are gone, after a purge. Raises StoreError."""

    async def feedback(self, event: SemanticEvent) -> None:
        """Add a label that says that the answer of a match was wrong. Raises InvalidInput or StoreError."""
