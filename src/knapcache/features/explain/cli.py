"""`knapcache why REQUEST PATH`: say whether a request is stored, and in which fields the nearest entry differs."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from typing import Any

from knapcache.cli import cache_file, options
from knapcache.cli.options import ENDPOINTS, read_body
from knapcache.cli.output import print_table, print_text
from knapcache.errors import InvalidInput
from knapcache.proxy.feature_list import FeatureSpec, feature_specs, imported
from knapcache.units import counted, format_age

DESCRIPTION = """Compare a request with the entries of a cache. If it is stored, say where; otherwise show the most
similar entry and the fields in which it differs, and whether a feature such as the semantic tier may serve its answer.
Only bodies are compared: a hit also needs the same tenant or API key, upstream and headers. The cache is only read;
another process may own it. For requests that a running proxy has served, its dashboard also knows what was evicted,
expired or purged, and which entry has answered by similarity."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
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
    texts = {} if found["stored"] or entry is None else feature_texts(requests, entry.request)
    found |= {spec.name: texts.get(spec, "") for spec in feature_specs() if spec.compare}
    if found["row"] is not None:
        found["row"] |= {"tenant": cache.names.name_of(found["row"]["tenant"])}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, texts)


def show(found: dict[str, Any], texts: dict[FeatureSpec, str]) -> None:
    """Print the result. texts: what features say about the nearest entry."""
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
    print_text(*(f"{spec.title}: {text}" for spec, text in texts.items()))


def feature_texts(requests: list[bytes], stored: bytes) -> dict[FeatureSpec, str]:
    """Return whether features may give the answer of a stored request to one of the others, in words."""
    return {spec: imported(spec.compare)(requests, stored) for spec in feature_specs() if spec.compare}


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
