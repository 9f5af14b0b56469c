"""Generalised linear models over sites: estimates, errors and tests are those of the tables put together."""

import json
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
from fedsolve.stats.design import evaluate
from fedsolve.stats.estimates import Stored
from fedsolve.stats.questions import Question

sm = pytest.importorskip("statsmodels.api")
pytest.importorskip("formulaic")

ROWS = 640
TERMS = "age * smoker + C(ward) + center(bmi)"


def made_table():
    rng = np.random.default_rng(0)
    age, bmi = rng.normal(50, 10, ROWS), rng.normal(26, 4, ROWS)
    table = {
        "age": age,
        "bmi": bmi,
        "smoker": rng.choice(["no", "yes"], ROWS),
        "ward": rng.integers(1, 4, ROWS),
    }
    eta = -3 + 0.04 * age + 0.7 * (table["smoker"] == "yes")
    table |= {"ill": (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-eta))).astype(int)}
    table |= {"visits": rng.poisson(np.exp(eta / 2)), "days": rng.negative_binomial(2, 0.2, ROWS)}
    table |= {"cost": rng.gamma(3, np.exp(eta / 3)), "pressure": 100 + 0.5 * age + 8 * rng.normal(size=ROWS)}
    table |= {"weight": rng.uniform(0.5, 2, ROWS), "years": rng.uniform(1, 5, ROWS)}
    frame = pd.DataFrame(table)
    frame.loc[[3, 400], "age"] = np.nan
    frame.loc[77, "smoker"] = None
    return frame


TABLE = made_table()
WHOLE = TABLE.dropna()
SITES = {"north": TABLE[:300], "south": TABLE[300:380], "west": TABLE[380:]}


def reference(formula, family, **more):
    """Estimates of the whole table by Fisher scoring in statsmodels, until nothing changes."""
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.glm(formula, WHOLE, family=family, **more)
        return model.fit(
            tol=1e-15, tol_criterion="params", maxiter=300, scale="X2" if scaled(family) else None
        )


def scaled(family):
    return isinstance(family, sm.families.Gaussian | sm.families.Gamma)


LINKS = sm.families.links
FAMILIES = {
    "binomial": ("ill", sm.families.Binomial(), {}),
    "probit": ("ill", sm.families.Binomial(LINKS.Probit()), {"family": "binomial", "link": "probit"}),
    "cloglog": ("ill", sm.families.Binomial(LINKS.CLogLog()), {"family": "binomial", "link": "cloglog"}),
    "poisson": ("visits", sm.families.Poisson(), {}),
    "gaussian": ("pressure", sm.families.Gaussian(), {}),
    "log-gaussian": ("pressure", sm.families.Gaussian(LINKS.Log()), {"family": "gaussian", "link": "log"}),
    "gamma": ("cost", sm.families.Gamma(), {}),
    "log-gamma": ("cost", sm.families.Gamma(LINKS.Log()), {"family": "gamma", "link": "log"}),
    "negative binomial": ("days", sm.families.NegativeBinomial(alpha=0.5), {"alpha": 0.5}),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("extra", ["plain", "weighted", "offset"])
def test_estimates_are_those_of_the_whole_table(name, extra):
    """Uneven sites, categories, an interaction, a mean over all sites, missing cells."""
    outcome, family, words = FAMILIES[name]
    mine, theirs = {"family": name, **words}, {}
    if extra == "weighted":
        mine, theirs = mine | {"weights": "weight"}, {"var_weights": WHOLE["weight"]}
    elif extra == "offset":
        offset = "log(years)" if name in ("poisson", "negative binomial", "log-gamma") else "weight"
        if name == "gamma":
            return  # of the inverse link an offset has no use
        mine |= {"offset": offset}
        theirs = {"offset": np.log(WHOLE["years"]) if offset != "weight" else WHOLE["weight"]}
    found = fs.stats.glm(SITES, f"{outcome} ~ {TERMS}", **mine)
    wanted = reference(f"{outcome} ~ {TERMS}", family, **theirs)
    order = [list(wanted.params.index).index(column) for column in found.names]
    errors = wanted.bse.to_numpy()[order]
    np.testing.assert_allclose(found.coefficients, wanted.params.to_numpy()[order], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.standard_errors, errors, rtol=1e-8)
    covariance = wanted.cov_params().to_numpy()[np.ix_(order, order)]
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.deviance, wanted.deviance, rtol=1e-10)
    np.testing.assert_allclose(found.null_deviance, wanted.null_deviance, rtol=1e-8)
    np.testing.assert_allclose(found.dispersion, wanted.scale, rtol=1e-8)
    if not scaled(family):
        assert found.log_likelihood == pytest.approx(wanted.llf, rel=1e-10)
        assert found.aic == pytest.approx(wanted.aic, rel=1e-10)
        np.testing.assert_allclose(found.p_values, wanted.pvalues.to_numpy()[order], rtol=1e-6)
    assert (found.rows, found.left_out["age"], found.left_out["smoker"]) == (len(WHOLE), 2, 1)
    assert found.rounds <= (15 if words else 8)  # scoring is Newton's method for the families' own links


def test_the_aic_of_families_with_a_dispersion_is_that_of_r():
    from scipy.stats import gamma, norm

    for outcome, family in (("pressure", "gaussian"), ("cost", "gamma")):
        found = fs.stats.glm(SITES, f"{outcome} ~ age", family=family)
        y, mean = WHOLE[outcome].to_numpy(), found.predict(WHOLE)
        at = found.deviance / found.rows if family == "gaussian" else None
        rows = TABLE.dropna(subset=["age"])
        y, mean = rows[outcome].to_numpy(), found.predict(rows)
        at = found.deviance / len(rows)
        if family == "gaussian":
            wanted = norm.logpdf(y, mean, np.sqrt(at)).sum()
        else:
            wanted = gamma.logpdf(y, 1 / at, scale=mean * at).sum()
        assert found.log_likelihood == pytest.approx(wanted, rel=1e-10)
        assert found.aic == pytest.approx(-2 * wanted + 2 * 3, rel=1e-10)


def test_alpha_is_estimated_by_maximum_likelihood():
    import statsmodels.formula.api as smf

    found = fs.stats.glm(SITES, "days ~ age + smoker", family="negative-binomial")
    wanted = smf.negativebinomial("days ~ age + smoker", WHOLE).fit(
        disp=0, method="newton", gtol=1e-12, maxiter=300
    )
    order = [list(wanted.params.index).index(column) for column in found.names]
    np.testing.assert_allclose(found.coefficients, wanted.params.to_numpy()[order], rtol=1e-7)
    assert found.alpha == pytest.approx(wanted.params["alpha"], rel=1e-7)
    assert found.aic == pytest.approx(wanted.aic, rel=1e-10)
    with pytest.raises(fs.InvalidInput, match="use the family poisson"):
        fs.stats.glm(
            [{"y": np.arange(60) % 3.0, "x": np.arange(60.0) % 7}] * 3, "y ~ x", family="negative binomial"
        )


def test_robust_and_clustered_errors():
    sites = [TABLE[i * 64 : (i + 1) * 64] for i in range(10)]
    rows = TABLE.dropna(subset=["age"])
    groups = rows.index.to_numpy() // 64
    for errors, kind, words in (
        ("robust", "HC0", {}),
        ("sites", "cluster", {"cov_kwds": {"groups": groups}}),
    ):
        found = fs.stats.glm(sites, "ill ~ age", family="binomial", errors=errors)
        model = sm.GLM(rows["ill"], sm.add_constant(rows["age"]), family=sm.families.Binomial())
        wanted = model.fit(cov_type=kind, tol=1e-14, **words)
        np.testing.assert_allclose(found.standard_errors, wanted.bse, rtol=1e-8)
    with pytest.raises(fs.InvalidInput, match="more sites than columns"):
        fs.stats.glm(SITES, "ill ~ age * bmi", family="binomial", errors="sites")


@pytest.mark.parametrize("sites", [1, 2, 20])
def test_the_number_of_sites_changes_nothing(sites):
    """A site without events, and one that has a single category, among them."""
    order = WHOLE.sort_values(["ill", "smoker"])
    cut = np.linspace(0, len(order), sites + 1).astype(int)
    tables = [order[a:b] for a, b in pairwise(cut)]
    found = fs.stats.glm(tables, "ill ~ age + smoker", family="binomial", min_rows=1, min_clients=1)
    wanted = fs.stats.glm([order], "ill ~ age + smoker", family="binomial", min_rows=1, min_clients=1)
    np.testing.assert_allclose(found.coefficients, wanted.coefficients, rtol=1e-9)
    np.testing.assert_allclose(found.standard_errors, wanted.standard_errors, rtol=1e-9)
    assert len(found.sites) == sites


def test_columns_far_from_zero_lose_no_digits():
    rng = np.random.default_rng(1)
    day = 19_000 + rng.normal(size=300)
    y = 5 + 2 * (day - 19_000) + 3e-6 * rng.normal(size=300)
    tables = [{"day": day[i::3], "y": y[i::3]} for i in range(3)]
    found = fs.stats.glm(tables, "y ~ day")
    slope = ((day - day.mean()) @ (y - y.mean())) / ((day - day.mean()) @ (day - day.mean()))
    assert found["day"] == pytest.approx(slope, rel=1e-12)


def test_a_result_shows_itself_and_comes_back(tmp_path):
    found = fs.stats.glm(SITES, "ill ~ age + smoker", family="binomial")
    shown = repr(found.summary(ratios=True))
    assert "smoker[T.yes]" in shown
    assert "exp(coefficient)" in shown
    assert "637 rows of 3 sites" in shown
    assert "3 left out without a value or of a rare category (age 2, smoker 1)" in shown
    assert r"\toprule" in found.to_latex()
    frame = found.frame()
    np.testing.assert_allclose(frame["low"], found.intervals()[:, 0])
    assert list(frame["column"]) == list(found.names)
    again = Stored.read(json.loads(json.dumps(found.as_plain())))
    assert again.as_plain() == found.as_plain()
    np.testing.assert_array_equal(again.predict(TABLE), found.predict(TABLE))
    assert np.isnan(found.predict(TABLE)[[3, 77, 400]]).all()
    eta = found.predict(WHOLE, kind="link")
    np.testing.assert_allclose(found.predict(WHOLE), 1 / (1 + np.exp(-eta)))


def shifted(**columns):
    return {name: table.assign(**columns) for name, table in SITES.items()}


def of_first(**columns):
    return SITES | {"north": SITES["north"].assign(**columns)}


REFUSED = {
    "misspelt column": ({"f": "ill ~ agee"}, "unknown column 'agee': did you mean 'age'"),
    "no formula": ({"f": "ill"}, "has no terms"),
    "bad formula": ({"f": "ill ~ age +"}, "is no formula"),
    "a dot": ({"f": "ill ~ ."}, "write the columns' names instead of '.'$"),
    "an offset as a term": ({"f": "ill ~ offset(age)"}, "an offset is an option"),
    "dates": (
        {"f": "ill ~ day", "sites": shifted(day=pd.Timestamp(2020, 1, 1))},
        "north, column day: .*datetime",
    ),
    "numbers as text at a site": ({"sites": of_first(age="old")}, r"text at north .* or C\(age\)"),
    "two outcomes": ({"f": "ill + visits ~ age"}, "must have one outcome"),
    "outcome as a term": ({"f": "ill ~ ill + age"}, "is the outcome, and a term too"),
    "code": ({"f": "ill ~ I(__import__('os').getpid())"}, "has no column"),
    "text as numbers": ({"f": "ill ~ log(smoker)"}, "is text, and numbers are needed"),
    "unknown reference": ({"f": "ill ~ C(ward, Treatment(9))"}, "'9' is no category of ward: '1', '2', '3'"),
    "unknown family": ({"family": "binomal"}, "did you mean 'binomial'"),
    "unknown link": ({"link": "logitt"}, "did you mean 'logit'"),
    "link of another": ({"link": "inverse"}, "is none of the family binomial"),
    "unknown errors": ({"errors": "hc0"}, "unknown errors"),
    "alpha of another": ({"alpha": 1.0}, "alpha is of the negative binomial"),
    "outcome not 0/1": ({"f": "visits ~ age"}, "must be 0 or 1"),
    "negative counts": ({"f": "bmi ~ age", "family": "poisson"}, "must be a whole number"),
    "negative weights": ({"weights": "minus", "sites": shifted(minus=-1.0)}, "greater than 0"),
    "no site": ({"sites": []}, "sites is empty"),
    "one table": ({"sites": TABLE}, "give a list of tables"),
    "few sites": (
        {"sites": [TABLE[:300], TABLE[300:]]},
        "2 clients, and 3 are the minimum|2 sites take part",
    ),
    "constant": (
        {"f": "ill ~ age + one", "sites": shifted(one=1234.567)},
        "column one has the same value in all rows",
    ),
    "collinear": ({"f": "ill ~ age + bmi + I(2 * age - bmi)"}, "is a combination of age, bmi"),
    "no events": ({"f": "none ~ age", "sites": shifted(none=0.0)}, "none is 0 in all rows of all sites"),
    "separation": (
        {"f": "old ~ age", "sites": shifted(old=(TABLE.age > 50) * 1.0)},
        "separated without an error by age",
    ),
    "few rows": ({"sites": {k: v[:8] for k, v in SITES.items()}}, "fewer than 10 rows"),
    "fewer rows than columns": (
        {"f": "ill ~ age + bmi + days", "min_rows": 1, "sites": {k: v[:1] for k, v in SITES.items()}},
        "3 rows are too few for 4 columns: leave terms out",
    ),
    "many columns": ({"f": "ill ~ C(visits) * C(days)", "min_rows": 2}, "sites take part"),
    "infinite": ({"sites": shifted(age=np.inf)}, "not finite"),
    "text outcome": (
        {"f": "smoker ~ age + ward", "family": "poisson", "sites": shifted(smoker="a")},
        "fewer than two",
    ),
    "duplicated names": ({"sites": [pd.concat([TABLE, TABLE], axis=1)] * 3}, "two columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_in_one_line(case):
    words, message = REFUSED[case]
    words = {"sites": SITES, "f": "ill ~ age", "family": "binomial"} | words
    with pytest.raises(fs.InvalidInput, match=message) as refused:
        fs.stats.glm(words.pop("sites"), words.pop("f"), **words)
    assert "\n" not in str(refused.value)


def test_a_site_does_not_tell_of_single_rows():
    """A category, a function of a column and a combination of two that single rows out leave the site out."""
    one = np.zeros(300)
    one[5] = 1.0
    spike = TABLE["bmi"][:300] + one
    cases = (
        ("ill ~ age + rare", of_first(rare=one), "column rare tells fewer than 10 rows"),
        ("ill ~ exp(-1000000 * (age - 50) ** 2)", SITES, "fewer than 10 rows"),
        ("ill ~ bmi + spike", {"north": SITES["north"].assign(spike=spike)}, "a single row decides"),
        ("rare ~ age", of_first(rare=one), "the outcome tells fewer than 10 rows"),
    )
    for formula, sites, why in cases:
        sites = {name: table for name, table in sites.items() if name == "north"}
        others = {
            name: table.assign(rare=(table.index % 2) * 1.0, spike=1.0 * table.index)
            for name, table in SITES.items()
        }
        with pytest.raises(fs.InvalidInput, match=why):
            fs.stats.glm(others | sites, formula, family="binomial", min_clients=3)
    alone = fs.stats.glm(
        of_first(rare=one) | {k: v.assign(rare=v.index % 2) for k, v in SITES.items() if k != "north"},
        "ill ~ age + rare",
        family="binomial",
        min_clients=2,
    )
    assert alone.sites == ("south", "west")
    assert "north does not take part: column rare" in alone.notes[0]


@pytest.mark.parametrize("rows", [100_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_a_large_table(rows):
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(2000, 5, rows), rng.exponential(size=rows), rng.integers(0, 2, rows)], axis=1)
    design = np.column_stack([np.ones(rows), x])
    counts = rng.poisson(np.exp((x - x.mean(axis=0)) @ [0.05, 0.3, -0.4]))
    reference = sm.GLM(counts, design, family=sm.families.Poisson()).fit(tol=1e-15, tol_criterion="params")
    cuts = [rows // 20, rows // 3]
    sites = [
        {"year": part[:, 0], "dose": part[:, 1], "arm": part[:, 2], "visits": visits}
        for part, visits in zip(np.split(x, cuts), np.split(counts, cuts), strict=True)
    ]
    found = fs.stats.glm(sites, "visits ~ year + dose + arm", family="poisson")
    np.testing.assert_allclose(found.coefficients, reference.params, rtol=1e-8)
    np.testing.assert_allclose(found.standard_errors, reference.bse, rtol=1e-8)
    assert found.deviance == pytest.approx(reference.deviance, rel=1e-10)
    assert found.rows == rows


def test_questions_from_outside_are_checked():
    from fedsolve.stats.design import Design
    from fedsolve.stats.linear_models import GlmSums

    design = Design(("x",), ((("x0", ("x",), ""),),), (), ("y",), (0.0,), (1.0,))
    question = GlmSums(design, ("x0", ("y",), ""), "", "", "binomial", "logit", coefficients=(0.5,))
    assert Question.from_json(question.to_json()) == question
    for old, new in (('"x0"', "1"), ('"binomial"', "[]"), ("0.5", '"a"'), ('"GlmSums"', '"Other"')):
        with pytest.raises(fs.InvalidInput, match="another version"):
            Question.from_json(question.to_json().replace(old, new, 1))
    for text in (
        "__import__('os')",
        "x0.real",
        "x0[0]",
        "lambda: 1",
        "x1",
        "x0 if x0 else x0",
        "(" * 90 + ")" * 90,
    ):
        with pytest.raises(fs.InvalidInput, match="is no"):
            evaluate(text, [np.ones(2)])
