"""The documentation site as Sphinx builds it from the pages of `assemble.py`; reading it fetches nothing."""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

from docutils.nodes import SkipNode, Text  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402
from formulas import with_formulas  # noqa: E402 (beside this file)
from sphinx.addnodes import desc_addname, desc_signature  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402

import fedsolve  # noqa: E402

project, release = "fedsolve", fedsolve.__version__
html_title = f"fedsolve {release}"
html_theme = "furo"
html_extra_path = [str(ROOT / "site" / "extra")]
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_theme_options = {"source_repository": ""}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_math_renderer = "mathml"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"  # they come executed
nb_merge_streams = True
myst_heading_anchors = 3
myst_enable_extensions = ["html_image", "dollarmath"]
myst_fence_as_directive = {"math"}  # as GitHub has formulas that stand alone
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# as they are called, and not as Any, which they are
autodoc_type_aliases = {name: name for name in ("Batch", "Params", "Rate", "Scalar")}
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
napoleon_attr_annotations = False
default_role = "code"  # a name in backquotes
suppress_warnings = [
    "myst.header",
    "ref.python",
    "misc.highlighting_failure",
]  # names that stand in two places


def _public_names():
    """(module, name) of each public class and function -> what a user writes before its name, such as `fs.server.`."""
    names = {}
    for name, home in fedsolve._homes().items():
        module, _, inside = home.partition(":")
        if inside:
            names[f"fedsolve.{module}", inside] = "fs."
            continue
        space = importlib.import_module(f"fedsolve.{module}")
        for member in getattr(space, "__all__", ()):
            names[f"fedsolve.{module}", member] = f"fs.{name}."
    return names


def _as_users_write(app, tree):
    """Signatures say `fs.FedAdam`, not where the class is defined."""
    names = _public_names()
    for signature in tree.findall(desc_signature):
        module, full = signature.get("module"), signature.get("fullname", "")
        prefix = names.get((module, full.partition(".")[0]))
        for node in signature.findall(desc_addname):
            inner = full.rpartition(".")[0]
            node.children = [Text("" if prefix is None else prefix + (f"{inner}." if inner else ""))]


def _types(app, what, name, obj, options, signature, returned):
    """Aliases of types by their names: Sphinx writes them as the object that stands for one."""
    plain = [
        part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) for part in (signature, returned)
    ]
    return tuple(plain)


def _formulas(app, what, name, obj, options, lines):
    lines[:] = with_formulas("\n".join(lines)).splitlines()


def _inline(self, node):
    self.body.append(tex2mathml(node.astext()))
    raise SkipNode


def _block(self, node):
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app):
    """Formulas are MathML, which a browser shows by itself; those of docstrings are found before napoleon reads on."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _formulas, priority=100)
    app.connect("autodoc-process-signature", _types)
    app.connect("doctree-read", _as_users_write)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # Sphinx: Variables
