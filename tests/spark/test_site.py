"""The site builds without a warning, asks nobody else for anything, and its reference has every public name.

Here and not a level up, since the reference of acker.spark is made where pyspark is.
"""

import importlib
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from types import FunctionType, ModuleType

import pytest

from blocks import ROOT

PUBLIC = ("acker", "acker.offsets", "acker.topology", "acker.local", "acker.spark", "acker.testing")

pytestmark = [pytest.mark.repository, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html", "--doctree-dir", folder / "trees"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", folder / "html"]
    # A proxy that is not there: what asks for a network fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


class Loaded(HTMLParser):
    """What a browser loads with a page, and where the page's links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded, self.links, self.alternatives = [], [], []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video") and named.get("src"):
            self.loaded.append(named["src"])
        if tag == "link" and named.get("rel") != "canonical":
            self.loaded.append(named["href"])
        if tag == "a":
            self.links.append(named.get("href", ""))
        if tag == "img":
            self.alternatives.append(named.get("alt", ""))


def read(page):
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_every_page_is_there_and_in_the_contents(site):
    sources = sorted((ROOT / "docs").glob("**/*.md"))
    assert len(sources) > 15
    contents = {link.partition("#")[0] for link in read(site / "index.html").links} | {"index.html", ""}
    for source in sources:
        page = source.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / page).is_file()
        assert str(page) in contents, f"{page} is in no list of docs/index.md or docs/api.md"


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.glob("**/*.html"))
    seen = 0
    for page in pages:
        for address in read(page).loaded:
            seen += 1
            assert not re.match(r"(?:[a-z]+:)?//", address), f"{page.name}: {address}"
    assert len(pages) > 20
    assert seen > 100
    for sheet in site.glob("_static/**/*.css"):
        found = re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import[^;]*", sheet.read_text(encoding="utf-8"))
        assert not found, f"{sheet.name}: {found}"


def test_the_reference_has_every_public_name(site):
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)  # four lines that say what it is
    known = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}
    seen = 0
    for module in PUBLIC:
        package = importlib.import_module(module)
        made = {name: thing for name, thing in vars(package).items() if isinstance(thing, (type, FunctionType))}
        own = [name for name, thing in made.items() if thing.__module__ == module]
        for name in getattr(package, "__all__", own):
            if name.endswith("_SCHEMA") or name.startswith("_"):
                continue  # schemas are columns, which the page describes in a sentence
            thing = getattr(package, name)
            if isinstance(thing, ModuleType):
                continue  # streamparse's names of modules, whose classes have pages of their own
            seen += 1
            assert {f"{module}.{name}", f"{thing.__module__}.{name}"} & known, f"{module}.{name}"
    assert seen > 60


def test_pictures_have_a_text_alternative(site):
    drawings = 0
    for page in site.glob("**/*.html"):
        assert all(read(page).alternatives), page.name
        drawings += len(
            re.findall(r"<svg[^>]*class='acker-drawing'[^>]*>\s*<title>[^<]{20,}</title>", page.read_text())
        )
    assert drawings >= 5
