"""Python code in colours: markup with a class for each kind of word."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup, escape
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Number, String

#: Longer texts are shown without: reading them takes longer than writing the rest of the page.
LONGEST = 20_000
_CLASSES = ((Comment, "c"), (Keyword, "k"), (Number, "m"), (String, "s"))
_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def coloured(text: str) -> Markup:
    """``text``, lines that each begin with a mark of a diff, as markup that shows the same characters."""
    if len(text) > LONGEST:
        return escape(text)
    lines = text.split("\n")
    marks = iter([line[:1] for line in lines])
    return Markup("").join([escape(next(marks)), *_pieces("\n".join(line[1:] for line in lines), marks)])


def _pieces(code: str, marks: Iterator[str]) -> Iterator[Markup]:
    for kind, value in _LEXER.get_tokens(code):
        name = next((name for of, name in _CLASSES if kind in of), "")
        for number, part in enumerate(value.split("\n")):
            if number:
                yield escape("\n" + next(marks))
            if part:
                yield Markup('<i class="{}">{}</i>').format(name, part) if name else escape(part)
