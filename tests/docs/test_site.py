"""The documentation site: each method and public name has a page, no link leads nowhere, nothing is fetched."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedsolve
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))


@pytest.mark.full
def test_pages_are_assembled(tools, tmp_path, monkeypatch):
    import assemble
    import formulas

    assert doctest.testmod(formulas).failed == doctest.testmod(assemble).failed == 0
    monkeypatch.setattr(assemble, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(assemble, "notebook", lambda name, page="": f"{page or name}.ipynb")  # not executed
    assemble.assemble()
    pages = {path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*.md")}
    assert {f"methods/{name}.md" for name in ALGORITHMS} <= pages
    guides = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert guides <= pages
    texts = {name: (tmp_path / "pages" / name).read_text(encoding="utf-8") for name in guides}
    assert not [name for name, text in texts.items() if "../experiments" in text]  # no page that Sphinx knows
    reference = "".join(
        (tmp_path / "pages" / name).read_text() for name in pages if name.startswith("reference/")
    )
    named = set(re.findall(r":: fedsolve\.([\w.]+)", reference))
    homes = {home.replace(":", ".").strip(".") for home in fedsolve._homes().values()}
    methods = {entry.home.replace(":", ".") for entry in ALGORITHMS.values()}
    wrappers = {entry.wrapper.replace(":", ".") for entry in ALGORITHMS.values()}
    assert named == homes - methods - wrappers
    toctree = (tmp_path / "pages" / "index.md").read_text()
    assert all(name in toctree for name in pages - {"index.md"})
    tutorials = {path.stem for path in (ROOT / "docs" / "tutorials").glob("*.py")}
    assert tutorials == {name for name in tutorials if f"tutorials/{name}.ipynb" in toctree}
    assert "gallery.ipynb" in toctree


def formulas_of(thing):
    """What stands as a formula in the docstring of a name, before its sections."""
    import formulas

    return re.findall(
        r"^\.\. math::\n\n    (.*)$", formulas.with_formulas(inspect.getdoc(thing) or ""), re.MULTILINE
    )


@pytest.mark.parametrize("name", ALGORITHMS | WRAPPERS)
def test_each_method_has_an_update_that_is_typeset(tools, name):
    """Each formula of its docstring becomes LaTeX, and that MathML in which no name is left as it was typed."""
    maths = pytest.importorskip("docutils.utils.math.latex2mathml")
    entry = (ALGORITHMS | WRAPPERS)[name]
    found = formulas_of(entry.build)
    assert found
    for text in found:
        shown = re.sub(r"<mtext>.*?</mtext>", "", maths.tex2mathml(text, as_block=True))
        words = re.sub(r"<[^>]*>|&\w+;", " ", shown).split()
        assert "←" in words
        typed = [w for w in words if w.isascii() and w.isalpha() and len(w) > 1]
        assert set(typed) <= OPERATORS


OPERATORS = {"mean", "max", "min", "argmin", "exp", "sign", "diag", "clip", "prox"}


def test_a_formula_is_what_it_says(tools):
    from latex import latex, statement

    assert doctest.testmod(sys.modules["latex"]).failed == 0
    assert statement("xhat_i <- 2 x_i - y_i") == r"{\hat{x}}_{i} \leftarrow 2 x_{i} - y_{i}"
    assert statement("grad(h + e psi)*(z)") == r"\nabla (h + e \psi)^{*} (z)"
    assert statement("argmin over D of <g, s>") == (
        r"\operatorname{argmin}_{\mathcal{D}}\, \langle g ,\; s\rangle "
    )
    assert statement("(f - 1) / (eta |D|^2 + eps)") == (
        r"\frac{f - 1}{\eta \lVert D \rVert^{2} + \varepsilon}"
    )
    assert latex("client:  y <- a;  b\n   c").count(r"\\") == 2
    with pytest.raises(ValueError, match="not closed"):
        statement("(a + b")


BLOCKS = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!\\)\$([^$\n]+)\$")


def test_formulas_of_pages_are_read_by_both_who_show_them():
    """Each becomes MathML here; GitHub refuses `operatorname` and may drop a backslash before a sign in a line."""
    maths = pytest.importorskip("docutils.utils.math.latex2mathml")
    blocks, inline = [], []
    for path in (ROOT / "docs").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        blocks += BLOCKS.findall(text)
        prose = re.sub(r"^```.*?^```$|^ {4}.*$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
        inline += INLINE.findall(prose)
        assert prose.count("$") == 2 * len(INLINE.findall(prose)), path
    assert len(blocks) >= 4
    assert len(inline) >= 80
    assert all(maths.tex2mathml(found, as_block=True) for found in blocks)
    assert all(maths.tex2mathml(found) for found in inline)
    assert not [found for found in blocks + inline if "operatorname" in found]
    assert not [found for found in inline if re.search(r"\\[^A-Za-z]", found) or found != found.strip()]


def test_symbols_in_prose_are_typeset_and_names_are_not(tools):
    from formulas import with_formulas

    shown = with_formulas("Up: c_i+ - c_i, |D|^2.\n\nArgs:\n    b_c: eta_l of `x_i`, eps_g, |S| of a_ij.")
    assert shown == (
        r"Up: :math:`c_{i}^{+}` - :math:`c_{i}`, :math:`\lVert D \rVert^{2}`."
        "\n\nArgs:\n"
        r"    b_c: :math:`\eta_{\ell}` of `x_i`, eps_g, \|S\| of a_ij."
    )


def test_the_one_diagram_is_shown_as_its_picture(tools):
    """Only the graph of packages, which `make generate` draws, has a picture."""
    from diagrams import BLOCK, PICTURE, as_pictures

    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    assert [name for name, page in pages.items() for _ in BLOCK.findall(page)] == ["architecture.md"]
    assert (ROOT / "docs" / PICTURE).is_file()
    shown = as_pictures(pages["architecture.md"])
    assert "```mermaid" not in shown
    assert f"]({PICTURE})" in shown


class Links(HTMLParser):
    """What a page refers to: what is fetched to read it, and where it leads."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.led = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") == "stylesheet":
            self.fetched.append(given["href"])
        if tag == "a" and "href" in given:
            self.led.append(given["href"])


@pytest.mark.full
def test_the_site_is_built_and_whole(tmp_path):
    pytest.importorskip("myst_nb")
    subprocess.run([sys.executable, "tools/site/assemble.py"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "tools/site", "site/pages", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for path in tmp_path.rglob("*.html"):
        if "_static" in path.parts:
            continue
        links = Links(path.read_text(encoding="utf-8"))
        assert not [url for url in links.fetched if url.startswith(("http", "//"))], path
        for url in links.led:
            place = url.split("#")[0].split("?")[0]
            if place and not place.startswith(("http", "mailto")):
                assert (path.parent / place).exists(), f"{path.name}: {url}"
    assert (tmp_path / "searchindex.js").is_file()
