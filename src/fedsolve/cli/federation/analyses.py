"""The commands `fedsolve federate glm`, `cox` and `km`: a model or a curve over the rows of all connected clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.configuration import command_options as arg
from fedsolve.cli.federation.commands import AppFolder, RunConfig, SuperLink, federate

_Time = Annotated[str, typer.Option("--time", metavar="COLUMN", help="Column of the times, from 0.")]
_Event = Annotated[
    str,
    typer.Option("--event", metavar="COLUMN", help="Column that is 1 for an event, 0 for a censored row."),
]
_Interval = Annotated[
    float | None,
    typer.Option(
        help="Width of the bins to whose end times are moved, such as 7 for weeks (default: exact times, which sites "
        "tell only with min_rows=1).",
        show_default=False,
    ),
]
_Weights = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of weights (default: none).", show_default=False)
]
_MinClients = Annotated[
    int, typer.Option(help="Minimum number of clients that take part (default: 3).", show_default=False)
]
_MinRows = Annotated[
    int,
    typer.Option(
        help="Minimum number of rows of a category, beside the owners' own (default: 10).", show_default=False
    ),
]
_Secure = Annotated[
    bool,
    typer.Option("--secure", help="Use secure sums; categories come from the app's schema (default: off)."),
]


@federate.command(short_help="Fit a generalised linear model to the clients' rows.")
def glm(
    formula: Annotated[
        str,
        typer.Argument(
            metavar="FORMULA", help='Outcome and terms, such as "ill ~ age + smoker + age:smoker".'
        ),
    ],
    family: Annotated[
        str, typer.Option(help="gaussian, binomial, poisson, gamma or negative-binomial.", show_default=True)
    ] = "gaussian",
    link: Annotated[
        str | None, typer.Option(help="Link, such as probit (default: the family's).", show_default=False)
    ] = None,
    weights: _Weights = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help='Column of the offset, or "log(COLUMN)" (default: none).',
            show_default=False,
        ),
    ] = None,
    errors: Annotated[
        str,
        typer.Option(help="Standard errors: model, robust, or sites (clustered by site).", show_default=True),
    ] = "model",
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Print exp(coefficient): odds or rate ratios (default: off).")
    ] = False,
    app: AppFolder = Path(),
    superlink: SuperLink = "",
    min_clients: _MinClients = 3,
    min_rows: _MinRows = 10,
    secure: _Secure = False,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Fit a generalised linear model; estimates and errors are those of all rows in one table.

    Run this command on the machine of the SuperLink. Owners of clients allow it by client_app(analyses=("glm",)).
    """
    from fedsolve.stats.linear_models import GlmRequest

    request = GlmRequest(formula, None, family, link, weights, offset, errors)
    _analyse(
        "glm", request, (app, superlink, run_config, out), (min_clients, min_rows, secure), as_json, ratios
    )


@federate.command(short_help="Fit Cox's proportional hazards model to the clients' rows.")
def cox(
    terms: Annotated[str, typer.Argument(metavar="TERMS", help='Terms, such as "age + smoker".')],
    time: _Time,
    event: _Event,
    ties: Annotated[str, typer.Option(help="Rule for tied times: efron or breslow.")] = "efron",
    strata: Annotated[
        str,
        typer.Option(
            help="site: a baseline hazard for each site, no times leave it; or none: one for all sites."
        ),
    ] = "site",
    interval: _Interval = None,
    weights: _Weights = None,
    app: AppFolder = Path(),
    superlink: SuperLink = "",
    min_clients: _MinClients = 3,
    min_rows: _MinRows = 10,
    secure: _Secure = False,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Fit Cox's proportional hazards model; estimates and errors are those of all rows in one table.

    Run this command on the machine of the SuperLink. Owners of clients allow it by client_app(analyses=("cox",)).
    """
    from fedsolve.stats.hazards import CoxRequest

    request = CoxRequest(time, event, terms, ties, None if strata == "none" else strata, interval, weights)
    _analyse("cox", request, (app, superlink, run_config, out), (min_clients, min_rows, secure), as_json)


@federate.command(short_help="Estimate Kaplan-Meier curves of the clients' rows.")
def km(
    time: _Time,
    event: _Event,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of groups to compare (default: none).", show_default=False
        ),
    ] = None,
    strata: Annotated[
        str, typer.Option(help="Of the log-rank test: none, or site: groups are compared within sites.")
    ] = "none",
    interval: _Interval = None,
    app: AppFolder = Path(),
    superlink: SuperLink = "",
    min_clients: _MinClients = 3,
    min_rows: _MinRows = 10,
    secure: _Secure = False,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Estimate survival by Kaplan and Meier, with the log-rank test between groups.

    Run this command on the machine of the SuperLink. Owners allow it by client_app(analyses=("kaplan_meier",)).
    """
    from fedsolve.stats.survival import SurvivalRequest

    stratum = None if strata == "none" else strata
    request = SurvivalRequest(time, event, by, interval, strata=stratum)
    _analyse(
        "kaplan_meier", request, (app, superlink, run_config, out), (min_clients, min_rows, secure), as_json
    )


def _analyse(
    kind: str,
    request: Any,
    where: tuple[Path, str, str, Path | None],
    rules: tuple[int, int, bool],
    as_json: bool,
    ratios: bool = False,
) -> None:
    from fedsolve.cli.federation.jobs import Submitted, analysis_command
    from fedsolve.deploy.analysis_job import request_json

    analysis_command(Submitted(*where), request_json(kind, request), rules, as_json, ratios)
