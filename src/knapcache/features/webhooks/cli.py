"""`knapcache webhook test`: send a test event to the webhooks of the settings."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import closing
from typing import Any

from knapcache.cli import options
from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput

HELP = "send a test event to the webhooks of the settings"
DESCRIPTION = """Send the event "test" to each [[webhook]] of the settings, whatever events it wants, and print the
result. A failed delivery is tried once only, and ends with exit code 2."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = HELP[0].upper() + HELP[1:] + "."
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    test = actions.add_parser("test", help=HELP, description=DESCRIPTION)
    options.add_config(test)
    test.add_argument("--name", metavar="NAME", help="only this webhook")
    options.add_json(test)
    test.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.features.webhooks.settings import WebhooksSettings
    from knapcache.proxy.settings.loading import load

    settings = load(args.config, secrets=False).settings
    assert isinstance(settings, WebhooksSettings)
    found = [each for each in settings.webhook if args.name in (None, each.name)]
    if not found:
        raise InvalidInput("the settings have no [[webhook]]" + (f" named {args.name!r}" if args.name else ""))
    rows = asyncio.run(send(found))
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)
    if failed := [row["webhook"] for row in rows if row["delivered"] != "yes"]:
        raise InvalidInput(f"not delivered: {', '.join(failed)}")


async def send(settings: list[Any]) -> list[dict[str, Any]]:
    """Send the event, and return a row for each webhook."""
    from knapcache.features.webhooks.delivery import Webhook, WebhookClient, message_of

    with closing(WebhookClient()) as client:
        rows = []
        for webhook in (Webhook(each, client.post) for each in settings):
            result = await webhook.deliver(message_of("test"), attempts=1)
            answer = {"webhook": webhook.settings.name, "delivered": "yes" if result.delivered else "no"}
            rows.append({**answer, "signed": "yes" if webhook.settings.secret_env else "no", "error": result.error})
        return rows
