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

Theorem. Let all clients take part with whole batches, gradients be L-Lipschitz, q = K eta L, and control variates \
start at c_i = grad f_i(w). If the server steps by r / 2 times D (FedExP without its clamp) and q <= 1/4, then r - 1 \
<= 0.16 in every round, so that the step is at most 0.58 D. If it steps by D while r <= 2 (the clamp) and q <= 1/5, \
then r - 1 <= 1/4 in every round, so that the step is D: SCAFFOLD's own.

Proof. Let y_k be client i's point after k steps of this round, y'_k that of the last round, d_k = |y_k - y'_k| / (K \
eta |h'|), and let the server have moved by s K eta |h'|, so that d_0 = s. Let every client have |h_i' - h_i''| <= x \
|h''| for the two rounds before; then |h' - h''| <= x |h''| and |h''| <= |h'| / (1 - x). The corrected gradients of \
the two rounds at step j differ by at most L |y_j - y'_j| + |h_i' - h_i''| + |h' - h''| <= (q d_j + m) |h'|, with m = \
2 x / (1 - x). So d_k <= s + the sum over j < k of (q d_j + m) / K, hence d_k <= s e^(q k / K) + (m / q) (e^(q k / K) \
- 1). Means over k are below the integral from 0 to 1: |h_i - h_i'| <= L mean |y_k - y'_k| <= X |h'| with X = s (e^q - \
1) + (2 x / (1 - x)) ((e^q - 1) / q - 1), which grows with q. For q = 1/4, s = 0.58 and x = 0.28 that is X <= 0.271; \
for q = 1/5, s = 1 and x = 1/3 it is X <= 0.329. So x is kept; |h| >= (1 - x) |h'|, and r - 1 <= mean |h_i - h_i'|^2 \
/ |h|^2 <= (x / (1 - x))^2, which is 0.152 and 1/4: the next step has s <= 0.576, or r <= 2 and s = 1. In the first \
round y'_k = w and h_i' = grad f_i(w): d_0 = m = 0 and a corrected gradient differs from h' by at most L |y_j - w|, so \
d_k <= (e^(q k / K) - 1) / q and X = (e^q - 1) / q - 1 <= 0.137. From c_i = 0 the first rounds are as without control \
variates; where K eta L is large, nothing of this need hold.

Minibatches. Let own gradients have independent noise, of variance s^2 / K in their mean h_i, and let M clients take \
part. The noise of this round and that of the last, which is in c_i, both stand in D_i: mean |D_i - D|^2 / (K eta)^2 \
gains 2 (1 - 1/M) s^2 / K in expectation, |D|^2 / (K eta)^2 gains s^2 / (K M). So r - 1 is about 2 s^2 / (K |h|^2) \
while that is well below M, and goes to 2 (M - 1) where h is 0: noise extrapolates the step as soon as |h|^2 < 2 s^2 \
/ K, up to M times. That is of use where the noise vanishes with the loss.

The client's own gradients. A client knows h_i = c_i for nothing. With mean |K eta h_i|^2 in place of mean |D_i|^2 the \
step is that of FedExP alone, mean |h_i|^2 / (2 |h|^2) times D, on updates without drift. With a part of the clients, \
D also has what c_i that are old got wrong, no bound of D from below holds, and the step needs a cap."""
