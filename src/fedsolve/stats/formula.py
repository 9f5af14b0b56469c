"""Formulas such as `ill ~ age + smoker`, and the design that they stand for over all sites."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.stats.design import Design, Factor, evaluate
from fedsolve.stats.questions import Sites

_STATEFUL = ("center", "scale")
_KNOWN = "log(x), sqrt(x), exp(x), center(x), scale(x), C(x), I(x ** 2); an offset is an option"


@dataclass(frozen=True)
class Variable:
    """A factor of a formula before the sites are known."""

    text: str  # as it was written
    columns: tuple[str, ...]
    expression: str = "x0"  # of `x0`, `x1`, ..., the columns; '' for categories
    state: str = ""  # "center" or "scale" if a mean over all sites is subtracted
    is_categorical: bool = False  # whether it is written `C(x)`; a column of texts is one anyway
    reference: str = ""  # the category that has no column; '' for the first


@dataclass(frozen=True)
class Formula:
    """What is explained, by which terms: each a tuple of texts of `variables`, () for the intercept."""

    outcome: Variable | None
    terms: tuple[tuple[str, ...], ...]
    variables: Mapping[str, Variable] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        own = () if self.outcome is None else self.outcome.columns
        return tuple(dict.fromkeys([*own, *(c for v in self.variables.values() for c in v.columns)]))


def read_formula(outcome: str | None, terms: Any) -> Formula:
    """A formula, from the outcome and its terms, or from both in one text where `terms` is None."""
    # `outcome` None stands for terms alone; `InvalidInput` for what is no formula, or what no site evaluates.
    text = _text(outcome, terms)
    try:
        import formulaic
        from formulaic.errors import FormulaicError
    except ImportError:
        raise InvalidInput("formulas need the package formulaic: pip install 'fedsolve[stats]'") from None
    try:
        make: Any = formulaic.Formula
        parsed = make(text)
        left = list(getattr(parsed, "lhs", []))
        right = list(getattr(parsed, "rhs", parsed))
        sides = [[(f.expr, f.eval_method.value) for f in term.factors] for term in (*left, *right)]
    except (FormulaicError, AttributeError, SyntaxError, TypeError) as error:
        why = str(error).strip().partition("\n")[0]
        why = "write the columns' names instead of '.'" if why.startswith("The `.` operator") else why
        raise InvalidInput(f"{shown(text)} is no formula, such as 'ill ~ age + smoker': {why}") from None
    if len(left) != ("~" in text) or (left and len(left[0].factors) != 1):
        raise InvalidInput(f"{shown(text)} must have one outcome before ~, such as 'ill ~ age + smoker'")
    own = _variable(*sides[0][0]) if left else None
    used = [[factor for factor in side if factor != ("1", "literal")] for side in sides[len(left) :]]
    known = {text: _variable(text, how) for term in used for text, how in term}
    if own is not None and set(own.columns) & {c for v in known.values() for c in v.columns}:
        raise InvalidInput(f"{own.text} is the outcome, and a term too: leave it out of the terms")
    return Formula(own, tuple(tuple(text for text, _ in term) for term in used), known)


def _text(outcome: str | None, terms: Any) -> str:
    if outcome is not None and (not isinstance(outcome, str) or not outcome.strip()):
        raise InvalidInput(f"outcome = {shown(outcome)} must be the name of a column, or a formula")
    if terms is None:
        if outcome is None or "~" not in outcome:
            example = "write a formula, such as 'ill ~ age + smoker'"
            raise InvalidInput(f"{shown(outcome)} has no terms: {example}")
        return outcome
    if isinstance(terms, list | tuple) and all(isinstance(term, str) and term for term in terms):
        terms = " + ".join(map(_quoted, terms)) or "1"
    if not isinstance(terms, str):
        what = "must be text such as 'age + smoker', or a list of terms"
        raise InvalidInput(f"terms = {of_type(terms)} {what}")
    if "~" in terms or "~" in (outcome or ""):
        raise InvalidInput(f"terms = {shown(terms)} must have no '~': the outcome is given apart from them")
    return terms if outcome is None else f"{_quoted(outcome)} ~ {terms}"


def _quoted(name: str) -> str:
    # a column whose name has spaces
    return f"`{name}`" if re.fullmatch(r"\w+( \w+)+", name) else name


def _variable(text: str, how: str) -> Variable:
    # formulaic says whether it is a column's name, Python or a number
    if how == "lookup":
        return Variable(text, (text,))
    tree: Any = ast.parse(text, mode="eval").body
    outer = tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
    if outer == "C":
        return _categories(text, tree)
    if outer in (*_STATEFUL, "I"):
        if len(tree.args) != 1 or tree.keywords:
            raise InvalidInput(f"{shown(text)} must have one argument, such as {outer}(age)")
        tree = tree.args[0]
    nodes = list(ast.walk(tree))
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    columns = tuple(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and n.id not in called))
    if not columns:
        raise InvalidInput(f"{shown(text)} has no column: a formula has columns and {_KNOWN}")
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in columns:
            node.id = f"x{columns.index(node.id)}"
    replaced = ast.unparse(tree)
    try:
        evaluate(replaced, [np.ones(1)] * len(columns))
    except InvalidInput:
        raise InvalidInput(f"{shown(text)} is not known: a formula has columns and {_KNOWN}") from None
    return Variable(text, columns, replaced, outer if outer in _STATEFUL else "")


def _categories(text: str, call: ast.Call) -> Variable:
    # C(x), or C(x, Treatment("no")) with the category that has no column
    match call.args:
        case [ast.Name() as column]:
            return Variable(text, (column.id,), "", is_categorical=True)
        case [ast.Name() as column, ast.Call() as coding] if "reatment" in ast.unparse(coding.func):
            values = [*coding.args, *(keyword.value for keyword in coding.keywords)]
            if len(values) == 1 and isinstance(values[0], ast.Constant):
                return Variable(text, (column.id,), "", is_categorical=True, reference=str(values[0].value))
    raise InvalidInput(f"{shown(text)} must be C(column) or C(column, Treatment('reference'))")


def design_of(formula: Formula, sites: Sites, further: Sequence[str] = ()) -> tuple[Design, Factor | None]:
    """The columns that a formula has over all sites, and its outcome; `InvalidInput` where they cannot be used."""
    # Rows without a value of a `further` column, such as weights, are left out too.
    categorical = {v.columns[0] for v in formula.variables.values() if v.is_categorical}
    asked = {name: name in categorical for name in formula.columns}
    levels = sites.levels(asked | dict.fromkeys(further, False))
    for name in further:
        if name in levels:
            raise InvalidInput(f"column {name} is text, and numbers are needed: recode it (dates as days)")
    variables = {text: _coded(variable, levels) for text, variable in formula.variables.items()}
    outcome = None if formula.outcome is None else _outcome(_coded(formula.outcome, levels), levels)
    needed = tuple(dict.fromkeys([*formula.columns, *further]))
    categories = tuple((name, levels[name]) for name in sorted(set(needed) & levels.keys()))
    rows = Design((), (), categories, needed, (), ())
    variables = _with_states(rows, variables, sites)
    names, products = _columns(formula, variables, levels)
    shift, scale = (0.0,) * len(names), (1.0,) * len(names)
    return Design(names, products, categories, needed, shift, scale), outcome


def _coded(variable: Variable, levels: Mapping[str, tuple[str, ...]]) -> Variable:
    texts = [column for column in variable.columns if column in levels]
    if not texts:
        return variable
    if variable.expression not in ("", "x0") or variable.state:
        raise InvalidInput(f"{variable.text}: column {texts[0]} is text, and numbers are needed")
    if variable.reference and variable.reference not in levels[texts[0]]:
        known = ", ".join(map(repr, levels[texts[0]]))
        raise InvalidInput(f"{variable.text}: {variable.reference!r} is no category of {texts[0]}: {known}")
    return replace(variable, expression="", is_categorical=True)


def _outcome(variable: Variable, levels: Mapping[str, tuple[str, ...]]) -> Factor:
    if not variable.is_categorical:
        if variable.state:
            raise InvalidInput(f"{variable.text} is an outcome, which is not centred")
        return variable.expression, variable.columns, ""
    found = levels[variable.columns[0]]
    if len(found) != 2:
        has = f"{len(found)} categories ({', '.join(map(repr, found[:5]))})"
        raise InvalidInput(f"outcome {variable.columns[0]} has {has}: it must have two, or be a number")
    return "", variable.columns, found[1]


def _columns(
    formula: Formula, variables: Mapping[str, Variable], levels: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[Factor, ...], ...]]:
    # which categories a term leaves out follows from the terms before it, by formulaic, on a table of stand-ins
    import pandas as pd
    from formulaic import ModelSpec

    stand_in = {text: f"v{i}" for i, text in enumerate(variables)}
    back = {name: text for text, name in stand_in.items()}
    content: dict[str, Any] = {"v": np.zeros(1)}
    ordered = {
        text: sorted(levels[v.columns[0]], key=lambda level, first=v.reference: level != first)
        for text, v in variables.items()
        if v.is_categorical
    }
    for text, name in stand_in.items():
        cells = ordered.get(text)
        content[name] = np.zeros(1) if cells is None else pd.Categorical(cells[:1], categories=cells)
    coded = [":".join(stand_in[text] for text in term) for term in formula.terms if term]
    start = "1" if () in formula.terms else "0"
    made: Any = ModelSpec.from_spec(" + ".join([start, *coded])).get_model_matrix(pd.DataFrame(content))
    names, products = list[str](), list[tuple[Factor, ...]]()
    for scoped in (scoped for part in made.model_spec.structure for scoped in part.scoped_terms):
        choices = []
        for one in scoped.factors:
            text = back[one.factor.expr]
            variable, cells = variables[text], ordered.get(text)
            if cells is None:
                choices.append([(text, (variable.expression, variable.columns, ""))])
            else:
                mark, kept = ("T.", cells[1:]) if one.reduced else ("", cells)
                choices.append([(f"{text}[{mark}{c}]", ("", variable.columns, c)) for c in kept])
        for chosen in itertools.product(*choices):
            names.append(":".join(name for name, _ in chosen) or "Intercept")
            products.append(tuple(factor for _, factor in chosen))
    if not products:
        raise InvalidInput("the model has no term: write a formula, such as 'ill ~ age + smoker'")
    return tuple(names), tuple(products)


def _with_states(rows: Design, variables: Mapping[str, Variable], sites: Sites) -> dict[str, Variable]:
    # the means and deviations of `center` and `scale`, over all rows that count, become numbers of the expressions
    found, stateful = dict(variables), [v for v in variables.values() if v.state]
    if not stateful:
        return found
    products = tuple(((v.expression, v.columns, ""),) for v in stateful)
    ones = (1.0,) * len(products)
    asked = replace(rows, names=tuple(v.text for v in stateful), products=products, scale=ones)
    first = sites.sums(replace(asked, shift=(0.0,) * len(products)))
    mean = first["sum"] / first["rows"]
    moments = sites.sums(replace(asked, shift=tuple(mean.tolist())))  # about the mean no digit is lost
    rest = moments["sum"] / moments["rows"]
    squares = moments["squares"] - moments["rows"] * rest**2
    deviations = np.sqrt(np.maximum(squares, 0) / max(float(moments["rows"]) - 1, 1))
    for variable, m, d in zip(stateful, (mean + rest).tolist(), deviations.tolist(), strict=True):
        centred = f"(({variable.expression}) - {m!r})"
        if variable.state == "scale" and d <= 1e-12 * abs(m):
            raise InvalidInput(f"{variable.text} has the same value in all rows of all sites: leave it out")
        made = centred if variable.state == "center" else f"{centred} / {d!r}"
        found[variable.text] = replace(variable, expression=made, state="")
    return found
