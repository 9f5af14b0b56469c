"""What Prometheus can scrape while a run goes on: `GET /metrics` on an address of the server (`fedsolve[monitor]`).

The numbers of rounds are those of the run's own log of rounds (`rounds.jsonl`), since the process began. A scrape reads
what the last round left, in a thread of its own: no round waits for it.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsolve.core import __version__
from fedsolve.core.errors import InvalidInput, require, shown
from fedsolve.deploy.status import PHASES, Cause, ClientStatus, ClientStatuses

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector


_COUNTERS = {
    "rounds": ("Rounds since the server's app began.", "", ("",)),
    "round_seconds": ("Seconds of these rounds.", "", ("",)),
    "orders": ("Training orders that were sent to clients.", "", ("",)),
    "replies": ("Replies that count.", "", ("",)),
    "rejected": (
        "Replies that do not count, and clients without one.",
        "cause",
        tuple(c.value for c in Cause),
    ),
    "bytes": ("Bytes of training messages, up from clients and down to them.", "direction", ("up", "down")),
    "phase_seconds": ("Seconds of these rounds, by what they are spent on.", "phase", PHASES),
}
"""Name -> (text, label, its values); all values are there from the start, and there are no others."""
_HERE = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})")


def check_address(name: str, value: Any) -> str | None:
    """An address as "host:port"; a port alone is one of this machine, and '' is None.

    >>> check_address("metrics_address", 9464)
    '127.0.0.1:9464'
    """
    if value is None or value == "":
        return None
    text = str(value) if type(value) in (str, int) else ""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidInput(
            f"{name} = {shown(value)} is no address: give a port of this machine, such as '9464', or a host and "
            "a port, such as '0.0.0.0:9464'"
        )
    return f"{match['host'] or _HERE}:{match['port']}"


@contextlib.contextmanager
def metrics_server(address: str | None, log: Callable[[str], None]) -> Iterator[Callable[[Collector], None]]:
    """Within it, what collectors collect can be scraped at the address; it yields what adds a collector."""
    if address is None:
        yield lambda collector: None
        return
    require("prometheus_client", f"metrics_address = '{address}' needs", "monitor", "prometheus-client")
    from prometheus_client import CollectorRegistry, start_http_server

    registry, (host, _, port) = CollectorRegistry(), address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise InvalidInput(
            f"metrics_address = '{address}' cannot be listened on ({error.strerror or error}): give another port"
        ) from None
    log(f"metrics: http://{address}/metrics")
    try:
        yield registry.register
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class RunMetrics:
    """A run's numbers, as a collector of Prometheus."""

    def __init__(self, clients: ClientStatuses, label: str, done: int, rounds: int) -> None:
        self._clients, self._label = clients, label
        self._done, self._rounds = done, rounds
        self._totals: Counter[tuple[str, str]] = Counter()
        self._epsilon: float | None = None

    def round(self, entry: Mapping[str, Any]) -> None:
        added = {
            "rounds": 1,
            "round_seconds": entry["seconds"],
            "orders": entry.get("asked", 0),
            "replies": entry["replies"],
        }
        totals = self._totals.copy()
        totals.update({(name, ""): number for name, number in added.items()})
        totals.update({("bytes", way): entry[f"bytes_{way}"] for way in ("up", "down")})
        totals.update({("rejected", cause): number for cause, number in entry.get("causes", {}).items()})
        totals.update({("phase_seconds", phase): s for phase, s in entry.get("phases", {}).items()})
        self._totals = totals  # at once: a scrape before it meets the round before
        self._done, self._epsilon = entry["round"], entry.get("epsilon")

    def collect(self) -> Iterator[Metric]:
        """The numbers of now, as Prometheus' library asks for them."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        totals, clients = self._totals, self._clients.all()
        about = GaugeMetricFamily("fedsolve_run_info", "The run; always 1.", labels=("method", "version"))
        about.add_metric((self._label, __version__), 1)
        yield about
        for name, (text, label, values) in _COUNTERS.items():
            family = CounterMetricFamily(f"fedsolve_{name}", text, labels=(label,) if label else ())
            for value in values:
                family.add_metric((value,) if label else (), totals[name, value])
            yield family
        gauges = {
            "rounds_done": ("Rounds done, those before a resume included.", self._done),
            "rounds_planned": ("Rounds of the run.", self._rounds),
            "clients_connected": ("Clients that are connected.", sum(c.connected for c in clients)),
            "epsilon": ("Epsilon spent so far, at the method's delta.", self._epsilon),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"fedsolve_{name}", text, value=value)
        yield from _client_metrics(clients)


def _client_metrics(clients: Sequence[ClientStatus]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    heard = GaugeMetricFamily(
        "fedsolve_client_last_heard_timestamp_seconds",
        "When a message of the client last came, in seconds since 1970.",
        labels=("client",),
    )
    in_a_row = GaugeMetricFamily(
        "fedsolve_client_consecutive_failures",
        "Replies of the client that do not count since the last one that does.",
        labels=("client",),
    )
    failures = CounterMetricFamily(
        "fedsolve_client_failures", "Replies of the client that do not count.", labels=("client",)
    )
    for status in clients:
        number = (str(status.client),)
        if status.last_heard is not None:
            heard.add_metric(number, status.last_heard)
        in_a_row.add_metric(number, status.consecutive_failures)
        failures.add_metric(number, status.failures)
    yield from (heard, in_a_row, failures)
