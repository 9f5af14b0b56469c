"""What is shown of the diversity of client updates under control variates."""

from __future__ import annotations

THEORY = """\
Client i takes K steps of rate eta from w and has moved by D_i; D is the mean of all D_i; the diversity is r = mean \
|D_i|^2 / |D|^2, so that r - 1 = mean |D_i - D|^2 / |D|^2. FedDuA's step (no momentum, any preconditioner G) is \
eta_g G^-1 D with eta_g = mean |D_i|^2 / (2 D' G^-1 D). Hence its advance along D is <step, D> = (r / 2) |D|^2: r / \
2 times that of plain averaging. That factor is the extrapolation; with r = 1 it is a half. The original FedExP has a \
clamp, eta_g = max(1, r / 2): with r = 1 it takes the plain step, and SCAFFOLD+FedExP is SCAFFOLD.

Let h_i be the mean of client i's own gradients along its K steps, h their mean over clients. Plain local steps: D_i \
= -K eta h_i and D = -K eta h, so r - 1 = mean |h_i - h|^2 / |h|^2. Near the optimum h goes to 0, while h_i goes to \
grad f_i, which does not: r grows without bound.

Control variates (option II, all clients, whole batches): each of client i's gradients is taken less c_i and plus c, \
and after the round c_i = h_i, c = h. With ' for the round before, D_i = -K eta (h_i - h_i' + h') and D = -K eta h. \
So r - 1 = mean |(h_i - h_i') - (h - h')|^2 / |h|^2. The gradients of the clients have dropped out: what is left is \
how much each changed since the last round.

Theorem. Let all clients take part with whole batches, gradients be L-Lipschitz, q = K eta L <= 1/12, control \
variates start at c_i = grad f_i(w), and the server take at most D itself, as FedExP does with its clamp, or r / 2 \
times D, as without. Then in every round r - 1 <= (10 q)^2 <= 0.7: the step is at most 0.85 D, or D with the clamp.

Proof. Write e for the largest distance of a client's local points from its start, in units of K eta |h'|, and e0 for \
the same of the round before, in the same units. Every point of this round is within (e + 1 + e0) K eta |h'| of every \
one of the last, since the server moved by at most K eta |h'|. So |h_i - h_i'| <= q (e + 1 + e0) |h'| =: x |h'|. A \
corrected gradient differs from h' by no more, so e <= 1 + q (e + 1 + e0). Suppose that the round before had e <= 3/2 \
and x <= 1/2 in its own units. Then |h'| is at least half of |h''|, so e0 <= 3, e <= (1 + 4 q) / (1 - q) <= 16/11 and \
x <= q (16/11 + 4) <= 5/11: the same holds of this round, with |h| >= (6/11) |h'|. So |h_i - h_i'| <= 10 q |h|, and r \
/ 2 is below 1. In the first round the points of the round before are w itself, and there was no server step: e <= \
12/11 and x <= 1/11. From c_i = 0 the first rounds are as without control variates; where K eta L is large, nothing of \
this need hold.

Minibatches. Let own gradients have independent noise, of variance s^2 / K in their mean h_i, and let M clients take \
part. The noise of this round and that of the last, which is in c_i, both stand in D_i: mean |D_i - D|^2 / (K eta)^2 \
gains 2 (1 - 1/M) s^2 / K in expectation, |D|^2 / (K eta)^2 gains s^2 / (K M). So r - 1 is about 2 s^2 / (K |h|^2) \
while that is well below M, and goes to 2 (M - 1) where h is 0: noise extrapolates the step as soon as |h|^2 < 2 s^2 \
/ K, up to M times. That is of use where the noise vanishes with the loss.

The client's own gradients. A client knows h_i = c_i for nothing. With mean |K eta h_i|^2 in place of mean |D_i|^2 the \
step is that of FedExP alone, mean |h_i|^2 / (2 |h|^2) times D, on updates without drift. With a part of the clients, \
D also has what c_i that are old got wrong, no bound of D from below holds, and the step needs a cap."""
