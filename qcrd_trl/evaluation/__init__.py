"""How good a student is: does it predict the label, does its rationale reach it, and is it better than another."""

from .asking import EvaluationSettings, evaluate_student
from .comparison import Comparison, compare_results
from .outcome import EvaluationResult, QuestionResult, QuestionSamples
from .results import Results, read_results, results_of, write_results


__all__ = [
    "Comparison",
    "EvaluationResult",
    "EvaluationSettings",
    "QuestionResult",
    "QuestionSamples",
    "Results",
    "compare_results",
    "evaluate_student",
    "read_results",
    "results_of",
    "write_results",
]
