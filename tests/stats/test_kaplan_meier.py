"""Kaplan-Meier curves and the log-rank test over sites against statsmodels on the tables put together."""

import json

import numpy as np
import pytest
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

import fedsolve as fs
from fedsolve.results.columns import dumps
from fedsolve.stats.estimates import Stored
from fedsolve.stats.hazards import cox
from fedsolve.stats.survival import kaplan_meier

SIZES = (80, 30, 5, 65)
LABELS = np.repeat(np.arange(len(SIZES)), SIZES)
ONE = {"min_rows": 1, "min_clients": 1}


def rows(ties=True, last_is_event=False):
    rng = np.random.default_rng(2)
    group = rng.choice(["A", "B", "C"], len(LABELS))
    time = rng.exponential(size=len(LABELS)) * (1 + (group == "B"))
    end = rng.exponential(2.5, len(LABELS))
    event, time = time <= end, np.minimum(time, end)
    event[LABELS == 2] = False
    if last_is_event:
        event[np.argmax(time)] = True
    return group, np.ceil(time * 8) / 8 if ties else time, event


def split(group, time, event):
    cuts = np.cumsum(SIZES)[:-1]
    parts = {"arm": np.split(group, cuts), "t": np.split(time, cuts), "died": np.split(event, cuts)}
    return [{name: part[i] for name, part in parts.items()} for i in range(len(SIZES))]


@pytest.mark.parametrize("ties", [True, False])
def test_curves_are_those_of_the_tables_put_together(ties):
    group, time, event = rows(ties)
    found = kaplan_meier(split(group, time, event), "t", "died", "arm", **ONE)
    for name in "ABC":
        of = group == name
        wanted, curve = SurvfuncRight(time[of], event[of]), found[name]
        here = curve.events > 0
        np.testing.assert_allclose(curve.times[here], wanted.surv_times, rtol=1e-9)
        np.testing.assert_allclose(curve.survival[here], wanted.surv_prob, rtol=0, atol=1e-12)
        np.testing.assert_allclose(curve.standard_errors[here], wanted.surv_prob_se, rtol=1e-9)
        np.testing.assert_array_equal(curve.at_risk[here], wanted.n_risk)
        with np.errstate(all="ignore"):
            ends = wanted.quantile_ci(0.5, method="cloglog")
        assert curve.median == pytest.approx((wanted.quantile(0.5), *ends), rel=1e-9)
        for t in (0.0, 0.3, 1.0):
            assert curve.at(t)[3] == (time[of] >= t).sum()
            before = wanted.surv_prob[wanted.surv_times <= t]
            assert curve.at(t)[0] == pytest.approx(np.append(1.0, before)[-1], abs=1e-12)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("strata", [None, "site"])
def test_the_log_rank_test_is_that_of_the_tables_put_together(strata, ties):
    group, time, event = rows(ties)
    found = kaplan_meier(split(group, time, event), "t", "died", "arm", strata=strata, **ONE)
    wanted = survdiff(time, event, group, strata=LABELS if strata else None)
    assert (found.statistic, found.p_value) == pytest.approx(wanted, rel=1e-9)
    assert found.degrees == 2
    assert found.observed.sum() == pytest.approx(found.expected.sum())


def test_without_ties_the_log_rank_test_is_the_score_test_of_cox():
    sites = split(*rows(ties=False))
    found = kaplan_meier(sites, "t", "died", "arm", **ONE)
    assert cox(sites, "t", "died", "C(arm)", strata=None, **ONE).score_statistic == pytest.approx(
        found.statistic
    )


def test_log_log_intervals_are_the_formula():
    from scipy.stats import norm

    group, time, event = rows(last_is_event=True)
    found = kaplan_meier(split(group, time, event), "t", "died", level=0.9, **ONE)
    curve, at_risk, survival, greenwood = found["all"], len(time), 1.0, 0.0
    for t, s, (low, high) in zip(curve.times, curve.survival, curve.intervals, strict=True):
        leaving, deaths = (time == t).sum(), (event & (time == t)).sum()
        survival *= 1 - deaths / at_risk
        if survival == 0:
            assert np.isnan([low, high, curve.standard_errors[-1]]).all()
            continue
        greenwood += deaths / (at_risk * (at_risk - deaths))
        at_risk -= leaving
        power = norm.ppf(0.95) * np.sqrt(greenwood) / abs(np.log(survival)) if survival < 1 else 0.0
        expected = (survival, survival ** np.exp(power), survival ** np.exp(-power))
        assert (s, low, high) == pytest.approx(expected, rel=1e-10)
    assert curve.survival[-1] == 0


def test_bins_are_the_curve_of_times_at_their_ends():
    group, time, event = rows(ties=False)
    found = kaplan_meier(split(group, time, event), "t", "died", interval=0.1, **ONE)["all"]
    wanted = SurvfuncRight(np.ceil(time / 0.1).round(), event)
    np.testing.assert_allclose(found.survival[found.events > 0], wanted.surv_prob, atol=1e-12)
    np.testing.assert_allclose(found.times[found.events > 0], 0.1 * wanted.surv_times, rtol=1e-9)


def test_few_rows_leave_at_a_later_time_together():
    sites = [split(*rows(ties=False))[i] for i in (0, 3)]
    found = kaplan_meier(sites, "t", "died", interval=0.05, min_rows=10, min_clients=2)
    leaving = found.at_risk[0] - np.append(found.at_risk[0, 1:], 0)
    assert (leaving >= 10).all()
    assert found.at_risk[0, 0] == 145
    assert "rows leave in a later bin than their own" in found.notes[0]


def test_a_curve_that_does_not_fall_to_one_half_has_no_median():
    time, event = np.arange(1.0, 21.0), np.arange(20) < 4
    found = kaplan_meier([{"t": time, "died": event}], "t", "died", **ONE)
    assert found["all"].median == (np.inf, np.inf, np.inf)
    assert found.at(3.5)["all"][0] == pytest.approx(17 / 20)
    assert np.isnan(found.at(21.0)["all"][0])
    assert np.isnan(found.p_value)
    halved = kaplan_meier([{"t": time[:6], "died": event[:6] | True}], "t", "died", **ONE)
    assert halved["all"].median[0] == 3.0


def test_it_is_shown_as_table_frame_and_plot():
    pytest.importorskip("matplotlib")
    group, time, event = rows()
    found = kaplan_meier(split(group, time, event), "t", "died", "arm", **ONE)
    text = repr(found)
    assert "log-rank test: chi-square" in text
    assert "180 rows of 4 sites" in text
    assert len(found.frame()) == sum(len(np.unique(time[group == g])) for g in "ABC")
    above, below = found.plot("years").axes
    assert (above.get_ylabel(), below.get_xlabel()) == ("survival", "t (years)")
    assert found.plot("t").axes[1].get_xlabel() == "t"
    assert [line.get_label() for line in above.get_lines()] == ["A", "B", "C"]
    shown = [text.get_text() for text in below.texts]
    assert str((group == "A").sum()) in shown
    assert repr(Stored.read(json.loads(dumps(found.as_plain())))) == text


def test_what_cannot_be_used_is_said_in_one_line():
    sites = split(*rows())
    for words, options in {
        "fewer than two categories": {"groups": "only"},
        "level = 1.5 must be": {"level": 1.5},
        "strata = 'arm' must be": {"strata": "arm"},
        "give an interval": {"min_rows": 2},
        "none": {"groups": "none"},
        "groups = .* must be one column": {"groups": ["arm", "only"]},
        "groups = 'died' must be": {"groups": "died"},
    }.items():
        tables = [site | {"only": ["A"] * len(site["t"])} for site in sites]
        with pytest.raises(fs.InvalidInput, match=words) as error:
            kaplan_meier(tables, "t", "died", **ONE | options)
        assert "\n" not in str(error.value)
