"""Cox's partial likelihood from individual rows, as textbooks have it: loops over events, ties and rows."""

import numpy as np


def blocks_of_time(x, time, event, weights, b, ties):
    """Of each time of events: its part of the log-likelihood, score, information, and of the baseline hazard."""
    risk = weights * np.exp(x @ b)
    for t in np.unique(time[event]):
        at_risk, dead = np.flatnonzero(time >= t), np.flatnonzero((time == t) & event)
        share = weights[dead].sum() / len(dead)
        value, score, jump = weights[dead] @ (x[dead] @ b), weights[dead] @ x[dead], 0.0
        information = np.zeros((x.shape[1], x.shape[1]))
        for r in range(len(dead)):
            own = risk.copy()
            own[dead] *= 1 - (r / len(dead) if ties == "efron" else 0)
            total = own[at_risk].sum()
            mean = own[at_risk] @ x[at_risk] / total
            value -= share * np.log(total)
            score = score - share * mean
            centred = x[at_risk] - mean
            information += share * (centred * own[at_risk, None]).T @ centred / total
            jump += share / total
        yield t, value, score, information, jump


def likelihood(x, time, event, weights, b, ties, strata=None, power=0):
    """Sums over events, and strata, with the factor (log time)^power: log-likelihood, score, information."""
    total = [0.0, 0.0, 0.0]
    strata = np.zeros(len(x)) if strata is None else strata
    for s in np.unique(strata):
        of = strata == s
        for t, *parts, _ in blocks_of_time(x[of], time[of], event[of], weights[of], b, ties):
            total = [sum_ + np.log(t) ** power * part for sum_, part in zip(total, parts, strict=True)]
    return total


def trends(x, time, event, weights, b, ties, strata=None):
    """The score test of the model with further columns x log t: of each, and of all."""
    u = likelihood(x, time, event, weights, b, ties, strata, 1)[1]
    i0, i1, i2 = (likelihood(x, time, event, weights, b, ties, strata, power)[2] for power in range(3))
    p = len(b)
    whole = np.block([[i0, i1], [i1.T, i2]])
    found = []
    for k in range(p):
        kept = [*range(p), p + k]
        score = np.append(np.zeros(p), u[k])
        found.append(score @ np.linalg.solve(whole[np.ix_(kept, kept)], score))
    score = np.append(np.zeros(p), u)
    return [*found, score @ np.linalg.solve(whole, score)]


def concordance(x, time, event, weights, b, strata):
    """Harrell's C, pair by pair."""
    eta, good, all_pairs = np.round(x @ b, 9), 0.0, 0.0
    for i in np.flatnonzero(event):
        for j in np.flatnonzero(strata == strata[i]):
            if time[j] > time[i] or (time[j] == time[i] and not event[j]):
                pair = weights[i] * weights[j]
                all_pairs += pair
                good += pair * (1.0 if eta[i] > eta[j] else 0.5 if eta[i] == eta[j] else 0.0)
    return good / all_pairs
