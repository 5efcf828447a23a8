"""Chromium without a window, which tests of pages drive through its port."""

import contextlib
import os
import urllib.request
from pathlib import Path
from typing import ClassVar

from brokers.packages import Packages, library_path
from brokers.server import Server

# For a machine without settings of fonts: the fonts that were unpacked.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir></fontconfig>
"""


class Chromium(Server):
    """A browser; its URL is that of the DevTools protocol."""

    # The build without windows takes a third of the processor time of the whole browser.
    origin: ClassVar[Packages] = Packages(
        "chromium",
        "chromium-headless-shell",
        ("chromium", "fontconfig-config", "fonts-dejavu"),
        "usr/lib/chromium/chromium-headless-shell",
    )

    @property
    def url(self) -> str:
        """For `connect_over_cdp` of playwright."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def prepare(self) -> None:
        """Let it find its libraries and a font."""
        self.environ |= library_path(self.root)
        if self.root != Path("/"):
            settings = self.folder / "fonts.conf"
            settings.write_text(FONTS.format(root=self.root, folder=self.folder))
            self.environ["FONTCONFIG_FILE"] = os.fspath(settings)

    def command(self) -> list[Path | str]:
        """Return the program with its settings."""
        return [
            self.root / "usr/lib/chromium/chromium-headless-shell",
            "--no-sandbox",  # which needs rights that containers do not give; it loads the tests' own pages alone
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--no-default-browser-check",
            "--force-device-scale-factor=1",
            "--hide-scrollbars",
            f"--remote-debugging-port={self.ports[0]}",
            f"--user-data-dir={self.folder / 'profile'}",
            "about:blank",
        ]

    def answers(self) -> bool:
        """Ask for its version."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/json/version", timeout=5) as answer:
            return bool(answer.status == 200)
        return False
