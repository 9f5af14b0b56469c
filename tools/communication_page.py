"""`docs/communication.md`: what a server and one client send each other in a round, of every method."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from fedsolve import wire
from fedsolve.deploy.communication import Payload, examples, payload
from fedsolve.methods.compression import EDEN, QSGD, Cast, Chain, Compressor, PowerSGD, RandomK, Sign, TopK


def page() -> str:
    """The page: methods of equal traffic in one row."""
    rows: dict[Payload, list[str]] = {}
    no_sums: dict[str, list[str]] = {}
    for name, algorithm in examples().items():
        found = payload(algorithm)
        rows.setdefault(found, []).append(f"`{name}`")
        if found.not_a_sum:
            no_sums.setdefault(found.not_a_sum, []).append(f"`{name}`")
    lines = [_INTRO, "| methods | download | upload |", "|---|---|---|"]
    for found, names in rows.items():
        down = "<br>".join(f"`{f.name}` {f.shape}" for f in found.down if not f.name.endswith("round"))
        up = "<br>".join(f"`{f.name}` {f.shape}, {f.reduced}" for f in found.up)
        lines.append(_typeset(f"| {', '.join(names)} | {down} | {up} |"))
    lines += ["", _SUMS]
    lines += [_typeset(f"* {', '.join(names)}: {reason}.") for reason, names in no_sums.items()]
    return "\n".join([*lines, "", _COMPRESSED, *map(_row, _COMPRESSORS), ""])


def _row(compressor: Compressor) -> str:
    """A compressor on a matrix of 1,024 x 1,024 numbers: what is sent, and the published bound on its error."""
    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    sent = wire.size(
        jax.eval_shape(lambda x: compressor.encode(x, jax.random.key(0), jax.random.key(0)), shape)
    )
    kind = "linear" if compressor.is_linear else "unbiased" if compressor.is_unbiased else ""
    bound = (
        ""
        if compressor.error(shape.size) >= 1 - 1e-5 and not compressor.is_unbiased
        else (f"{compressor.error(shape.size):.2g}")
    )
    return f"| `{compressor}` | {4 * shape.size / sent:.3g} | {kind} | {bound} |"


def _typeset(row: str) -> str:
    """A row of the page: its introduction says that a field is one number and is averaged, where a row says nothing."""
    named = row.replace("mean by examples", "weighted").replace("mean 1/|S|", "mean")
    named = named.replace("a whole number", "(integer)").replace("is no sum", "is not a sum")
    named = named.replace(", changed by the server, then", " †,")
    named = named.replace(" one number", "").replace(", mean", "")
    return re.sub(r"\b(K d_s|K d|K|d_s|d\(d \+ 1\)/2|d) numbers", r"$\1$", named)


_SUMS = """## Sums

`fs.Secure(fs.FedAvg(0.1), bound=1.0, max_clients=100, max_examples=5_000)` gives the server only sums over the cohort
(`docs/privacy.md`). It sends 4 bytes per number (8 with `bits=64`) and 8 bytes per scalar. A maximum that is only
logged, `search.step` of FedLiLS, becomes a mean.

The server cannot exclude a message that is not finite, so a client with such a message sends nothing. `fs.Secure`
refuses FedBuff and FedAsync, whose clients begin at different times, and noise added by the server. These methods need
more than sums:
"""

_COMPRESSED = """## Compressed client updates

`fs.Compressed(fs.FedAvg(0.1), fs.compression.TopK(0.01), memory="feedback")` compresses the client updates of any
method that sends them. `bytes_up` counts the compressed bytes, in simulation and deployment. A biased compressor needs
a memory, `feedback` or `ef21`. Messages of a linear compressor can be summed before they are decoded.
`down=fs.compression.Cast()` compresses the model that clients download.

* Label skew: `SCALLION` (unbiased compressors) and `SCAFCOM` (any) send SCAFFOLD's vector compressed. On FEMNIST
  SCALLION with `EDEN(1)` had 90 % of FedAvg's accuracy with 23.7 times fewer bytes, then diverged on 4 of 5 seeds.
* Noisy client updates and a biased compressor: `memory="ef21", momentum=0.1` is EF21-SGDM.
* Two in sequence: `fs.compression.Chain(TopK(0.02), EDEN(2))` sends the largest entries in 2 bits. `SparseLoCo` is
  `DiLoCo` with such a code, blocks of 4,096 entries, and a memory that forgets (`decay=0.95`).
* Few clients that run Muon: `fs.Compressed(fs.MuLoCo(), fs.compression.EDEN(2), memory="feedback")`.
* `FedExP` and `FedDuA` use $|D_i|^2$, which clients send with the code; a deployment cannot check it.
  `norms="decoded"` takes $|Q(D_i)|^2/(1+\\omega)$ instead, which is never significantly better, and significantly worse
  with `QSGD`, whose omega is only a bound, and once with `EDEN(2)` (`fedsolve reproduce compressed-extrapolation`).

On the FEMNIST sample (`fedsolve reproduce bytes-to-accuracy`) clients take part in one of 30 rounds, too rarely for
memories: with `TopK(0.01)`, error feedback ends 5 points below FedAvg, SCAFCOM 12 and EF21-SGDM 18.

The table is for a leaf of 1,024 × 1,024 float32 numbers. *Error* bounds the squared error relative to the squared norm:
omega of an unbiased compressor, 1 - delta of another one.

| compressor | times smaller | | error |
|---|---:|---|---:|"""
_COMPRESSORS = (
    Cast(), QSGD(4), EDEN(1), EDEN(2), EDEN(4), TopK(0.01), RandomK(0.01), PowerSGD(4), Sign(),
    Chain(TopK(64 / 4096, 4096), EDEN(2)),
)  # fmt: skip

_INTRO = r"""# Communication

For users who plan bandwidth, secure aggregation or a privacy review: which values one
client downloads and uploads in a round, for every method at its defaults. `fedsolve list communication` prints the
same table.

**Data are never sent**, but updates can reveal them: see `docs/what-is-protected.md`.

A field without a stated size is a scalar. $d$ is the number of model parameters, $d_s$ the number of shared parameters,
and $K$ the number of local steps. Every download also has the number of the round. The server averages a field over the
cohort, unless another reduction is stated; † means that it changes each message before the sum. "Weighted"
means by the numbers of examples $n_i$, which the server receives with the message.

* `delta` is the client update. `loss` is the mean local loss, for logging only. The server step uses the other
  scalars; `search` has the results of a line search.
* **Frank-Wolfe methods** are shown with an $\ell_1$ ball, whose extreme point is one integer. For other sets see
  `docs/composite.md`.
* **SCAFFOLD** uploads one vector instead of two if all clients take the same number of local steps: its control
  variate follows from the mean client update. `fs.run` detects this. In a deployment pass the number of steps,
  `equal_steps=K`; each client checks it.
* **FedKSeed and DeComFL** are shown with 10 local steps and a `history` of 100 rounds, for any model. `fs.run`
  detects the number of steps; in a deployment pass `most_steps`. With `down="model"` they download `params` $d$.
* **Wrappers** add fields: `inner.delta` is the client update inside SCAFFOLD's message. `Robust+X`, `FedBuff+X` and
  `FedAsync+X` send the same fields as X.
"""
