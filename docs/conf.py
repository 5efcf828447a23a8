"""The Sphinx configuration of the site, which is made from the Markdown pages.

The pages are also read on a code host, so only the API reference holds markup of Sphinx. This file makes the rest:
tables of contents from the lists of links on the overview pages, pages from the documents of the root folder, and
drawings as parts of the pages, so that they follow the theme.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata

import acker

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent

project = "acker"
author = "the acker authors"
project_copyright = "the acker authors"
release = acker.__version__
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["tools"]
nitpicky = True
default_role = "code"  # `name` in docstrings

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"acker {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

myst_heading_anchors = 4
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_param = False  # types are prose, "(n,) int64", and no names to link
napoleon_use_rtype = False
napoleon_use_ivar = True

# Names of other libraries, of the standard one, and of what is not public: there is no page of ours to lead to.
NOT_PUBLIC: Final = (
    "connectors.consumer._Options",
    "connectors.handles.MessageTree",
    "connectors.handles.T",
    "connectors.handles.Value",
    "connectors.letters.Where",
    "local.clock.Signal",
    "local.lifecycle.Lifecycle",
    "local.executors.base.Executor",
    "local.until.Until",
    "observe.metric_names.HasMetrics",
    "remote.replies.Inbox",
    "remote.replies.RemoteTree",
    "remote.wire.Token",
    "topology.arrow_windows.Chunk",
    "topology.joins.JoinStep",
    "topology.tuples.TupleSource",
    "topology.windows.WindowEntry",
    "spark.pipelines.stages.Step",
    "spark.pipelines.tracked.AnyPipeline",
    "spark.streams.listener.StreamMetric",
    "testing.connectors.broker.Claim",
)
nitpick_ignore_regex = [
    (r"py:.*", r"(?!acker\.).*"),
    (r"py:.*", r"acker\._engine\..*"),
    *(("py:class", re.escape(f"acker.{name}")) for name in NOT_PUBLIC),
]
# Two classes are called Report, each in a package of its own: an annotation that says so leads to one of them.
suppress_warnings = ["ref.python"]

# Documents of other folders that are pages of the site, by the page that stands for each.
ROOT_PAGES: Final = {
    "architecture": "ARCHITECTURE.md",
    "benchmarking": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "engine": "ext/README.md",
}
# Pages whose lists of links are the table of contents.
OVERVIEWS: Final = ("index", "api")

LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?P<after>#[^)]*)?\)")
ITEM: Final = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<page>[^):]+)\.md\)")


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Change the Markdown of a page on its way to the parser."""
    page = DOCS / f"{docname}.md"
    if docname in ROOT_PAGES:
        page = ROOT / ROOT_PAGES[docname]
        app.env.note_dependency(str(page))
        source[0] = page.read_text(encoding="utf-8")
    source[0] = _links(source[0], page.parent, (DOCS / docname).parent)
    if docname == "index":
        source[0] = _first_page(app, source[0])
    if docname in OVERVIEWS:
        source[0] += _contents(source[0])


def _first_page(app: Sphinx, lists: str) -> str:
    """Return README.md up to its own list of pages, and the lists of index.md below it."""
    readme = ROOT / "README.md"
    app.env.note_dependency(str(readme))
    begin, found, _ = readme.read_text(encoding="utf-8").partition("\n## Where to go\n")
    _, has_lists, rest = lists.partition("\n## ")
    if not (found and has_lists):
        raise ValueError("README.md has no '## Where to go', or index.md no list of pages")
    return f"{_links(begin, ROOT, DOCS)}\n## {rest}"


def _links(text: str, written_in: Path, shown_in: Path) -> str:
    """Lead links to the pages of the site, from the folder in which the page is shown."""

    def lead(match: re.Match[str]) -> str:
        target = (written_in / match["target"]).resolve()
        for docname, name in ROOT_PAGES.items():
            if target == ROOT / name:
                target = DOCS / f"{docname}.md"
        if target == ROOT / "README.md":
            target = DOCS / "index.md"
        if not target.exists():
            return match[0]  # Sphinx says that it leads nowhere
        # Other Markdown is no page: it is handed out as a file.
        scheme = "path:" if target.suffix == ".md" and not target.is_relative_to(DOCS) else ""
        return f"{match['before']}{scheme}{os.path.relpath(target, shown_in)}{match['after'] or ''})"

    return LINK.sub(lead, text)


def _contents(text: str) -> str:
    """Return hidden tables of contents, one for each heading with a list of pages below it."""
    caption = ""
    pages: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            caption = line.removeprefix("## ").strip()
        elif item := ITEM.match(line):
            pages.setdefault(caption, []).append(f"{item['title']} <{item['page']}>")
    parts = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *listed, "```"])
        for caption, listed in pages.items()
    ]
    return "\n\n" + "\n\n".join(parts) + "\n"


class Drawings(SphinxPostTransform):
    """Puts the SVG drawings into the page, so that they follow its theme and not that of the system."""

    default_priority = 5  # before the images are gathered as files
    formats = ("html",)

    def run(self) -> None:
        """Replace each image that is a drawing of ours by what the file holds."""
        for image in list(self.document.findall(nodes.image)):
            path = DOCS / image["uri"]
            drawing = path.read_text(encoding="utf-8") if path.suffix == ".svg" and path.is_file() else ""
            if "acker-drawing" in drawing:
                image.replace_self(nodes.raw("", f'<div class="drawing">{drawing}</div>', format="html"))


def skip_member(_app: Sphinx, _what: str, _name: str, member: object, skip: bool, _options: object) -> bool:
    """Leave out the fields of named tuples, which their class describes; Python says where they stand, and no more."""
    return skip or (getattr(member, "__doc__", None) or "").startswith("Alias for field number")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register what this file adds."""
    app.connect("source-read", read_source)
    app.connect("autodoc-skip-member", skip_member)
    app.add_post_transform(Drawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
