"""Files for containers beside a new app: an image, a compose file for Docker, manifests for Kubernetes."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping
from string import Template

FOLDER = "containers"
FILES = ("Dockerfile", "compose.yaml", "kubernetes.yaml")
FLOWER = "1.41.0"
"""The Flower of the image: the version that fedsolve is tested with."""

_EACH_CLIENT = re.compile(r"^#### each client\n(.*?)#### end\n", re.DOTALL | re.MULTILINE)
_DATA = {
    "data": ' data="data/site-$client.csv"',
    "compose_data": "      - ${FEDERATION_DATA:-/data}:/federation/data:ro\n",
    "data_mount": "            - {name: data, mountPath: /federation/data, readOnly: true}\n",
    "data_volume": "        - {name: data, hostPath: {path: /data, type: Directory}} # the machine's folder\n",
}
"""What nodes with CSV files have more than others, as lines of the templates."""


def container_files(values: Mapping[str, str], clients: int, csv: bool) -> dict[str, str]:
    """The text of each file by its name.

    Args:
        values: of the app's templates.
        clients: number of nodes.
        csv: whether each node reads a CSV file.
    """
    templates = importlib.resources.files("fedsolve.cli.federation") / "templates"
    given = {**values, "name": values["app"].lower(), "flower": FLOWER}  # compose takes small letters
    return {
        file: _fill((templates / f"{file}.txt").read_text(encoding="utf-8"), given, clients, csv)
        for file in FILES
    }


def _fill(template: str, values: Mapping[str, str], clients: int, csv: bool) -> str:
    """A template with its values; the lines between `#### each client` and `#### end` once for each client."""
    parts = _EACH_CLIENT.split(template)  # every second one is of each client
    for i in range(1, len(parts), 2):
        parts[i] = "".join(
            Template(parts[i]).substitute(values, client=client, **_data(client, csv))
            for client in range(clients)
        )
    parts[::2] = [Template(part).substitute(values) for part in parts[::2]]
    return "".join(parts)


def _data(client: int, csv: bool) -> dict[str, str]:
    return {key: text.replace("$client", str(client)) if csv else "" for key, text in _DATA.items()}
