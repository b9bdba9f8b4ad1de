"""`knapcache why REQUEST PATH`: say whether a request is stored, and in which fields the nearest entry differs."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from knapcache.cli import cache_file, options
from knapcache.cli.output import print_table, print_text
from knapcache.errors import InvalidInput, reason_text
from knapcache.units import counted, format_age

HELP = "say why a request is not in a cache"
DESCRIPTION = """Compare a request with the entries of a cache. If it is stored, say where; otherwise show the most
similar entry and the fields in which it differs, and whether the semantic tier may serve its answer. Only bodies are
compared: a hit also needs the same tenant or API key, upstream and headers. The cache is only read; another process may
own it. For requests that a running proxy has served, its dashboard also knows what was evicted, expired or purged, and
which entry has answered by similarity."""
ENDPOINTS = {
    "messages": ("chat/completions", "messages"),
    "input": ("responses", "embeddings"),
    "prompt": ("completions",),
}
"""Endpoints that a request may be for, by a field that it has."""


def add(commands: Any) -> None:
    parser = commands.add_parser("why", help=HELP, description=DESCRIPTION)
    option = parser.add_argument
    option("request", metavar="REQUEST", help="JSON file with the body of a request; -: standard input")
    cache_file.add_options(parser)
    option("--endpoint", metavar="NAME", help="such as chat/completions (default: the one that fits best)")
    options.add_json(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.inspect import nearest_entry
    from knapcache.cache.opening import open_to_read

    requests = canonical_requests(read_body(args.request), args.endpoint)
    cache = cache_file.locate(args)
    with closing(open_to_read(cache.place, cache.secret, cache.keys)) as store:
        found = nearest_entry(store, requests)
        entry = None if found["row"] is None else store.get(bytes.fromhex(found["row"]["key"]))
    found["semantic"] = "" if found["stored"] or entry is None else semantic_text(requests, entry.request)
    if found["row"] is not None:
        found["row"] |= {"tenant": cache.names.name_of(found["row"]["tenant"])}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


def show(found: dict[str, Any]) -> None:
    """Print the result."""
    row, entries = found["row"], found["entries"]
    if row is None:
        many = counted(entries, "entry", "entries")
        print_text(f"New: no entry is similar to this request. Compared with {many}.")
        return
    tenant = f", tenant {row['tenant']}" if row["tenant"] else ""
    where = f"key {row['key'][:12]}, {row['endpoint']}, {row['model']}{tenant}, stored {format_age(row['age'])} ago"
    if found["stored"]:
        print_text(f"Stored: {where}.", "A request of the same tenant, upstream and headers is a hit.")
        return
    print_text(f"Not stored. The nearest entry ({where}) differs in:")
    shown = [
        {
            "field": each["field"],
            "this request": each["here"] if each["here"] is not None else "not set",
            "stored request": each["there"] if each["there"] is not None else "not set",
            "difference": each["text"],
        }
        for each in found["differences"]
    ]
    print_table(shown)
    print_text(f"Semantic tier: {found['semantic']}")


def semantic_text(requests: list[bytes], stored: bytes) -> str:
    """Return whether the semantic tier may serve the answer of a stored request to one of the others, in words."""
    from knapcache.features.semantic.question import read_question, stored_question
    from knapcache.features.semantic.reasons import EXCLUSIONS, VETOES
    from knapcache.features.semantic.vetoes import veto
    from knapcache.features.semantic.words import read_words
    from knapcache.keys.outline import read_canonical
    from knapcache.model import Endpoint

    there = read_canonical(stored)
    here = next((one for one in map(read_canonical, requests) if one and there and one.kind == there.kind), None)
    if here is None:
        return "the two requests are for different endpoints."
    asked = read_question(Endpoint(here.kind), here.body)
    if isinstance(asked, str):
        return f"this request is never matched: {EXCLUSIONS.get(asked, asked)}."
    matched = stored_question(stored)
    if matched is None or matched[1].frame != asked.frame:
        return "the two requests differ in more than the question, so none gets the answer of the other."
    if reason := veto(read_words(asked.text), read_words(matched[1].text)):
        return f"none of the questions gets the answer of the other, because {VETOES[reason]}."
    return "if it is on and certified, the stored answer may be served: only the wording of the question differs."


def read_body(source: str) -> dict[str, Any]:
    """Return the body of a request: a JSON object, or the `body` of a line of a batch file."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the request from {source}: {reason_text(error)}") from None
    body = found.get("body", found) if isinstance(found, dict) else found
    if not isinstance(body, dict):
        raise InvalidInput(f'a request must be a JSON object, such as {{"model": …}}; {source} has none')
    return body


def canonical_requests(body: dict[str, Any], endpoint: str | None) -> list[bytes]:
    """Return the canonical requests that a body may stand for."""
    from knapcache.cache.options import DEFAULT_SECRET
    from knapcache.errors import Uncacheable
    from knapcache.keys import Keyer

    names = (endpoint,) if endpoint else next((ENDPOINTS[name] for name in ENDPOINTS if name in body), ())
    if not names:
        fields = ", ".join(ENDPOINTS)
        raise InvalidInput(f"the request has none of {fields}, so its endpoint must be given (--endpoint)")
    keyer, found, reason = Keyer(DEFAULT_SECRET), [], ""
    for name in names:
        try:
            found += [key.canonical for key in keyer.read(name, body).keys]
        except Uncacheable as error:
            reason = str(error)
    if not found:
        raise InvalidInput(f"the request has no key, so it is never stored: {reason}")
    return found
