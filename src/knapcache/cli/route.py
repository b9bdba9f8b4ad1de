"""`knapcache route test REQUEST.json`: say which route of the settings applies to a request, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from knapcache.cli import options
from knapcache.cli.options import ENDPOINTS, read_body
from knapcache.cli.output import print_table, print_text
from knapcache.errors import InvalidInput

HELP = "say which route of the settings applies to a request"
DESCRIPTION = """Read a request and the settings of the proxy, and say which [[route]] applies and why. The first route
in the order of the settings whose conditions are all met applies. Nothing is sent."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = HELP[0].upper() + HELP[1:] + "."
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    test = actions.add_parser("test", help=HELP, description=DESCRIPTION)
    option = test.add_argument
    option("request", metavar="REQUEST", help="JSON file with the body of a request; -: standard input")
    options.add_config(test)
    option("--endpoint", metavar="NAME", help="such as chat/completions (default: the one that fits the body)")
    option("--tenant", metavar="NAME", default="", help="the tenant that sends the request")
    option("--header", metavar="NAME:VALUE", action="append", default=[], help="a header of the request")
    options.add_json(test)
    test.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.proxy.routing import RoutedRequest, Router
    from knapcache.proxy.settings.loading import load

    settings = load(args.config, secrets=False).settings
    body = read_body(args.request)
    model = body.get("model")
    request = RoutedRequest(
        endpoint=args.endpoint or fitting_endpoint(body),
        tenant=args.tenant,
        model=model if isinstance(model, str) else "",
        headers=dict(map(read_header, args.header)),
        body=body,
    )
    checks = Router(settings.route).explain(request)
    applied = checks[-1].route if checks and checks[-1].applies else None
    rules = {} if applied is None else applied.model_dump(mode="json", exclude_defaults=True)
    if args.json:
        shown = [
            {
                "route": check.route.name,
                "applies": check.applies,
                "conditions": [condition._asdict() for condition in check.conditions],
            }
            for check in checks
        ]
        print(
            json.dumps({"route": None if applied is None else applied.name, "rules": rules, "checks": shown}, indent=2)
        )
        return
    show(checks, applied, rules)


def show(checks: list[Any], applied: Any, rules: dict[str, Any]) -> None:
    """Print the result."""
    if not checks:
        print_text("The settings have no routes: all requests are served by the proxy's own settings.")
        return
    rows = [
        {
            "route": check.route.name,
            "condition": condition.text if condition else "none",
            "this request": condition.found if condition else "",
            "met": "yes" if condition is None or condition.holds else "no",
        }
        for check in checks
        for condition in check.conditions or (None,)
    ]
    print_table(rows)
    if applied is None:
        print_text("No route applies: the request is served by the proxy's own settings.")
        return
    conditions = ("name", "model", "endpoint", "tenant", "header", "field")
    given = [f"{name} = {json.dumps(value)}" for name, value in rules.items() if name not in conditions]
    print_text(f"The route {applied.name} applies: {', '.join(given) or 'it changes nothing'}.")


def fitting_endpoint(body: dict[str, Any]) -> str:
    """Return the endpoint that fits a body best."""
    found = next((ENDPOINTS[name] for name in ENDPOINTS if name in body), None)
    if found is None:
        fields = ", ".join(ENDPOINTS)
        raise InvalidInput(f"the request has none of {fields}, so its endpoint must be given (--endpoint)")
    return found[0]


def read_header(text: str) -> tuple[str, str]:
    """Return name and value of a header."""
    name, separator, value = text.partition(":")
    if not separator or not name.strip():
        raise InvalidInput(f"a header must be NAME:VALUE, not {text!r}")
    return name.strip().lower(), value.strip()
