"""Every public name says what it is, what its arguments are, what it gives and what it refuses: `fs` and its spaces."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap

import pytest

import fedsolve as fs
from fedsolve.config.signatures import arguments_of

SPACES = (
    "attacks baselines callbacks catalogue client data diagnostics flower frank_wolfe geometry privacy robust sampling "
    "schedules server stats systems tasks trackers wire"
)


def public():
    found = {f"fs.{n}": getattr(fs, n) for n in dir(fs) if not n.startswith("_")}
    for space in SPACES.split():
        module = getattr(fs, space)
        own = [n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
        found |= {f"fs.{space}.{n}": getattr(module, n) for n in names}
    return {
        n: x
        for n, x in found.items()
        if callable(x)
        and getattr(x, "__module__", "").startswith("fedsolve")
        and not hasattr(x, "__origin__")
    }


PUBLIC = public()


def own_methods():
    """Public methods where they are named first: what overrides one keeps to what is said there.

    A model's `init` and call (key -> parameters; parameters, inputs -> outputs) are told once, in `fs.tasks`.
    """
    found = {}
    for thing in PUBLIC.values():
        for name, held in vars(thing).items() if inspect.isclass(thing) else ():
            method = getattr(held, "__func__", held)
            named_before = any(name in vars(base) for base in thing.__mro__[1:])
            is_public = name == "__call__" or not name.startswith("_")
            of_model = thing.__module__.startswith("fedsolve.tasks.") and name in ("init", "__call__")
            ours = inspect.isfunction(method) and method.__module__ == thing.__module__
            if ours and is_public and not named_before and not of_model and method.__name__ != "<lambda>":
                found[f"{thing.__name__}.{name}"] = method
    return found


METHODS = own_methods()


def section(text, *heads):
    """The lines below one of some heads, indented, up to what is not."""
    found = re.search(rf"^(?:{'|'.join(heads)}):\n((?:[ ].*\n?|\n)+)", text, re.MULTILINE)
    return found[1] if found else ""


def is_made_by_users(thing):
    """Whether its arguments are its own: what is abstract is subclassed, what is raised is not built."""
    return not (inspect.isclass(thing) and (issubclass(thing, Exception) or inspect.isabstract(thing)))


def silent(thing):
    """The arguments that no section names."""
    said = section(inspect.getdoc(thing) or "", "Args", "Attributes")
    return [n for n in arguments_of(thing) if n not in ("self", "cls") and not re.search(rf"\b{n}\b", said)]


def gives(thing):
    """Whether a function returns something, as its annotation has it."""
    return inspect.isroutine(thing) and inspect.signature(thing).return_annotation not in (None, "None")


def refuses(thing):
    """Whether building or calling it raises `InvalidInput` in its own lines, or checks a number or a field there."""
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    if any("check" in f.metadata and f.name in vars(thing).get("__annotations__", {}) for f in fields):
        return True
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    inside = tree.body if isinstance(tree, ast.ClassDef) else [tree]
    starts = ("__init__", "__post_init__", getattr(thing, "__name__", ""))
    lines = [n for f in inside if isinstance(f, ast.FunctionDef) and f.name in starts for n in ast.walk(f)]
    raised = [n.exc.func for n in lines if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call)]
    called = [n.func for n in lines if isinstance(n, ast.Call)]
    return any(called_as(f) in ("InvalidInput", "unknown") for f in raised) or any(
        called_as(f).startswith("check_") for f in called
    )


def called_as(function):
    """The last word of a name."""
    return getattr(function, "id", getattr(function, "attr", ""))


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_is_what_it_takes_and_what_it_refuses(name):
    thing = PUBLIC[name]
    text = inspect.getdoc(thing) or ""
    assert len(text.split()) >= 4
    if is_made_by_users(thing):
        assert silent(thing) == []
        assert section(text, "Returns") or not gives(thing)
        assert section(text, "Raises") or not refuses(thing)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_does_too(name):
    text = inspect.getdoc(METHODS[name]) or ""
    assert silent(METHODS[name]) == []
    assert section(text, "Returns") or not gives(METHODS[name])
    assert section(text, "Raises") or not refuses(METHODS[name])


PRONOUN = re.compile(r"(As|How|No|Of|Refused|Such|Those|What|Where|Who|Whom|Whose|Yes)\b")


def begins_plainly(text):
    """Whether a summary begins with a verb or a noun, and has more than a word."""
    return PRONOUN.match(text) is None and len(text.partition("\n")[0].split()) > 1


def test_first_sentences_have_a_subject_or_a_verb():
    """`Return the model.` and `The model of a client.`, not `What a client sends.` or `v_i.`."""
    named = {n: inspect.getdoc(x) or "" for n, x in (PUBLIC | METHODS).items()}
    assert [n for n, text in named.items() if not begins_plainly(text)] == []
    assert not any(
        map(begins_plainly, ("What a client sends.", "Who takes part in a round.", "v_i.\n\nArgs:"))
    )


def test_a_silence_is_found():
    """An argument that only the summary names, a result and a refusal that no section tells."""

    def silent_one(rate) -> float:
        """Steps of a rate."""
        if rate < 0:
            raise fs.InvalidInput("negative")
        return rate

    def telling(rate) -> None:
        """Steps.

        Args:
            rate: at least 0.

        Raises:
            InvalidInput: a negative rate.
        """

    assert silent(silent_one) == ["rate"]
    assert refuses(silent_one)
    assert gives(silent_one)
    assert not gives(telling)
    assert silent(telling) == []
    assert section(inspect.getdoc(telling), "Raises").strip() == "InvalidInput: a negative rate."
