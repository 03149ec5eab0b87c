"""Formulas as MathML, which browsers draw themselves.

Sphinx's own ways need a script from a CDN or a LaTeX installation; docutils has a converter, and this hands formulas to it.
"""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

log = logging.getLogger(__name__)


def mathml(node: nodes.Node, *, block: bool) -> str:
    """The formula of a node as MathML; a formula that is none is a warning, which a strict build stops at."""
    try:
        return tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        log.warning("formula %r: %s", node.astext(), error, location=node)
        return ""


def inline(self: HTML5Translator, node: nodes.Node) -> None:
    self.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def displayed(self: HTML5Translator, node: nodes.Node) -> None:
    self.body.append(f'<div class="formula">{mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
