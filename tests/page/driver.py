"""The Generate tab as a user sees it."""

import re
import time
import urllib.parse

from playwright.sync_api import Page


class GeneratePage:
    def __init__(self, tab: Page) -> None:
        self.tab = tab
        self.faults: list[str] = []
        tab.on("pageerror", lambda error: self.faults.append(str(error)))
        tab.on("console", lambda message: message.type == "error" and self.faults.append(message.text))

    def fill(self, **fields: object) -> None:
        """Type into fields by their ids, and leave the last one."""
        for name, value in fields.items():
            self.tab.locator(f"#{name} textarea, #{name} input").first.fill(str(value))
        self.tab.keyboard.press("Tab")

    def value(self, name: str) -> str:
        return self.tab.locator(f"#{name} textarea, #{name} input").first.input_value()

    def generate(self, **fields: object) -> None:
        if fields:
            self.fill(**fields)
        self.tab.click("#generate")

    @property
    def state(self) -> str:
        """The verdict's state."""
        mark = self.tab.locator("#verdict .verdict")
        return mark.get_attribute("data-state") or "" if mark.count() else ""

    @property
    def verdict(self) -> str:
        return self.tab.inner_text("#verdict")

    @property
    def panel(self) -> str:
        return re.sub(r"\s+", " ", self.tab.inner_text("#panel .status")).strip()

    def wait_for_verdict(self, *states: str, seconds: float = 20) -> str:
        """Until the verdict has come, or is one of `states`."""
        return self._wait(lambda: self.state if (self.state in states if states else self.state) else "", seconds)

    def wait_for_panel(self, *words: str, seconds: float = 60) -> str:
        """Until the panel begins with one of `words`."""
        return self._wait(lambda: self.panel if self.panel.startswith(words) else "", seconds)

    def wait_for_end(self, seconds: float = 90) -> str:
        """Until a job that was just started has ended; all that the panel said on the way, one a line."""
        seen: list[str] = []

        def ended() -> str:
            if not seen or seen[-1] != self.panel:
                seen.append(self.panel)
            return "\n".join(seen) if len(seen) > 1 and seen[-1].startswith(("Done", "Failed", "Cancelled")) else ""

        return self._wait(ended, seconds)

    def shown_seed(self) -> str:
        """The seed under the picture that is shown."""
        return re.search(r"seed (\d+)", self.tab.inner_text("#gallery"))[1]

    def picture_url(self) -> str:
        return self.tab.locator("#gallery img").first.get_attribute("src")

    def picture_path(self) -> str:
        """The path on the server that the picture's address holds."""
        return urllib.parse.unquote(self.picture_url().split("file=", 1)[1])

    def _wait(self, found, seconds: float) -> str:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if word := found():
                return word
            time.sleep(0.1)
        raise AssertionError(f"panel: {self.panel!r}, verdict: {self.state} {self.verdict!r}")
