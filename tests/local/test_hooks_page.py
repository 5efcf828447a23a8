"""What the documentation says of hooks is what hooks have."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from acker.local import Hook


def signature(name: str) -> str:
    """Return a method as the page writes it: without self and what it returns."""
    _, *parameters = inspect.signature(getattr(Hook, name)).parameters.values()
    return f"{name}({', '.join(f'{each.name}: {each.annotation}' for each in parameters)})"


@pytest.mark.repository
def test_the_page_has_each_method_with_its_signature_and_what_it_sees() -> None:
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+\([^`]*component: str[^`]*\))` \| (.+) \|$", page, re.MULTILINE)
    methods = [name for name, value in vars(Hook).items() if inspect.isfunction(value)]
    seen = [inspect.getdoc(getattr(Hook, name)).removeprefix("See ").removesuffix(".") for name in methods]
    assert told == list(zip(map(signature, methods), seen, strict=True))
