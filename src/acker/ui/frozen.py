"""Frozen pages: the live page with one reading, as one HTML file that needs no server and asks no host."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_STATIC: Final = Path(__file__).parent / "static"
# The modules that a frozen page imports, by the names that they use for each other.
_MODULES: Final = (
    "charts.js",
    "format.js",
    "frozen.js",
    "graph.js",
    "histograms.js",
    "layout.js",
    "lists.js",
    "show.js",
    "vendor/dagre.esm.js",
)
# And those that it needs only if stacks were sampled.
_FLAME_MODULES: Final = ("flame.js", "vendor/d3-flame-graph.esm.js")
_STYLES: Final = ("vendor/uPlot.min.css", "page.css")
_START: Final = 'import "acker/frozen.js";'
_NEEDED: Final = "<noscript><p>This page needs JavaScript.</p></noscript>"

_LIVE_ONLY: Final = re.compile(r"<!-- live -->.*?<!-- /live -->", re.DOTALL)
_BODY: Final = re.compile(r"<body>\n(.*)</body>", re.DOTALL)

_DOCUMENT: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
{styles}
<script type="importmap">{imports}</script>
</head>
<!-- This file contains libraries:

{licence}
-->
<body>
{body}{needed}
<script type="application/json" id="data">{data}</script>
<script>{charts}</script>
<script type="module">{start}</script>
</body>
</html>
"""


def freeze(view: Mapping[str, Any], history: Mapping[str, Any] | None = None) -> str:
    """Return a page that shows one reading for ever.

    Browsers import nothing from a file beside a file, so the modules of the page are data URLs in an import map.

    Parameters
    ----------
    view : mapping
        A reading, as of `LiveSource.view`; with `about`, a sentence beside the time. What it offers to do is left out.
        Without `at_ms` it is of this moment.
    history : mapping, optional
        The charts, as of `Feed.history`. Without it there are none.
    """
    shown = {"at_ms": time.time_ns() // 1_000_000, **view, "actions": []}
    if history is None:
        shown["charts"] = []
    styles = [_read(name) for name in _STYLES]
    modules = (*_MODULES, *(_FLAME_MODULES if (view.get("flames") or {}).get("taken") else ()))
    imports = json.dumps({"imports": {f"acker/{name}": _module(name) for name in modules}})
    charts = _read("vendor/uPlot.iife.min.js")
    scripts = " ".join(map(_hash, (imports, charts, _START)))
    body = _BODY.search(_LIVE_ONLY.sub("", _read("index.html")))
    assert body is not None
    return _DOCUMENT.format(
        policy=(
            f"default-src 'none'; script-src data: {scripts}; style-src {' '.join(map(_hash, styles))}; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=html.escape(f"{view['name']} \N{MIDDLE DOT} acker"),
        styles="\n".join(f"<style>{style}</style>" for style in styles),
        imports=imports,
        licence=_read("vendor/LICENCE.txt").strip(),
        body=body[1],
        needed=_NEEDED,
        data=_script_json({"view": shown, "history": history}),
        charts=charts,
        start=_START,
    )


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _module(name: str) -> str:
    """Return a module as a URL; what it imports stands in the import map."""
    text = re.sub(r'(from |import\()"\./', r'\1"acker/', _read(name))
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _script_json(value: object) -> str:
    """Return JSON for the inside of a script element: without the characters that begin tags and comments."""
    text = json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
