"""The sub-commands of `fedsolve federate`; each imports what it needs, and Flower's version is looked at first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.configuration import requests as arg
from fedsolve.cli.federation.new import new
from fedsolve.cli.terminal.console import emit
from fedsolve.cli.terminal.help import App
from fedsolve.core.errors import InvalidInput

federate = App(
    no_args_is_help=True,
    help="Real federations: write an app for Flower, try one on this machine, check certificates and keys.",
)
federate.command(short_help="Write a small Flower app.")(new)


@federate.command(short_help="Train on a real federation on this machine.")
def demo(
    rounds: Annotated[int, typer.Option(help="Rounds of each method; default 4.", show_default=False)] = 4,
    out: arg.Out = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the SuperLink; default a free one.")
    ] = None,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
) -> None:
    """Start a SuperLink and three SuperNodes on this machine, train two methods with PyTorch clients, stop all."""
    from fedsolve.deploy.flower import check_flower

    if rounds < 1:
        raise InvalidInput(f"--rounds {rounds} must be at least 1")
    check_flower()
    from fedsolve.cli.federation.demo import demo_command

    demo_command(rounds, out, port, as_json, watch)


@federate.command(short_help="Check certificates and keys.")
def check(
    ca: Annotated[Path, typer.Option(help="Certificate of the authority.")],
    certificate: Annotated[Path | None, typer.Option(help="The server's certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="The server's private key.")] = None,
    node_key: Annotated[
        list[Path] | None, typer.Option(help="A node's private key; may be repeated.")
    ] = None,
) -> None:
    """Say in one line what is wrong with the files of a secure federation: missing, readable by others, no match."""
    from fedsolve.deploy.flower import check_flower

    check_flower()
    from fedsolve.cli.federation.credentials import check_credentials

    check_credentials(ca, certificate, key, node_key or [])
    emit("certificates and keys are fine")
