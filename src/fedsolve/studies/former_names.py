"""Finished parts that were kept before methods, fields and options were renamed are found under their former names."""

from __future__ import annotations

from functools import cache


def former_keys(name: str, settings: str) -> list[tuple[str, str]]:
    """The names and settings, as text, under which a part may have been kept earlier; none if no word was renamed.

    Args:
        name: the part's name.
        settings: its settings as JSON, the name among them.
    """
    keys = []
    for plus in ("+", "-"):  # experiments that keep letters and digits alone in a name wrote FedFW+ as FedFW-
        former_name = _in_former_words(name).replace("+", plus)
        former = _in_former_words(settings).replace(
            f'"part": "{_in_former_words(name)}"', f'"part": "{former_name}"'
        )
        if (former_name, former) != (name, settings) and (former_name, former) not in keys:
            keys.append((former_name, former))
    return keys


def _in_former_words(text: str) -> str:
    for now, former in _words().items():
        text = text.replace(now, former)
    return text


@cache
def _words() -> dict[str, str]:
    """Words that stand in what identifies a part, each with its former one."""
    from fedsolve.catalogue import ALGORITHMS

    methods = {name: former for name, entry in ALGORITHMS.items() for former in entry.former}
    cifar = {"cifar10": "cifar", ", 'model': 'softmax', 'augment': False}": "}"}
    return methods | cifar | {"server_optimizer=": "rule=", "parallel_trials": "lanes"}
