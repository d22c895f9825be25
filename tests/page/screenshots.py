"""Pictures of the page for the README: python -m tests.page.screenshots [FOLDER]"""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.page.driver import GeneratePage
from tests.page.server import CHROMIUM_ARGUMENTS, ROOT, Server, chromium_path, make_tiny_model

_PROMPT = "a large red square on a white background"
_VIEWS = {
    "desktop-light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "desktop-dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "is_mobile": True, "has_touch": True},
}


def main(folder: Path) -> None:
    """Start the app with the demo model (or a tiny random one where it is absent), use it, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        has_demo = (ROOT / "assets" / "demo" / "model_index.json").exists()
        model = "demo" if has_demo else str(make_tiny_model(Path(work)))
        server = Server(Path(work) / "cache", "--device", "tpu-emulated", "--model", model)
        try:
            server.wait_until_ready()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_ARGUMENTS))
                for name, view in _VIEWS.items():
                    _take(browser, server, view, folder / f"{name}.png")
        finally:
            server.stop()


def _take(browser: Browser, server: Server, view: dict, path: Path) -> None:
    """A warm size with its picture; then a cold size is chosen, for its verdict and the nearest warm size."""
    context = browser.new_context(locale="en-US", **view)
    tab = context.new_page()
    page = GeneratePage(tab)
    tab.goto(server.url)
    page.wait_for_verdict()
    page.generate(prompt=_PROMPT, seed=7)
    page.wait_for_end(seconds=600)
    if "dark" in path.name:
        tab.get_by_role("tab", name="Warm-up").click()
        tab.locator("#known-shapes td").first.wait_for()
        tab.wait_for_timeout(800)
    elif not view.get("is_mobile"):
        tab.locator("#sizes label", has_text="4:3").click()
        page.wait_for_verdict("cold")
    tab.wait_for_timeout(1500)
    tab.evaluate("window.scrollTo(0, 0)")
    tab.mouse.move(0, 0)
    # The wide light one to its end: the last settings are below the fold.
    tab.screenshot(path=path, full_page=path.stem == "desktop-light")
    context.close()
    with Image.open(path) as picture:  # 256 colours: a third of the size, and no difference to be seen in a README
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "assets" / "screenshots")
