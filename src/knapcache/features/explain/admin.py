"""Explanations of requests in the admin API."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field, create_model

from knapcache.features.explain.explain import Explainer
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.request_models import RequestDetail, RequestPath
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.events.recent import row_of
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.http.asgi_request import RequestRejected


class ExplainAdmin:
    """Serves the route."""

    def __init__(self, context: ProxyContext, admin: AdminServices) -> None:
        self._admin, self._explainer = admin, Explainer(context, admin.tenant_name)
        fields: dict[str, Any] = {
            feature.name: (str, Field(description=feature.explains))
            for feature in context.features.active
            if feature.explains
        }
        self._model = create_model("RequestDetail", __base__=RequestDetail, __doc__=RequestDetail.__doc__, **fields)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(method="GET", path="/requests/{serial}", name="request",
                  summary="One request, and why it was a hit or a miss", response=self._model,
                  parameters=RequestPath, errors=(404, 503), serve=self.request),
        ]  # fmt: skip

    async def request(self, request: AdminRequest) -> RequestDetail:
        assert request.caller is not None
        await self._admin.refresh()
        serial, content = request.parameters.serial, self._admin.shows_content(request)
        found_event = self._admin.recent.find(serial)
        if found_event is None:
            raise RequestRejected(404, "This request is not among the recent ones.", "not_found")
        event, row = found_event[0], row_of(serial, *found_event)
        earlier, all_tenants = self._admin.recent.earlier(event), request.caller.identity.role == "operator"
        detail = partial(self._explainer.detail, self._model, row, event, earlier)
        found = await self._admin.in_thread(lambda: detail(content=content, all_tenants=all_tenants))
        if content:
            await self._admin.write_record(request.record("request", 200, key=event.key, content=True))
        return found
