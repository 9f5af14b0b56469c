"""Cox's model over sites against statsmodels and textbooks' formulas on the tables put together."""

import json
from dataclasses import replace

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg
from survival_textbook import blocks_of_time, concordance, likelihood, trends

import fedsolve as fs
from fedsolve.core.errors import Unavailable
from fedsolve.results.columns import dumps
from fedsolve.stats.design import Design
from fedsolve.stats.estimates import Stored
from fedsolve.stats.event_times import Times, join_sparse
from fedsolve.stats.hazards import CoxRequest, CoxSums, cox
from fedsolve.stats.local_sites import LocalSites, local_sites
from fedsolve.stats.questions import Question

UNEVEN = (70, 25, 6, 99)
NO_EVENT = 2
ONE = {"min_rows": 1, "min_clients": 1}


def table(ties=True):
    """Rows of which those of a site have no event, with a column of large mean and one of few values."""
    rng, rows = np.random.default_rng(0), sum(UNEVEN)
    x = np.stack(
        [rng.normal(size=rows) > 0.3, 2000 + 3 * rng.normal(size=rows), rng.normal(size=rows).round()], 1
    )
    time = rng.exponential(size=rows) * np.exp(-0.8 * x[:, 0] - 0.5 * x[:, 2])
    end = rng.exponential(1.5, size=rows)
    event, time = time <= end, np.minimum(time, end)
    start = sum(UNEVEN[:NO_EVENT])
    event[start : start + UNEVEN[NO_EVENT]] = False
    return x, np.ceil(time * 5) / 5 if ties else time, event


def split(x, time, event, sizes=UNEVEN, **more):
    cuts = np.cumsum(sizes)[:-1]
    columns = {"a": x[:, 0], "year": x[:, 1], "c": x[:, 2], "t": time, "died": event, **more}
    parts = {name: np.split(column, cuts) for name, column in columns.items()}
    return [{name: part[i] for name, part in parts.items()} for i in range(len(sizes))]


def fit(sites, **options):
    return cox(sites, "t", "died", **ONE | {"terms": "a + year + c"} | options)


def labels(sizes=UNEVEN):
    return np.repeat(np.arange(len(sizes)), sizes)


def pooled(x, time, event, ties, strata=None):
    """statsmodels' estimate, log-likelihood function and covariance, with Newton's steps to the last digit."""
    model = PHReg(time, x - x.mean(axis=0), status=event.astype(float), ties=ties, strata=strata)
    b = np.zeros(x.shape[1])
    for _ in range(25):
        b = b - np.linalg.solve(model.hessian(b), model.score(b))
    return b, model, np.linalg.inv(-model.hessian(b))


@pytest.mark.parametrize("has_ties", [True, False])
@pytest.mark.parametrize("strata", [None, "site"])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_it_is_the_pooled_estimate(ties, strata, has_ties):
    x, time, event = table(has_ties)
    found = fit(split(x, time, event), ties=ties, strata=strata)
    b, model, covariance = pooled(x, time, event, ties, labels() if strata else None)
    zero = np.zeros(3)
    np.testing.assert_allclose(found.coefficients, b, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9)
    assert found.log_likelihood == pytest.approx(model.loglike(b), abs=1e-9)
    assert found.null_log_likelihood == pytest.approx(model.loglike(zero), abs=1e-9)
    score = model.score(zero) @ np.linalg.solve(-model.hessian(zero), model.score(zero))
    tests = {"score": score, "Wald": b @ np.linalg.solve(covariance, b)}
    tests["likelihood ratio"] = 2 * (model.loglike(b) - model.loglike(zero))
    assert {name: value for name, (value, _) in found.tests.items()} == pytest.approx(tests, rel=1e-9)
    assert (found.rows, found.events) == (len(x), event.sum())
    np.testing.assert_allclose(found.hazard_ratios, np.exp(b), rtol=1e-9)


@pytest.mark.parametrize("strata", [None, "site"])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_weights_trends_baseline_and_concordance_are_those_of_the_rows(ties, strata):
    x, time, event = table()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(x))
    found = fit(split(x, time, event, weight=weights), ties=ties, strata=strata, weights="weight")
    own, b = labels() if strata else None, found.coefficients
    x = x - found.means
    value, score, information = likelihood(x, time, event, weights, b, ties, own)
    assert found.log_likelihood == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(score / np.sqrt(np.diag(information)), 0, atol=1e-9)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(information), rtol=1e-9)
    np.testing.assert_allclose(found.trends, trends(x, time, event, weights, b, ties, own), rtol=1e-8)
    assert found.concordance == pytest.approx(concordance(x, time, event, weights, b, labels()), abs=1e-12)
    if strata is None:
        jumps = np.array([(t, jump) for t, *_, jump in blocks_of_time(x, time, event, weights, b, ties)])
        np.testing.assert_allclose(found.times, jumps[:, 0], rtol=1e-9)
        np.testing.assert_allclose(found.cumulative_hazard, np.cumsum(jumps[:, 1]), rtol=1e-9)
    else:
        assert not len(found.times)


@pytest.mark.parametrize("sites", [1, 2, 20])
def test_the_number_of_sites_changes_nothing(sites):
    x, time, event = table()
    sizes = [len(part) for part in np.array_split(x, sites)]
    found, one = fit(split(x, time, event, sizes), strata=None), fit(split(x, time, event, [len(x)]))
    np.testing.assert_allclose(found.coefficients, one.coefficients, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.covariance, one.covariance, rtol=1e-10)
    np.testing.assert_allclose(found.trends, one.trends, rtol=1e-8)


def test_bins_are_the_pooled_estimate_of_times_at_their_ends():
    x, time, event = table(ties=False)
    found = fit(split(x, time, event), strata=None, interval=0.1)
    ends = np.ceil(time / 0.1) * 0.1
    np.testing.assert_allclose(found.coefficients, pooled(x, ends.round(9), event, "efron")[0], atol=1e-10)
    np.testing.assert_allclose(found.times, np.unique(ends[event].round(9)), rtol=1e-9)


def test_what_bins_change_is_said_if_asked():
    x, time, event = table(ties=False)
    sites = split(x, time, event)
    binned = fit(sites, strata=None, interval=0.4, compare_exact=True)
    exact = fit(sites, strata=None)
    most = 100 * np.abs(np.exp(binned.coefficients - exact.coefficients) - 1).max()
    assert binned.notes[-1] == f"hazard ratios are within {most:.2g} % of those of exact times"
    assert most > 1
    other = fit(sites, strata=None, interval=0.4, compare_exact=True, min_rows=7)
    assert other.notes[-1].startswith("hazard ratios are not compared")


@pytest.mark.parametrize("strata", [None, "site"])
def test_rows_that_change_while_sites_are_asked_are_noticed(strata):
    class Changing(LocalSites):
        def ask(self, question):
            if isinstance(question, CoxSums) and question.coefficients and any(question.coefficients):
                shorter = [{name: column[1:] for name, column in part.items()} for part in sites]
                self.tables = local_sites(shorter, 1, 1).tables
            return super().ask(question)

    sites = split(*table())
    held = local_sites(sites, 1, 1)
    with pytest.raises(Unavailable, match=r"the sites have 196 rows, and had 200: .* begin again"):
        CoxRequest("t", "died", "a + c", strata=strata).fit(Changing(held.tables, held.minimum))


def moved(bins, counted, fewest):
    """The rule in words: bins are filled from below until enough rows count; what is left joins the last.

    Rows beside them are at risk at the same times in the bin before.
    """
    begin, ranges, rows = None, [], 0
    for k in np.unique(bins[counted]):
        begin, rows = k if rows == 0 else begin, rows + (counted & (bins == k)).sum()
        if rows >= fewest:
            ranges.append((begin, k))
            rows = 0
    if rows:
        ranges[-1] = ranges[-1][0], bins[counted].max()
    ends = [high for _, high in ranges]
    own = [next((high for low, high in ranges if low <= k <= high), None) for k in bins]
    before = [max([end for end in ends if end < k], default=-1) for k in bins]
    return np.array([b if end is None else end for end, b in zip(own, before, strict=True)])


def test_bins_with_few_events_join_the_next_at_each_site():
    x, time, event = table(ties=False)
    sizes, bins = (120, 80), np.ceil(time / 0.05)
    found = fit(split(x, time, event, sizes), strata=None, interval=0.05, min_rows=4)
    parts = zip(np.split(bins.astype(int), [120]), np.split(event, [120]), strict=True)
    ends = np.concatenate([moved(*part, 4) for part in parts])
    np.testing.assert_allclose(found.coefficients, pooled(x, ends, event, "efron")[0], atol=1e-10)
    assert any(note.startswith(f"{(ends > bins).sum()} rows leave in a later bin") for note in found.notes)
    for fewest in (2, 3, 7):
        wanted = moved(bins.astype(int), event, fewest)
        np.testing.assert_array_equal(join_sparse(bins.astype(int), event, fewest), wanted)
        assert min((event & (wanted == k)).sum() for k in set(wanted) - {-1}) >= fewest


def test_times_that_rounding_has_moved_are_one_over_all_sites():
    x, time, event = table()
    shifted = np.where(labels() == 0, time, (time * 10 / 3 + 0.1) * 3 / 10 - 0.03)
    assert 0 < np.abs(shifted - time).max() < 1e-14
    found, wanted = fit(split(x, shifted, event), strata=None), fit(split(x, time, event), strata=None)
    np.testing.assert_array_equal(found.times, wanted.times)
    np.testing.assert_allclose(found.coefficients, wanted.coefficients, rtol=1e-12)


def test_rows_without_a_value_are_left_out_and_counted():
    x, time, event = table()
    died = event.astype(float)
    time[3], died[5], x[9, 0] = np.nan, np.nan, np.nan
    found = fit(split(x, time, died))
    kept = ~(np.isnan(time) | np.isnan(died) | np.isnan(x[:, 0]))
    b = pooled(x[kept], time[kept], died[kept] == 1, "efron", labels()[kept])[0]
    np.testing.assert_allclose(found.coefficients, b, atol=1e-10)
    assert found.rows == len(x) - 3
    assert found.left_out == {"t": 1, "died": 1, "a": 1, "year": 0, "c": 0}


def test_all_events_at_one_site_are_enough():
    x, time, event = table()
    event[labels() != 0] = False
    found, alone = fit(split(x, time, event)), fit(split(x, time, event)[:1])
    np.testing.assert_allclose(found.coefficients, alone.coefficients, atol=1e-10)
    assert "all events are at one site" in found.notes


def test_events_at_time_0_leave_the_test_of_trends_out():
    x, time, event = table()
    time[np.flatnonzero(event)[:2]] = 0.0
    found = fit(split(x, time, event), strata=None)
    np.testing.assert_allclose(found.coefficients, pooled(x, time, event, "efron")[0], atol=1e-10)
    assert np.isnan(found.trends).all()
    assert "events at time 0" in repr(found.summary())


def test_a_strong_effect_needs_no_more_steps_and_a_column_of_large_numbers_no_other_unit():
    x, time, event = table(ties=False)
    x[:, 2] = -8 * np.log(time) + np.random.default_rng(5).normal(size=len(x))
    for scale in (1.0, 1e6, 1e-9):
        b = pooled(x, time, event, "efron")[0]
        found = fit(split(x * [1, 1, scale], time, event), strata=None)
        np.testing.assert_allclose(found.coefficients * [1, 1, scale], b, rtol=1e-7, atol=1e-9)


def test_a_step_that_is_too_long_is_halved():
    rng = np.random.default_rng(0)
    x = np.exp(2.5 * rng.normal(size=(60, 1)))
    time, event = rng.exponential(size=60) / (1 + x[:, 0]), np.ones(60, bool)
    found = cox([{"x": x[:, 0], "t": time, "died": event}], "t", "died", "x", **ONE)
    _, score, information = likelihood(x, time, event, np.ones(60), found.coefficients, "efron")
    assert abs(score[0]) < 1e-9 * np.sqrt(information[0, 0])
    assert found.coefficients[0] > 0.03


def changed(**columns):
    x, time, event = table()
    sites = split(x, time, event)
    return [site | {name: of(site) for name, of in columns.items()} for site in sites]


def both(site):
    return site["a"] + 2 * site["c"]


REFUSED = {
    "negative time": ({}, {"t": lambda s: -s["t"]}, "column t: .* times are negative or infinite"),
    "infinite time": ({}, {"t": lambda s: s["t"] / 0.0}, "times are negative or infinite"),
    "event 2": ({}, {"died": lambda s: s["died"] * 2}, "column died: .* rows are not 0 or 1"),
    "text": ({}, {"t": lambda s: ["long"] + ["short"] * (len(s["t"]) - 1)}, "column t is text"),
    "time as a term": ({"terms": "a + t"}, {}, "t is the outcome, and a term too"),
    "formula as terms": ({"terms": "t ~ a"}, {}, "terms = 't ~ a' must have no '~'"),
    "ties": ({"ties": "exact"}, {}, "ties = 'exact' must be 'efron' or 'breslow'"),
    "strata": ({"strata": "a"}, {}, "strata = 'a' must be 'site' or None"),
    "interval of strata": ({"interval": 1.0}, {}, "interval needs strata=None .--strata none.:"),
    "interval below 0": ({"strata": None, "interval": -1.0}, {}, "interval = -1.0 must be finite and > 0"),
    "short interval": ({"strata": None, "interval": 1e-9}, {}, "interval = 1e-09 is too short"),
    "single times": ({"strata": None, "min_rows": 3}, {}, "no single times .*: give an interval"),
    "no event": ({}, {"died": lambda s: s["died"] * 0}, "no row has an event: is died 1 where there is one"),
    "combination": ({}, {"year": both}, "column c is a combination of a, year over all rows at risk"),
    "of the site": (
        {},
        {"year": lambda s: 1.0 * len(s["t"]) + 0 * s["t"]},
        "column year does not vary .* strata=None",
    ),
    "separation": ({}, {"c": lambda s: s["died"] * 1.0}, "coefficient of c has no end"),
    "separation, one baseline": (
        {"strata": None},
        {"c": lambda s: s["died"] * 1.0},
        "coefficient of c has no end",
    ),
    "weights": ({"weights": "w"}, {"w": lambda s: 0 * s["t"]}, "weights w must be greater than 0"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_said_in_one_line(case):
    options, columns, words = REFUSED[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fit(changed(**columns), **options)
    assert "\n" not in str(error.value)


def test_a_column_alone_that_each_site_has_one_value_of_is_refused():
    sites = changed(year=lambda s: np.pi * len(s["t"]) + 0 * s["t"])
    with pytest.raises(fs.InvalidInput, match="column year does not vary"):
        cox(sites, "t", "died", "year", **ONE)
    assert cox(sites, "t", "died", "year", strata=None, **ONE).rows == sum(UNEVEN)


def test_a_unit_of_weights_scales_the_covariance_alone():
    x, time, event = table()
    for unit in (1e-6, 1e6):
        found, one = (fit(split(x, time, event, w=np.full(len(x), w)), weights="w") for w in (unit, 1.0))
        np.testing.assert_allclose(found.coefficients, one.coefficients, atol=1e-10)
        np.testing.assert_allclose(found.covariance * unit, one.covariance, rtol=1e-8)
        with pytest.raises(fs.InvalidInput, match="coefficient of c has no end"):
            fit([s | {"c": s["died"] * 1.0, "w": np.full(len(s["t"]), unit)} for s in changed()], weights="w")


def test_terms_without_a_column_are_refused():
    with pytest.raises(fs.InvalidInput, match="terms has no column"):
        cox(changed(), "t", "died", "1", min_rows=1)


def test_a_result_goes_to_json_and_back():
    found = fit(changed(), strata=None)
    again = Stored.read(json.loads(dumps(found.as_plain())))
    assert again.as_plain() == found.as_plain()
    assert repr(again.summary()) == repr(found.summary())
    assert "hazard ratios that change with log time: p" in repr(found.summary(ratios=True))


def test_a_site_tells_no_sums_that_are_of_single_rows():
    x, time, event = table()
    x[7, 2] = 1 + x[:, 2].max()
    [site] = local_sites([split(x, time, event, [len(x)])[0]], 10, 1).tables
    design = Design(("c",), ((("x0", ("c",), ""),),), (), ("t", "died"), (0.0,), (1.0,))
    own = Times(design, "t", "died", "", 0.0, "")
    assert CoxSums(own, True, (), (0.5,)).sums(site)["score"].shape == (1, 1)
    with pytest.raises(fs.InvalidInput, match="a single row decides"):
        CoxSums(own, True, (), (40.0,)).sums(site)
    for asked in ({"grid": (1, 2)}, {"powers": 3, "grid": ()}):
        with pytest.raises(fs.InvalidInput, match="none that fedsolve asks"):
            CoxSums(own, True, coefficients=(0.0,), **asked)
    with pytest.raises(fs.InvalidInput, match="none that fedsolve asks"):
        replace(own, cells=(0,), shift=48).sums(site)
    with pytest.raises(fs.InvalidInput, match="no single times"):
        CoxSums(replace(own, counted="events"), True, (1, 2), (0.0,)).sums(site)


def test_questions_go_as_text_and_nothing_else_is_asked():
    asked = []

    class Listening(LocalSites):
        def sums(self, question):
            asked.append(question)
            return super().sums(question)

    sites = local_sites(changed(), 1, 1)
    CoxRequest("t", "died", "a + c", strata=None).fit(Listening(sites.tables, sites.minimum))
    assert all(Question.from_json(question.to_json()) == question for question in asked)
    assert {type(question).__name__ for question in asked} == {"Design", "Times", "CoxSums"}
    assert {question.ANALYSIS for question in asked} == {"", "cox"}
