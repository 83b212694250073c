"""Answers of language models: read what a text commits to, compare by value.

Only the standard library is used here, so that votes can be counted without loading a model library.
"""

from .values import TASK_KINDS, answers_equal, extract_answer, format_answer, parse_label


__all__ = ["TASK_KINDS", "answers_equal", "extract_answer", "format_answer", "parse_label"]
