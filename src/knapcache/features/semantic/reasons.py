"""Why a question is not answered by similarity, in plain words."""

from __future__ import annotations

EXCLUSIONS = {
    "endpoint": "requests of this endpoint are never matched",
    "temperature": "its temperature is above semantic_temperature, which is 0 by default",
    "n": "it asks for several answers (n)",
    "logprobs": "it asks for log probabilities",
    "seed": "it sets a seed",
    "JSON schema": "it asks for an answer by a JSON schema",
    "several turns": "the conversation has several turns",
    "tools": "it continues a call of a tool",
    "several parts": "its text has several parts",
    "image or file": "it contains an image or a file",
    "long text": "its text is too long",
    "deixis": "its text refers to something outside of it, such as “this”",
    "date": "its text has a date that is relative to now",
    "code": "its text contains code",
    "language": "its text is not in English",
    "no key": "it has no key without its text",
    "no conversation": "it has no conversation",
    "no user text": "its last message is not the user's",
}
"""By the reasons of question.py and excluded.py."""
FAILURES = {
    "not ready": "its embedding model was not loaded yet",
    "busy": "too many questions were waiting",
    "timeout": "the search took too long",
    "failure": "its store, its log or the embedding API failed",
    "fault": "the question caused an error, which is in the log",
    "closing": "the proxy was stopping",
}
"""Why the tier could not look a question up."""
VETOES = {
    "number": "they have different numbers",
    "unit": "they have different units",
    "date": "they have different dates",
    "negation": "one of them negates, or has an opposite word",
    "quotation": "they quote different texts",
    "code": "they have different code words",
    "name": "they have different names",
    "order": "their words have another order",
}
"""By the names of vetoes.py."""
