"""For the site: paragraphs of a docstring that are formulas are typeset; tables and code in them keep their lines."""

from __future__ import annotations

import inspect
import re

from latex import latex

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):", re.MULTILINE)
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
    """Plain text for Sphinx: signs that would be markup there stand for themselves, outside names in backquotes.

    >>> print(_prose("mean |D_i|^2 of `a|b` * 2"))
    mean \\|D_i\\|^2 of `a|b` \\* 2
    """
    parts = re.split(r"(`[^`]*`|^\s*\*{1,2}\w+:|^\s*\* |^>>> .*$)", text, flags=re.MULTILINE)
    return "".join(p if i % 2 else re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", p) for i, p in enumerate(parts))
