"""Question logs, and their replay with the semantic tier."""

from knapcache.features.semantic.lab.read import LoggedQuestion, QuestionFields, read_questions
from knapcache.features.semantic.lab.replay import (
    SemanticReplay,
    comparison_for,
    embed_questions,
    exclude_long,
    replay,
    truth_differs,
)

__all__ = [
    "LoggedQuestion",
    "QuestionFields",
    "SemanticReplay",
    "comparison_for",
    "embed_questions",
    "exclude_long",
    "read_questions",
    "replay",
    "truth_differs",
]
