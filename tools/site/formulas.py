"""For the site: formulas of a docstring are typeset, as paragraphs and as symbols; tables and code keep their lines."""

from __future__ import annotations

import inspect
import re

from latex import latex, statement

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):", re.MULTILINE)
_LETTER = r"(?:(?:[A-Za-z]|eta|tau|mu|lambda|alpha|beta|gamma|sigma|theta|rho|xhat)_[a-z0]|xbar|xtilde)(?!\w)"
_SYMBOL = re.compile(
    rf"(?P<symbol>(?<![\w\\.+*/^|<])(?:{_LETTER}|\|D(?:_i)?\|)(?:\^2|\+(?=[\s,.;)]))?(?=[\s,.;)']|$))"
    r"|[|*]|(?<=\w)_(?!\w)"
)
_FORMULA = re.compile(r"<-|\S {2,}\S|^ {4}\S", re.MULTILINE)


def with_formulas(text: str) -> str:
    r"""A docstring in which every paragraph of formulas before its sections is one for Sphinx.

    >>> print(with_formulas("One line.\n\nm <- b m + D;  w <- w + m"))
    One line.
    <BLANKLINE>
    .. math::
    <BLANKLINE>
        \begin{aligned}& m \leftarrow b m + D \\ & w \leftarrow w + m\end{aligned}
    """
    text = inspect.cleandoc(text)
    begun = _SECTION.search(text)
    before, after = (text, "") if begun is None else (text[: begun.start()], text[begun.start() :])
    blocks = [_block(block) for block in re.split(r"\n\s*\n", before.strip())]
    return "\n\n".join([*blocks, _prose(after)]).strip()


def _block(text: str) -> str:
    if not _FORMULA.search(text) or text.lstrip().startswith((">>>", "* ", "|")):
        return _prose(text)
    shown = inspect.cleandoc(text)
    if "<-" in shown:
        return f".. math::\n\n    {latex(shown)}"
    indented = "\n".join(f"    {line}" for line in shown.splitlines())
    return f".. code-block:: text\n\n{indented}"


def _prose(text: str) -> str:
    """Plain text for Sphinx: symbols are typeset, other signs that would be markup there stand for themselves.

    Not so inside names in backquotes.

    >>> print(_prose("mean |D_i|^2 of `a|b` * 2"))
    mean :math:`\\lVert D_{i} \\rVert^{2}` of `a|b` \\* 2
    """
    parts = re.split(r"(`[^`]*`|^\s*\*{1,2}\w+:|^\s*\* |^>>> .*$)", text, flags=re.MULTILINE)
    return "".join(p if i % 2 else _SYMBOL.sub(_typeset, p) for i, p in enumerate(parts))


def _typeset(found: re.Match[str]) -> str:
    return f":math:`{statement(found[0])}`" if found["symbol"] else f"\\{found[0]}"
