"""Fuzzer of the canonicaliser: equal meaning ⇔ same key, and nothing but Uncacheable is raised.

Every mutated body is read by `Keyer` and by the reference (tests/support/keys_reference.py). All keys of a run are
compared with one another: two bodies have one key if and only if the reference finds one meaning. Bodies that are read
are written again in another spelling, which must have the same key.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from decimal import Decimal
from typing import Any

from knapcache.errors import Uncacheable
from knapcache.keys import Keyer, Rules
from knapcache.model import Endpoint
from tests.support.fuzzing import Mutator, Progress, no_progress
from tests.support.keys_reference import SIMILAR, meaning, read

KEYER = Keyer(b"a secret of the server")
REFUSED_BY_DESIGN = re.compile(
    "digits|characters|beyond|levels of nesting|more than|state of a server|depend on one another|neither a text"
)
"""Reasons to refuse a body that the reference reads: limits, and answers that depend on more than the body."""
CORPUS = (
    b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}',
    b'{"model": "gpt-4o", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], '
    b'"temperature": 0.7, "top_p": 1.0, "n": 2, "seed": 12345678901234567890, "stream": true, "user": "me"}',
    b'{"model":"m","messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9 \\ud83d\\ude00 \\n\\t\\"\\\\ \\/"}],'
    b'"logit_bias":{"50256":-100,"1":1e2}}',
    b'{"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":'
    b'{"a":{"type":"number","minimum":-1.5e-3,"maximum":1E+5},"b":{"enum":[null,true,false,"",0,-0,0.0]}}}}}]}',
    b'{"model":"m","x":[1,1.0,1.00,1e0,10e-1,0.1,1e-1,9007199254740993,1e23,5e-324,1e308,123456789.123456789e-40]}',
    b'{ "z" : [ [ [ { } ] ] ] ,\r\n\t"a" : { "b" : { "c" : [ 1 , 2 , { "d" : "e" } ] } } , "model" : "m" }',
    b'{"model":"e","input":"one text"}',
    b'{"model":"e","input":["one text","another",""],"dimensions":256,"encoding_format":"float"}',
    b'{"model":"e","input":[1,2,3]}',
    b'{"model":"e","input":[[1,2,3],[4],"text"],"user":"me"}',
    b'{"model":"claude","max_tokens":1024,"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],'
    b'"metadata":{"user_id":"u"},"stop_sequences":["a","\\u0061"]}',
    b'{"model":"r","input":"text","store":false,"previous_response_id":null,"reasoning":{"effort":"low"}}',
    b'{"a":1e9999999999999999999}',
    b"{}",
)
TOKENS = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"false", b"NaN", b"Infinity", b"-", b"+"),
    *(b"0", b"00", b"1", b"1.0", b"1e0", b"1E+0", b"-0", b"0e9", b".5", b"1.", b"1e400", b"1e-400", b"9" * 65, b"e"),
    *(b"9007199254740993", b"18446744073709551616", b"0.1", b"0.10", b"1e-1", b'"a":1,', b'"a":{},', b',"a":1.0'),
    *(b"\\u0000", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u00e9", b"\\u0022", b"\xc3\xa9", b"e\xcc\x81"),
    *(
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
        b"\0",
        b"\x1f",
        b" ",
        b"\n",
        b"\t\r",
    ),
    *(b'"model":"m",', b'"stream":true,', b'"user":"x",', b'"input":', b'"input":["a","b"],', b"[" * 30, b'{"a":' * 30),
)
ENDPOINTS = (Endpoint.CHAT, Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.EMBEDDINGS)


def fuzz_keys(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    """Return how many bodies had a key and how many were refused, and how many pairs of spellings were compared."""
    mutator, judge = Mutator(CORPUS, TOKENS, seed), KeyJudge()
    rng, values = mutator.rng, [value for text in CORPUS if (value := read_or_none(text))]
    for number, mutated in enumerate(mutator.cases(cases), 1):
        # Half of the cases are changed as values, because most changes of bytes leave no JSON.
        text = mutated if number % 2 else respell(rng, change(rng, rng.choice(values))).encode()
        endpoint = rng.choice(ENDPOINTS)
        try:
            value = judge.compare(endpoint, text)
            if value is not None and rng.random() < 0.2:
                judge.compare(endpoint, respell(rng, value).encode())
                judge.counts["respelled"] += 1
        except Exception as error:
            raise AssertionError(f"case {number} of seed {seed}, {endpoint}: {text!r}") from error
        if number % 500 == 0:
            progress(number)
    return {"cases": cases, **judge.counts, "distinct_keys": len(judge.meaning_of)}


class KeyJudge:
    """Compares keys with the reference, and with all keys before."""

    def __init__(self) -> None:
        self.counts = {"keyed": 0, "refused": 0, "respelled": 0}
        self.meaning_of: dict[bytes, bytes] = {}
        self._key_of: dict[bytes, bytes] = {}
        self._excluded = {endpoint: Rules().excluded(endpoint) for endpoint in Endpoint}

    def compare(self, endpoint: Endpoint, text: bytes) -> dict[str, Any] | None:
        """Return the body if it has keys."""
        wanted = read_or_none(text)
        try:
            found = KEYER.read(endpoint, text)
        except Uncacheable as reason:
            if isinstance(wanted, dict) and not REFUSED_BY_DESIGN.search(str(reason)):
                raise AssertionError("refused") from reason
            self.counts["refused"] += 1
            return None
        assert isinstance(wanted, dict), "a key for what is no JSON object"
        counted = {name: value for name, value in wanted.items() if name not in self._excluded[endpoint]}
        for key, means in zip(found.keys, meanings(endpoint, counted), strict=True):
            known = fingerprint(endpoint, means)
            assert self.meaning_of.setdefault(key.digest, known) == known, f"one key for two meanings: {means}"
            assert self._key_of.setdefault(known, key.digest) == key.digest, "two keys for one meaning"
        self.counts["keyed"] += 1
        return wanted


def fingerprint(endpoint: Endpoint, means: Any) -> bytes:
    """Return a digest of a meaning; the meanings of a long run would fill the memory."""

    def ordered(means: Any) -> Any:
        kind, value = means
        if kind == "object":
            return kind, sorted((name, ordered(inner)) for name, inner in value)
        return kind, [ordered(inner) for inner in value] if kind == "list" else value

    return hashlib.blake2b(
        repr((endpoint.value, ordered(means))).encode(errors="surrogatepass"), digest_size=16
    ).digest()


def read_or_none(text: bytes) -> Any:
    try:
        return read(text)
    except (ValueError, RecursionError):
        return None


def meanings(endpoint: Endpoint, body: dict[str, Any]) -> list[Any]:
    """Return the meaning of each item that has a key of its own."""
    if endpoint is not Endpoint.EMBEDDINGS:
        return [meaning(body)]
    value = body["input"]
    whole = isinstance(value, str) or all(map(is_token, value))
    return [meaning({**body, "input": item}) for item in ([value] if whole else value)]


def is_token(value: Any) -> bool:
    """Return whether a value is a whole number of 64 bits, in any spelling."""
    return type(value) in (int, Decimal) and -(2**63) <= value < 2**64 and value == int(value)


def change(rng: random.Random, value: Any) -> Any:
    """Return a copy with a value replaced by a similar one, or an item removed, repeated or renamed."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        names: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        at = rng.choice(names)
        copy: Any = value.copy()
        chance = rng.random()
        if chance < 0.1:
            del copy[at]
        elif chance < 0.2 and isinstance(copy, list):
            copy.insert(at, copy[at])
        elif chance < 0.2:
            copy[rng.choice(["a", "A", "é", "e\u0301", "input", "user", f"{at} "])] = copy.pop(at)
        else:
            copy[at] = change(rng, copy[at])
        return copy
    return rng.choice(SIMILAR)


def respell(rng: random.Random, value: Any) -> str:
    """Return other JSON text with the same meaning."""
    blank = rng.choice(["", "", " ", "\n\t"])
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        inner = f",{blank}".join(f"{respell(rng, name)}{blank}:{respell(rng, item)}" for name, item in items)
        return f"{{{blank}{inner}}}"
    if isinstance(value, list):
        return f"[{f'{blank},'.join(respell(rng, item) for item in value)}{blank}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return respell_number(rng, Decimal(repr(value)) if isinstance(value, float) else Decimal(value))


def respell_number(rng: random.Random, value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits)).lstrip("0") or "0"
    if len(written) > 40 or abs(exponent) > 300:  # near the limits of length, where spellings differ by design
        return str(value).lower().replace("e+", "e")
    zeros = rng.choice([0, 0, 1, 3])
    return f"{'-' if sign else ''}{written}{'0' * zeros}{rng.choice('eE')}{exponent - zeros}"
