"""Explanations of requests as a feature of the proxy: a route of the admin API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, create_model

from knapcache.features.explain.explain import Explainer
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.models import RequestDetail, RequestPath
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.events.recent import row_of
from knapcache.proxy.features import Feature
from knapcache.proxy.http.asgi_request import RequestRejected


class ExplainFeature(Feature):
    """Explains why a request was a hit or a miss."""

    name = "explain"

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        features = [feature for feature in self.context.features.active if feature.explains]
        fields: dict[str, Any] = {one.name: (str, Field(description=one.explains)) for one in features}
        model = create_model("RequestDetail", __base__=RequestDetail, __doc__=RequestDetail.__doc__, **fields)

        async def serve(request: AdminRequest) -> RequestDetail:
            assert request.caller is not None
            await admin.refresh()
            serial, content = request.parameters.serial, admin.shows_content(request)
            found = admin.recent.find(serial)
            if found is None:
                raise RequestRejected(404, "This request is not among the recent ones.", "not_found")
            event, row = found[0], row_of(serial, *found)
            explainer = Explainer(
                context=self.context,
                tenant_name=admin.tenant_name,
                event=event,
                earlier=admin.recent.earlier(event),
                content=content,
                all_tenants=request.caller.identity.role == "operator",
            )
            detail = await admin.in_thread(lambda: explainer.detail(model, row))
            if content:
                await admin.write_record(request.record("request", 200, key=event.key, content=True))
            return detail

        return [
            Route(method="GET", path="/requests/{serial}", name="request",
                  summary="One request, and why it was a hit or a miss", response=model,
                  parameters=RequestPath, errors=(404, 503), serve=serve),
        ]  # fmt: skip
