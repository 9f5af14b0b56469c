"""The formulas of docstrings as LaTeX: what `help` shows as `w <- w + eta m / sqrt(v)`, typeset on the site.

A formula has statements, one a row: lines, and parts of a line that two spaces or more keep apart. A row may begin with
a label, as in `client:  y <- y - eta g`. Names of Greek letters, `x_i`, `x^2`, `xbar`, `c_i+`, `h*`, `a / b`, `|x|`,
`<x, y>`, `sqrt(x)` and `sum over S of x` are what they look like; other words are text.
"""

from __future__ import annotations

import re

_GREEK = "alpha beta gamma eta theta lambda mu nu rho sigma tau phi psi Delta"
_NAMES = {name: f"\\{name}" for name in _GREEK.split()} | {
    "eps": r"\varepsilon", "lam": r"\lambda", "lam0": r"\lambda_0", "b1": r"\beta_1", "b2": r"\beta_2",
    "xbar": r"{\bar{x}}", "xhat": r"{\hat{x}}", "xtilde": r"{\tilde{x}}", "grad": r"\nabla", "in": r"\in ",
    "l": r"\ell",
}  # fmt: skip
_OPERATORS = {"sum", "mean", "max", "min", "argmin", "exp", "sign", "diag", "clip", "prox", "median"}
_SIGNS = {
    "<-": r"\leftarrow ", "<=": r"\le ", ">=": r"\ge ", "...": r"\ldots ", "~": r"\approx ", "-": "-", "+": "+",
    "=": "=", ",": r",\;", ";": r";\;", ":": ":", "<": "<", ">": ">", ".": r"\cdot ", "*": r"\cdot ",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<space> +)|(?P<code>`[^`]*`(?:'s)?)|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<name>[A-Za-z]+(?:'s|[012](?![\d.]))?)"
    r"|(?P<sign><-|<=|>=|\.\.\.|.)"
)
_CLOSES = {"(": ")", "[": "]", "{": "}", "|": "|", "<": ">"}
_LABEL = re.compile(r"([A-Za-z][A-Za-z ]*):(?: +|$)")


def latex(text: str) -> str:
    r"""A formula, of one statement or several, as LaTeX.

    Raises:
        ValueError: a bracket is not closed.

    >>> latex("w <- w + eta m / (sqrt(v) + tau)")
    '\\begin{aligned}& w \\leftarrow w + \\frac{\\eta m}{\\sqrt{v} + \\tau}\\end{aligned}'
    """
    rows = []
    for line in text.splitlines():
        for part in re.split(r"(?<=[^:\s])\s{2,}", line.strip()):
            label = _LABEL.match(part)
            head = statement(label[1]) + r"\text{:}\;" if label else ""
            body = statement((part[label.end() :] if label else part).strip().rstrip(",;"))
            rows.append(f"{head}& {body}")
    return r"\begin{aligned}" + r" \\ ".join(rows) + r"\end{aligned}"


def statement(text: str) -> str:
    r"""One statement as LaTeX.

    >>> statement("c_i+ = (1/N) sum over S of |D_i|^2")
    'c_{i}^{+} = \\frac{1}{N} \\sum_{S} \\lVert D_{i} \\rVert^{2}'
    """
    return _Reader(text).whole()


class _Reader:
    """Reads a statement from left to right; products are what stands side by side."""

    def __init__(self, text: str) -> None:
        self._tokens = [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(text)]
        self._at = 0
        self._open: list[str] = []

    def whole(self) -> str:
        found = self._sequence()
        if self._at < len(self._tokens):
            raise ValueError(f"a bracket of {''.join(t for _, t in self._tokens)!r} is not open")
        return found

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if 0 <= at < len(self._tokens) else ("end", "")

    def _sequence(self) -> str:
        """Products with signs between them, up to what closes the bracket."""
        parts: list[str] = []
        product: list[str] = []
        while self._peek()[0] != "end" and not self._closing():
            kind, token = self._peek()
            if kind == "space":
                self._at += 1
            elif token == "/":
                self._at += 1
                top, product = _without_brackets(product), [rf"\frac{{{'TOP'}}}{{{self._denominator()}}}"]
                product[0] = product[0].replace("TOP", top)
            elif self._is_sign(kind, token):
                self._at += 1
                parts += [*product, _SIGNS[token].strip()]
                product = []
            else:
                factor = self._factor()
                if factor.startswith(r"\text{"):
                    parts += [*product, factor]
                    product = []
                else:
                    product.append(factor)
        return _joined([*parts, *product])

    def _is_sign(self, kind: str, token: str) -> bool:
        return kind == "sign" and token in _SIGNS and not self._opens(token)

    def _opens(self, token: str) -> bool:
        """Whether this `<` or `|` opens a bracket."""
        if token == "<":
            return self._peek(1)[0] != "space"
        return token in "([{" or (token == "|" and self._open[-1:] != ["|"])

    def _closing(self) -> bool:
        token = self._peek()[1]
        if token == ">" and (self._open[-1:] != [">"] or self._peek(-1)[0] == "space"):
            return False
        return bool(self._open) and token == self._open[-1]

    def _denominator(self) -> str:
        while self._peek()[0] == "space":
            self._at += 1
        return _without_brackets([self._factor()])

    def _factor(self) -> str:
        """A name, a number or a bracket with what is attached to it."""
        kind, token = self._peek()
        self._at += 1
        if kind == "code":
            return rf"\text{{{token.replace('`', '')}}}"
        if kind == "number":
            digits, _, power = token.partition("e")
            base = (
                token
                if not power
                else (rf"10^{{{power}}}" if digits == "1" else rf"{digits}\cdot 10^{{{power}}}")
            )
        elif kind == "name" and token == "sqrt":
            return rf"\sqrt{{{_without_brackets([self._factor()])}}}"
        elif kind == "name":
            base = self._named(token)
            if base.startswith(r"\text{"):
                return base
        elif token in _CLOSES:
            base = self._bracket(token)
        else:
            raise ValueError(f"{token!r} in {''.join(t for _, t in self._tokens)!r} stands alone")
        return base + self._attached()

    def _named(self, token: str) -> str:
        if token == "f" and [t for _, t in self._tokens[self._at : self._at + 2]] == ["_", "star"]:
            self._at += 2
            return r"f^{\star}"
        if token in _OPERATORS:
            if token == "sum":
                return r"\sum" + self._over()
            return rf"\operatorname{{{token}}}" + self._over() + ("" if self._peek()[1] == "(" else r"\,")
        if token == "in" and not self._is_between_symbols():
            return r"\text{in}"
        if token in _NAMES:
            return _NAMES[token]
        if token == "I" and self._peek(-3)[1] == "option":
            return r"\text{I}"
        if len(token) > 1 or (token == "a" and self._is_article()):
            while self._peek()[1] == "_" and self._peek(1)[0] == "name":  # a setting, such as weight_decay
                token, self._at = f"{token} {self._peek(1)[1]}", self._at + 2
            return rf"\text{{{token}}}"
        return token

    def _over(self) -> str:
        """The range of `sum over S of`."""
        words = [t for k, t in self._tokens[self._at : self._at + 6] if k != "space"]
        if words[:1] != ["over"] or words[2:3] != ["of"]:
            return ""
        self._at += 6
        return r"_{\mathcal{D}}" if words[1] == "D" else f"_{{{words[1]}}}"

    def _is_between_symbols(self) -> bool:
        before, after = self._peek(-3), self._peek(1)
        return all(k == "name" and len(t) == 1 for k, t in (before, after))

    def _is_article(self) -> bool:
        return all(k == "name" and len(t) > 1 and t not in _NAMES for k, t in (self._peek(-3), self._peek(1)))

    def _bracket(self, token: str) -> str:
        closing = _CLOSES[token]
        self._open.append(closing)
        inside = self._sequence()
        if self._peek()[1] != closing:
            raise ValueError(f"{token!r} of {''.join(t for _, t in self._tokens)!r} is not closed")
        self._open.pop()
        self._at += 1
        left, right = {"|": (r"\lVert ", r" \rVert"), "<": (r"\langle ", r"\rangle ")}.get(
            token, (token, closing)
        )
        return inside if token == "{" else f"{left}{inside}{right}"

    def _attached(self) -> str:
        """Subscripts, powers, primes, and the `+` and `*` that are written to a name."""
        low, high = "", ""
        while True:
            token, after = self._peek()[1], self._peek(1)
            if token == "_":
                self._at += 1
                low += self._script()
            elif token == "^":
                self._at += 1
                high += self._script()
            elif token == "'":
                self._at += 1
                high += "'"
            elif token in ("+", "*") and (after[0] in ("space", "end") or after[1] in ("(", ")", ",")):
                self._at += 1
                high += token
            else:
                return (f"_{{{low}}}" if low else "") + (f"^{{{high}}}" if high else "")

    def _script(self) -> str:
        """What is below or above: a name, a number or a bracket, perhaps with a minus."""
        sign = ""
        if self._peek()[1] == "-":
            sign, self._at = "-", self._at + 1
        kind, token = self._peek()
        if kind == "name" and token not in _NAMES:
            self._at += 1
            inside = token if len(token) < 3 else rf"\text{{{token}}}"
            return sign + inside + (self._attached() if self._peek()[1] == "_" else "")
        if kind == "name":
            self._at += 1
            return sign + _NAMES[token]
        if kind == "number":
            self._at += 1
            return sign + token
        return sign + _without_brackets([self._bracket_here()])

    def _bracket_here(self) -> str:
        token = self._peek()[1]
        self._at += 1
        return self._bracket(token)


def _without_brackets(product: list[str]) -> str:
    """A product as numerator or denominator: brackets around all of it are not needed."""
    if len(product) == 1 and product[0].startswith("(") and _closes_at(product[0]) == len(product[0]) - 1:
        return product[0][1:-1]
    return _joined(product)


def _joined(parts: list[str]) -> str:
    """Parts side by side; a fraction alone needs no brackets, words need spaces."""
    bare = []
    for part in parts:
        if part.startswith(r"(\frac{") and _closes_at(part) == len(part) - 1 and _is_one_fraction(part[1:-1]):
            part = part[1:-1]
        if part.startswith(r"\text{") and bare and bare[-1].startswith(r"\text{"):
            bare[-1] = f"{bare[-1][:-1]} {part[6:]}"
        else:
            bare.append(part)
    return " ".join(rf"\;{part}\;" if part.startswith(r"\text{") else part for part in bare)


def _closes_at(text: str, opens: str = "(", closes: str = ")") -> int:
    """Where the bracket at the beginning of a text is closed."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == opens) - (sign == closes)
        if depth == 0:
            return at
    return -1


def _is_one_fraction(text: str) -> bool:
    top = len(r"\frac") + _closes_at(text[len(r"\frac") :], "{", "}") + 1
    return top + _closes_at(text[top:], "{", "}") == len(text) - 1
