"""Texts from anywhere, as they may stand in Markdown."""

import re
from typing import Any


def one_line(text: Any) -> str:
    """A text on one line, without control characters and lone surrogates."""
    text = "".join(c if c.isprintable() else " " for c in str(text))
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def plain(text: Any) -> str:
    """As Markdown that shows the text itself."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", one_line(text))


def code(text: Any) -> str:
    """As code in a line, or in a cell of a table."""
    text = one_line(text).replace("`", "'").replace("|", "\u2502")
    return f"`{text}`" if text else ""
