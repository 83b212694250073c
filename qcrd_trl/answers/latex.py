"""LaTeX to plain text, as far as answers need it."""

import re


BOX_OPEN, BOX_CLOSE = "\x02", "\x03"

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z]) ?")
_FRACTION = re.compile(
    r"\\[dtc]?frac *(?:\{ *(-?) *([^{}\\]{1,40}?) *\}|(\d)) *(?:\{ *([^{}\\]{1,40}?) *\}|(\d))",
)
_FONT = re.compile(r"\\(?:text|math|operatorname|mbox|textnormal)[a-z]* ?(?=\{)")
_SPACE = re.compile(r"\\(?:[,;: ]|q?quad(?![a-zA-Z]))")
_DELIMITER = re.compile(r"\\(?:[()\[\]]|left(?![a-zA-Z])|right(?![a-zA-Z])|displaystyle(?![a-zA-Z]))|\$\$")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_COMMANDS = {
    "times": " × ",
    "cdot": " × ",
    "div": " ÷ ",
    "pm": " ± ",
    "approx": " ≈ ",
    "simeq": " ≈ ",
    "neq": " ≠ ",
    "ne": " ≠ ",
    "implies": " => ",
    "Rightarrow": " => ",
    "rightarrow": " => ",
    "to": " => ",
    "pi": "π",
    "sqrt": "√",
    "circ": "°",
    "degree": "°",
    "pounds": "£",
    "euro": "€",
    "therefore": " therefore ",
    "infty": " infinity ",
    "newline": "\n",
}


def mark_boxes(text: str) -> str:
    """Replace the braces of every `\\boxed{...}` by marks that stay when the other braces go."""
    if "\\" not in text:
        return text
    opens = {}
    for match in _BOX.finditer(text):
        opens[match.end()] = match.start()
    if not opens:
        return text
    pieces, stack, copied = [], [], 0
    # One walk over the braces and backslashes pairs them all, so that unclosed boxes cannot make the time quadratic.
    for match in re.finditer(r"\\[{}]|[{}]|\\(?:boxed|fbox|framebox)(?![a-zA-Z]) ?", text):
        symbol = match.group()
        if symbol in ("\\{", "\\}"):
            continue
        if symbol[0] == "\\":
            pieces.append(text[copied : match.start()])
            copied = match.end()
            if text[copied : copied + 1] != "{":  # \boxed 5, \boxed5
                bare = re.compile(r"[^\s$\\{}]{1,60}").match(text, copied)
                pieces.append(BOX_OPEN + (bare.group().rstrip(".,;") if bare else "") + BOX_CLOSE)
                copied = copied + len(bare.group().rstrip(".,;")) if bare else copied
        elif symbol == "{":
            is_box = match.start() in opens
            stack.append(is_box)
            if is_box:
                pieces += [text[copied : match.start()], BOX_OPEN]
                copied = match.end()
        elif stack and stack.pop():
            pieces += [text[copied : match.start()], BOX_CLOSE]
            copied = match.end()
    pieces.append(text[copied:])
    return "".join(pieces)


def _fraction(match: re.Match) -> str:
    sign, top, top_digit, bottom, bottom_digit = match.groups()
    # A space in front keeps the whole number of "1\frac{1}{2}" apart from its fraction.
    before = match.string[match.start() - 1 : match.start()]
    space = " " if before.isdigit() else ""
    return f"{space}{sign or ''}{(top or top_digit).strip()}/{(bottom or bottom_digit).strip()}"


def to_plain(text: str) -> str:
    """Write LaTeX mathematics as plain text; boxes become marked regions."""
    text = mark_boxes(text)
    text = text.replace("{,}", ",").replace("\\%", "%").replace("\\$", "$").replace("\\#", "#").replace("\\&", "&")
    if "\\" in text:
        text = text.replace("\\\\", "\n")
        text = _DELIMITER.sub(" ", text)
        text = text.replace("\\!", "")
        text = re.sub(r"(?<=\d)\\[,;: ](?=\d{3})", ",", text)
        text = _SPACE.sub(" ", text)
        text = _FONT.sub(" ", text)
        for _ in range(3):  # from the inside out
            text = _FRACTION.sub(_fraction, text)
        text = re.sub(r"\^ ?\{? ?\\circ ?\}?", "°", text)
        text = _COMMAND.sub(lambda match: _COMMANDS.get(match.group(1), " "), text)
    text = re.sub(r"\^\{ ?(-?\d{1,9}) ?\}", r"^\1", text)
    return text.replace("{", " ").replace("}", " ")
