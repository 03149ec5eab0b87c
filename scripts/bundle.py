"""Make `vega.js`, the chart runtime that every report carries: `python scripts/bundle.py`.

The bundle comes from vl-convert, offline; `vega.LICENSES.txt` beside it holds the licences of what is inside.
A page needs no `eval`: charts are run by Vega's expression interpreter, which the bundle contains.
"""

import re
from pathlib import Path

from outlierlens.errors import need
from outlierlens.results.safe_files import write_text

RUNTIME = Path(__file__).parents[1] / "src/outlierlens/view/html/vega.js"


def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed that sets `window.vegaEmbed`, safe inside a script element."""
    convert = need("vl_convert", "charts", "making the chart runtime")
    code = convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    versions = f"Vega {convert.get_vega_version()}, Vega-Embed {convert.get_vega_embed_version()}"
    header = (
        f"/* {versions} and Vega-Lite {convert.get_vegalite_versions()[-1]}, bundled by vl-convert "
        f"{convert.__version__}. BSD-3-Clause, ISC and MIT: see vega.LICENSES.txt of outlierlens. */\n"
    )
    # A function keeps the bundle's many top-level names out of the page.
    return header + "(() => {\n" + defuse(code) + "\n})();\n"


def defuse(code: str) -> str:
    """`code` with what would end or confuse a script element written as an escape, which strings and patterns read alike."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3C", code, flags=re.IGNORECASE)


if __name__ == "__main__":
    print(write_text(RUNTIME, bundle()))
