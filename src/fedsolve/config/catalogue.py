"""The catalogue: every method by name, with its paper and summary; importing it imports neither JAX nor a method.

The names of the package, the README's table, `fedsolve list`, docs/communication.md, the conformance tests and the
command line read it. A new method is one row here and one entry of `bibliography.bib`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from fedsolve.config.references import is_reference, load_reference
from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm

__all__ = [
    "ALGORITHMS",
    "WRAPPERS",
    "Entry",
    "entry",
]


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue: a method or a wrapper.

    Attributes:
        home: where it is built, as `module:name` below `fedsolve`; imported when it is first asked for. That of a
            wrapper is its class.
        citation: the key of its paper in `bibliography.bib`.
        summary: one line on it.
        example: values for what has no default, as a configuration writes them.
        wrapper: where `NAME+X` is built around any method X, '' where it wraps nothing. If that is `home`, the name
            alone is the wrapper around `FedAvg`.
        former: names that it had before, which stored configurations may hold.
        further: keys of more papers.
    """

    home: str
    citation: str
    summary: str
    example: Mapping[str, Any] = field(default_factory=dict)
    wrapper: str = ""
    former: tuple[str, ...] = ()
    further: tuple[str, ...] = ()

    @property
    def build(self) -> Callable[..., Any]:
        """The function or class that makes the method."""
        return load_home(self.home)

    @property
    def wrap(self) -> Callable[..., Algorithm]:
        """The class of the wrapper."""
        return load_home(self.wrapper)

    @property
    def papers(self) -> tuple[str, ...]:
        """The keys of its papers in `bibliography.bib`."""
        return (self.citation, *self.further)


_L1 = {"psi": {"name": "L1", "weight": 0.1}}
_BALL = {"constraint": {"name": "L1Ball", "radius": 10.0}}
_PNORM = {"mirror": {"name": "PNorm", "p": 1.5}}
_DP = {"noise_multiplier": 1.0, "clip_norm": 0.5, "cohort": 10, "population": 100, "delta": 1e-3}
_LOCAL_DP = {"clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5}
_LEAVES = {"leaves": "bias"}
_COMPRESSED = {"compressor": {"name": "TopK", "share": 0.1}, "memory": "feedback"}
_BIASED, _UNBIASED = (
    {"compressor": {"name": "TopK", "share": 0.1}},
    {"compressor": {"name": "EDEN", "bits": 1}},
)
_STEPS = {"most_steps": 10}
_UNIFORM = {"weighting": "uniform"}  # what differential privacy asks of the method that it wraps

_ALGORITHMS = {
    "FedAvg": Entry(
        "methods.server.sgd:FedAvg", "mcmahan2017fedavg", "local SGD on clients, averaging on the server"
    ),
    "FedAvgM": Entry(
        "methods.server.sgd:FedAvgM", "hsu2019fedavgm", "FedAvg with heavy-ball server momentum"
    ),
    "FedAdagrad": Entry("methods.server.adaptive:FedAdagrad", "reddi2021fedopt", "Adagrad on the server"),
    "FedAdam": Entry("methods.server.adaptive:FedAdam", "reddi2021fedopt", "Adam on the server"),
    "FedYogi": Entry("methods.server.adaptive:FedYogi", "reddi2021fedopt", "Yogi on the server"),
    "FedExP": Entry(
        "methods.server.dua:FedExP",
        "jhunjhunwala2023fedexp",
        "server step extrapolated by the clients' disagreement",
    ),
    "FedExPM": Entry("methods.server.dua:FedExPM", "takakura2025feddua", "FedExP with momentum"),
    "FedDuAdagrad": Entry(
        "methods.server.dua:FedDuAdagrad",
        "takakura2025feddua",
        "Adagrad on the server, with a step size from the clients' disagreement",
    ),
    "FedDuAdam": Entry(
        "methods.server.dua:FedDuAdam",
        "takakura2025feddua",
        "Adam on the server, with a step size from the clients' disagreement",
    ),
    "FedDuA": Entry(
        "methods.server.mirror:FedDuA",
        "takakura2025feddua",
        "mirror descent on the server, with a step size from the clients' disagreement",
        _PNORM,
    ),
    "DiLoCo": Entry(
        "methods.server.diloco:DiLoCo",
        "douillard2023diloco",
        "AdamW with stored moments on clients, Nesterov momentum on the server",
    ),
    "MuLoCo": Entry(
        "methods.server.diloco:MuLoCo",
        "therien2025muloco",
        "Muon with stored momentum on clients, Nesterov momentum on the server",
    ),
    "SparseLoCo": Entry(
        "methods.compression.methods:SparseLoCo",
        "sarfi2025sparseloco",
        "DiLoCo whose clients send their largest changes in 2 bits and remember the others",
    ),
    "StreamingDiLoCo": Entry(
        "methods.fragments:StreamingDiLoCo",
        "douillard2025streaming",
        "DiLoCo that averages one fragment of the model a round, while clients continue",
    ),
    "GPA": Entry(
        "methods.server.diloco:GPA",
        "defazio2025gpa",
        "data-parallel AdamW whose iterates are averaged over rounds, as DiLoCo smooths them",
    ),
    "FedDeltaSGD": Entry(
        "methods.server.sgd:FedDeltaSGD",
        "kim2024deltasgd",
        "local steps by how fast the client's gradients change, averaging on the server",
    ),
    "FedMuon": Entry(
        "methods.muon:FedMuon",
        "liu2025fedmuon",
        "Muon on clients, initialised with the last cohort's mean momentum",
    ),
    "BiasCorrectedMuon": Entry(
        "methods.muon:BiasCorrectedMuon",
        "takezawa2026fedmuon",
        "FedMuon with a bias-corrected oracle: Muon on clients, with control variates",
    ),
    "EF21Muon": Entry(
        "methods.compression.methods:EF21Muon",
        "gruntkowska2026ef21muon",
        "Muon on the server, gradients and model compressed with memories",
        _BIASED,
    ),
    "FedAda2": Entry(
        "methods.algorithms.fedada2:FedAda2",
        "lee2025fedada2",
        "Adagrad or Adam on clients, from zero in each round, Adam on the server",
    ),
    "FedAda2PlusPlus": Entry(
        "methods.algorithms.fedada2:FedAda2PlusPlus",
        "lee2025fedada2",
        "FedAda2++: SM3 on clients, from zero in each round, Adam on the server",
    ),
    "FedAdamW": Entry(
        "methods.adaptive_local:FedAdamW",
        "liu2026fedadamw",
        "AdamW on clients, initialised with the last cohort's mean second moments",
    ),
    "FedLADA": Entry(
        "methods.adaptive_local:FedLADA",
        "sun2023fedlada",
        "AMSGrad on clients, corrected by the last mean direction",
    ),
    "FedNova": Entry(
        "methods.server.fednova:FedNova",
        "wang2020fednova",
        "normalised averaging, unbiased with unequal numbers of local steps",
    ),
    "FedProx": Entry(
        "methods.wrappers.proximal:FedProx",
        "li2020fedprox",
        "FedAvg with a proximal term in the local objectives",
        wrapper="methods.wrappers.proximal:Proximal",
    ),
    "SCAFFOLD": Entry(
        "methods.wrappers.control_variates:SCAFFOLD",
        "karimireddy2020scaffold",
        "FedAvg with control variates",
        wrapper="methods.wrappers.control_variates:ControlVariates",
    ),
    "SCALLION": Entry(
        "methods.compression.methods:SCALLION",
        "huang2024scallion",
        "SCAFFOLD that uploads one vector, by an unbiased compressor",
        _UNBIASED,
        wrapper="methods.compression.methods:Scallion",
    ),
    "SCAFCOM": Entry(
        "methods.compression.methods:SCAFCOM",
        "huang2024scallion",
        "SCAFFOLD with momentum that uploads one vector, by any compressor",
        _BIASED,
        wrapper="methods.compression.methods:Scafcom",
    ),
    "Scaffnew": Entry(
        "methods.skipping:Scaffnew",
        "mishchenko2022proxskip",
        "local steps with control variates, rounds of random length",
    ),
    "FedComLoc": Entry(
        "methods.skipping:FedComLoc",
        "yi2024fedcomloc",
        "Scaffnew whose clients send compressed models",
        _BIASED,
    ),
    "FedMiD": Entry(
        "methods.algorithms.mirror_descent:FedMiD",
        "yuan2021fco",
        "mirror descent for F + psi, with primal averaging",
        _L1,
    ),
    "FedMiDOSP": Entry(
        "methods.algorithms.mirror_descent:FedMiDOSP",
        "yuan2021fco",
        "FedMiD with the prox on the server only",
        _L1,
        former=("FedMiD-OSP",),
    ),
    "FedDualAvg": Entry(
        "methods.algorithms.mirror_descent:FedDualAvg",
        "yuan2021fco",
        "dual averaging for F + psi",
        _L1,
    ),
    "FedDualAvgOSP": Entry(
        "methods.algorithms.mirror_descent:FedDualAvgOSP",
        "yuan2021fco",
        "FedDualAvg with the prox on the server only",
        _L1,
        former=("FedDualAvg-OSP",),
    ),
    "Subgradient": Entry(
        "methods.wrappers.proximal:Subgradient",
        "yuan2021fco",
        "FedAvg with subgradients of F + psi",
        _L1,
        wrapper="methods.wrappers.proximal:Subgradient",
    ),
    "FedFW": Entry(
        "methods.frank_wolfe:FedFW",
        "dadras2024fedfw",
        "Frank-Wolfe over a set, without projections",
        _BALL,
    ),
    "FedFWPlus": Entry(
        "methods.frank_wolfe:FedFWPlus",
        "dadras2024fedfw",
        "FedFW with a dual variable on each client",
        _BALL,
        former=("FedFW+",),
    ),
    "FedFWSto": Entry(
        "methods.frank_wolfe:FedFWSto",
        "dadras2024fedfw",
        "FedFW with running means of minibatch gradients",
        _BALL,
        former=("FedFW-sto",),
    ),
    "FedDR": Entry(
        "methods.algorithms.feddr:FedDR", "trandinh2021feddr", "Douglas-Rachford splitting for F + psi", _L1
    ),
    "FedDyn": Entry(
        "methods.algorithms.feddyn:FedDyn", "acar2021feddyn", "dynamic regularisation of the clients' losses"
    ),
    "FastFedDA": Entry(
        "methods.algorithms.fast_dual_averaging:FastFedDA",
        "bao2022fast",
        "dual averaging for F + psi with F strongly convex",
        _L1,
    ),
    "CFedDA": Entry(
        "methods.algorithms.fast_dual_averaging:CFedDA",
        "bao2022fast",
        "FastFedDA in which strong convexity counts once a round",
        _L1,
    ),
    "MCFedDA": Entry(
        "methods.algorithms.fast_dual_averaging:MCFedDA",
        "bao2022fast",
        "CFedDA in stages, within l1 balls, for an l1 norm",
        _L1,
    ),
    "ProxTracking": Entry(
        "methods.algorithms.prox_tracking:ProxTracking",
        "karimireddy2020scaffold",
        "proximal local steps for F + psi, corrected as in SCAFFOLD at FedAvg's traffic (ours)",
        _L1,
    ),
    "FedLiLS": Entry(
        "methods.algorithms.fedli:FedLiLS",
        "geetika2024fedli",
        "local SGD with Armijo line search, no learning rate to tune",
        former=("FedLi-LS",),
    ),
    "FedLiLU": Entry(
        "methods.algorithms.fedli:FedLiLU",
        "geetika2024fedli",
        "server step size from the clients' losses (Deep Frank-Wolfe)",
        former=("FedLi-LU",),
    ),
    "FedSLS": Entry(
        "methods.algorithms.fedsls:FedSLS",
        "geetika2025painless",
        "local SGD with Armijo line search that nearly keeps its step, averaging by examples",
    ),
    "FedExpSLS": Entry(
        "methods.algorithms.fedsls:FedExpSLS",
        "geetika2025painless",
        "FedSLS with FedExP's step on the server",
    ),
    "FedAdamSLS": Entry(
        "methods.algorithms.fedsls:FedAdamSLS", "geetika2025painless", "FedSLS with Adam on the server"
    ),
    "FedAdamExpSLS": Entry(
        "methods.algorithms.fedsls:FedAdamExpSLS",
        "geetika2025painless",
        "FedSLS with Adam on the server, its step lengthened as FedExP's",
    ),
    "Newton": Entry(
        "methods.newton:Newton",
        "lee2014proxnewton",
        "Newton's method on pooled Hessians, also for F + psi",
        further=("nocedal2006optimization",),
    ),
    "FedDoG": Entry(
        "methods.server.distance:FedDoG",
        "ivgi2023dog",
        "distance over gradients on the server: no server rate",
    ),
    "FedProdigy": Entry(
        "methods.server.distance:FedProdigy",
        "mishchenko2024prodigy",
        "Prodigy on the server: Adam with an estimated rate",
    ),
    "FedDAdaptation": Entry(
        "methods.server.distance:FedDAdaptation",
        "defazio2023dadaptation",
        "D-Adaptation on the server: Adam with an estimated rate",
    ),
    "PAdaMFed": Entry(
        "methods.algorithms.padamfed:PAdaMFed",
        "yan2025padamfed",
        "normalised local steps with momentum and control variates: no learning rates",
        {"horizon": 100},
    ),
    "FedBuff": Entry(
        "methods.wrappers.asynchronous:FedBuff",
        "nguyen2022fedbuff",
        "asynchronous: the server updates after every K messages",
        wrapper="methods.wrappers.asynchronous:Buffered",
    ),
    "FedAsync": Entry(
        "methods.wrappers.asynchronous:FedAsync",
        "xie2019fedasync",
        "asynchronous: the server mixes in each client's model as it arrives",
        wrapper="methods.wrappers.asynchronous:Mixing",
    ),
    "FedExProx": Entry(
        "methods.algorithms.fedexprox:FedExProx",
        "li2024fedexprox",
        "proximal clients, extrapolation on the server",
    ),
    "SDANE": Entry(
        "methods.proximal_point:SDANE",
        "jiang2024sdane",
        "proximal points with control variates, around a stabilised centre",
    ),
    "AccSDANE": Entry(
        "methods.proximal_point:AccSDANE",
        "jiang2024sdane",
        "SDANE with extrapolated centres",
    ),
    "FedRed": Entry(
        "methods.proximal_point:FedRed",
        "jiang2024fedred",
        "local steps with two regularisers and control variates, rounds of random length",
    ),
    "FedZO": Entry(
        "methods.zeroth_order:FedZO",
        "fang2022fedzo",
        "FedAvg with gradients estimated from losses (zeroth-order)",
    ),
    "FedKSeed": Entry(
        "methods.zeroth_order:FedKSeed",
        "qin2024fedkseed",
        "zeroth-order: a client sends directional derivatives along candidate directions",
        _STEPS,
    ),
    "DeComFL": Entry(
        "methods.zeroth_order:DeComFL",
        "li2025decomfl",
        "zeroth-order: up- and downlink carry only directional derivatives",
        _STEPS,
    ),
    "SPPMAS": Entry(
        "methods.proximal_point:SPPMAS",
        "yi2024cohort",
        "one proximal problem for several rounds",
        wrapper="methods.proximal_point:ProximalPoint",
    ),
    "QFedAvg": Entry(
        "methods.fairness:QFedAvg",
        "li2020qffl",
        "FedAvg with weights from powers of the clients' losses",
    ),
    "TERM": Entry(
        "methods.fairness:TERM",
        "li2021term",
        "FedAvg with weights from exponentials of the clients' losses",
    ),
    "AFL": Entry(
        "methods.fairness:AFL",
        "mohri2019afl",
        "minimax over mixtures of clients, by mirror ascent on their weights",
    ),
    "DRFA": Entry(
        "methods.fairness:DRFA",
        "deng2020drfa",
        "minimax over mixtures of clients, with losses at a random snapshot",
    ),
    "FedSAM": Entry(
        "methods.sharpness:FedSAM",
        "qu2022fedsam",
        "FedAvg with sharpness-aware gradients on the clients",
        wrapper="methods.sharpness:Sharpness",
    ),
    "MoFedSAM": Entry(
        "methods.sharpness:MoFedSAM",
        "qu2022fedsam",
        "FedSAM whose local steps follow the last mean direction as well",
        wrapper="methods.sharpness:SharpMomentum",
    ),
    "FedSpeed": Entry(
        "methods.sharpness:FedSpeed",
        "sun2023fedspeed",
        "FedDyn with sharpness-aware gradients",
    ),
    "FedSMOO": Entry(
        "methods.sharpness:FedSMOO",
        "sun2023fedsmoo",
        "FedDyn with sharpness-aware gradients at consistent perturbations",
    ),
    "FedLESAM": Entry(
        "methods.sharpness:FedLESAM",
        "fan2024fedlesam",
        "perturbation of SAM estimated from the server's last steps, at no extra gradient",
        wrapper="methods.sharpness:EstimatedSharpness",
    ),
    "FedPer": Entry(
        "methods.wrappers.personal:FedPer",
        "arivazhagan2019fedper",
        "personal layers on each client, trained together with the shared ones",
        _LEAVES,
    ),
    "FedRep": Entry(
        "methods.wrappers.personal:FedRep",
        "collins2021fedrep",
        "personal layers on each client, trained before the shared ones",
        _LEAVES,
    ),
    "Ditto": Entry(
        "methods.wrappers.proximal:Ditto",
        "li2021ditto",
        "FedAvg, and a personal model on each client, trained towards the global one",
        wrapper="methods.wrappers.proximal:Ditto",
    ),
    "pFedMe": Entry(
        "methods.personal_models:pFedMe",
        "dinh2020pfedme",
        "local steps on Moreau envelopes, whose minimisers are personal models",
        wrapper="methods.personal_models:Moreau",
    ),
    "PerFedAvg": Entry(
        "methods.personal_models:PerFedAvg",
        "fallah2020perfedavg",
        "FedAvg on the losses after a gradient step of each client",
        wrapper="methods.personal_models:Meta",
    ),
    "FedBN": Entry(
        "methods.personal_clusters:FedBN",
        "li2021fedbn",
        "FedAvg with normalisation layers, and their statistics, on each client",
        wrapper="methods.personal_clusters:LocalNormalization",
    ),
    "IFCA": Entry(
        "methods.personal_clusters:IFCA",
        "ghosh2020ifca",
        "clusters of clients: each trains the model with the lowest loss",
    ),
}

ALGORITHMS = Registry("algorithm", _ALGORITHMS)
"""Every method by its name."""

_WRAPPERS = {name: entry for name, entry in ALGORITHMS.items() if entry.wrapper} | {
    "Robust": Entry(
        "methods.robust.wrapper:Robust",
        "yin2018robust",
        "a robust reduction instead of the mean",
        {"reduction": "median"},
        wrapper="methods.robust.wrapper:Robust",
        further=("blanchard2017krum", "pillutla2022rfa", "karimireddy2021history"),
    ),
    "Personal": Entry(
        "methods.wrappers.personal:Personal",
        "arivazhagan2019fedper",
        "personal layers on each client, as in FedPer and FedRep",
        _LEAVES,
        wrapper="methods.wrappers.personal:Personal",
        further=("collins2021fedrep",),
    ),
    "Compressed": Entry(
        "methods.compression.compressed:Compressed",
        "stich2018sparsified",
        "compressed client updates, with a memory for compression errors",
        _COMPRESSED,
        wrapper="methods.compression.compressed:Compressed",
        further=(
            "seide2014onebit",
            "richtarik2021ef21",
            "fatkhullin2023momentum",
            "alistarh2017qsgd",
            "vargaftik2022eden",
            "vogels2019powersgd",
            "karimireddy2019signsgd",
        ),
    ),
    "LowRank": Entry(
        "methods.low_rank:LowRank",
        "hu2022lora",
        "LoRA: factors of low rank, averaged as such, exactly, by stacking or with A fixed",
        {"rank": 1},
        wrapper="methods.low_rank:LowRank",
        further=("sun2024ffalora", "singhal2025fedexlora", "wang2024flora"),
    ),
    "Secure": Entry(
        "methods.secure.secure:Secure",
        "bonawitz2017secure",
        "secure sums: the server learns only the sum of the messages",
        {"bound": 10.0, "max_clients": 10_000, "max_examples": 100_000},
        wrapper="methods.secure.secure:Secure",
        further=("bell2020secure", "ma2023flamingo"),
    ),
    "DP": Entry(
        "methods.privacy.central:DifferentialPrivacy",
        "mcmahan2018dp",
        "differential privacy: clipped updates, noise on their sum, by the server or in shares",
        _DP | _UNIFORM,
        wrapper="methods.privacy.central:DifferentialPrivacy",
        further=("andrew2021adaptive", "agarwal2021skellam"),
    ),
    "LocalDP": Entry(
        "methods.privacy.local:LocalDifferentialPrivacy",
        "balle2018gaussian",
        "local differential privacy: clipped updates, noise on each client",
        _LOCAL_DP | _UNIFORM,
        wrapper="methods.privacy.local:LocalDifferentialPrivacy",
    ),
}

WRAPPERS = Registry("wrapper", _WRAPPERS)
"""Every wrapper by name; `NAME+X` puts it around any method X."""

_FORMER = {former: name for name, entry in ALGORITHMS.items() for former in entry.former}


def load_home(home: str) -> Any:
    """What `module:name` below the package names, such as `server.sgd:FedAvg`; its module is imported now."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(f"fedsolve.{module}"), name)


def current_name(name: str) -> str:
    """A name as it is spelled now, perhaps with wrappers before it; unknown ones, and a user's own, as they are.

    >>> current_name("SCAFFOLD+FedFW+")
    'SCAFFOLD+FedFWPlus'
    """
    for former, now in _FORMER.items():
        if name == former or name.endswith(f"+{former}"):
            return name.removesuffix(former) + now
    return name


def entry(name: str) -> Entry:
    """The catalogue's row of a method, or a row for your own `module:Class`.

    Args:
        name: a name of the catalogue, also a former one, or `module:Class`.

    Returns:
        The row; for a class of your own it has no papers.

    Raises:
        InvalidInput: an unknown name (with the nearest match).
    """
    if is_reference(name):
        return _Own(name, "", "your own")
    return ALGORITHMS.find(current_name(name))


def wrapper_entry(name: str) -> Entry:
    """The wrapper of the catalogue with that name, or the user's own as `module:Class`, without a summary of papers."""
    return _Own(name, "", "your own") if is_reference(name) else WRAPPERS.find(name)


class _Own(Entry):
    """A user's own method or wrapper."""

    @property
    def build(self) -> Callable[..., Any]:
        """The class or function, imported; `InvalidInput` if that cannot be."""
        from fedsolve.core.algorithm import Algorithm

        return load_reference("algorithm", self.home, Algorithm)

    @property
    def wrap(self) -> Callable[..., Algorithm]:
        """The same, which takes the method that it wraps; `InvalidInput` if it takes none."""
        found = self.build
        if "inner" not in inspect.signature(found).parameters:
            raise InvalidInput(
                f"{self.home}+ needs a wrapper, and {self.home} has no argument `inner`, the method that it wraps"
            )
        return found


def split_name(name: str) -> tuple[str, str]:
    """The outermost wrapper of a name and the rest, which may begin with one again; '' and the name where it has none.

    A wrapper of the catalogue alone stands around `FedAvg`. `InvalidInput` for one that comes twice.
    """
    if not isinstance(name, str):
        ALGORITHMS.find(name)  # no text is the name of one: refused
    name = current_name(name)
    wrapper, plus, inner = name.partition("+")
    if name in ALGORITHMS and ALGORITHMS[name].home == ALGORITHMS[name].wrapper:
        return name, "FedAvg"
    if "," in name:
        raise InvalidInput(
            f"{name!r} is no method: give methods one by one, as {' '.join(filter(None, name.split(',')))}"
        )
    if plus and "" in name.split("+"):
        raise InvalidInput(
            f"{name!r} is no method: write wrapper and method without spaces, as SCAFFOLD+FedAvg"
        )
    if plus and wrapper in ALGORITHMS and wrapper not in WRAPPERS:
        around = inner.split("+")[0] in WRAPPERS
        remedy = f"write {inner}+{wrapper}" if around else f"as in SCAFFOLD+{wrapper}"
        raise InvalidInput(f"{name}: {wrapper} wraps no method: a wrapper comes before it, {remedy}")
    if plus and not is_reference(wrapper):
        WRAPPERS.find(wrapper)
    if plus and wrapper in inner.split("+"):
        shown = name if len(name) < 80 else name[:76] + " ..."
        raise InvalidInput(f"{shown}: {wrapper} comes twice: once is enough")
    return (wrapper, inner) if plus else ("", name)


# The papers, data sets and software that fedsolve names, by citation key: BibTeX, and words for lists and pages.


_ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?$", re.MULTILINE | re.DOTALL)
_ACCENT = re.compile(r"\\(['\"`^~]|v(?=\{|\s))\s*\{?(\w)\}?")
_MARKS = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "v": "\u030c", "~": "\u0303"}


def _entries() -> dict[str, str]:
    text = resources.files("fedsolve.config").joinpath("bibliography.bib").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


BIBTEX: Mapping[str, str] = _entries()
"""BibTeX entry of each key, as `bibliography.bib` has it."""


def short(key: str) -> str:
    """A paper in a list: first author and year.

    >>> short("reddi2021fedopt")
    'Reddi et al. 2021'
    """
    fields = _fields(key)
    authors = [_plain(a).split(",")[0] for a in re.split(r"\s+and\s+", fields.get("author", key))]
    names = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    return f"{names} {fields.get('year', '')}".strip()


def title(key: str) -> str:
    """The title of a paper."""
    return _plain(_fields(key).get("title", ""))


def _fields(key: str) -> dict[str, str]:
    return {name.lower(): " ".join(value.split()) for name, value in _FIELD.findall(BIBTEX.get(key, ""))}


def _plain(text: str) -> str:
    """BibTeX text without braces; accented letters as one character.

    >>> _plain('{FedDuA}: B{\\\\"u}cher')
    'FedDuA: Bücher'
    """
    text = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", m[2] + _MARKS[m[1]]), text)
    return re.sub(r"[{}]", "", text)
