"""Question logs, and their replay with the semantic tier."""

from knapcache.sim.semantic.compare import comparison_for, truth_differs
from knapcache.sim.semantic.read import LoggedQuestion, QuestionFields, read_questions
from knapcache.sim.semantic.replay import SemanticReplay, replay
from knapcache.sim.semantic.vectors import embed_questions, exclude_long

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
