"""No English is left on the Portuguese page: what both languages show alike has to be a name."""

import re

import pytest
from playwright.sync_api import Browser

from tests.page.conftest import open_page
from tests.page.server import Server

TABS = {
    "en-US": ("Generate", "Warm-up", "History", "PNG", "System"),
    "pt-BR": ("Gerar", "Aquecimento", "Histórico", "PNG", "Sistema"),
}  # fmt: skip
ALIKE = {
    "PNG", "Prompt", "prompt", "LoRAs", "chip", "Demo", "demo", "sd3", "x", "tpu_ui", "cpu", "tpu-emulated",
    "owner", "stamp", "kept", "form", "job",  # controls that are out of sight
    "torch", "torch_tpu", "libtpu", "diffusers", "transformers", "gradio", "tcmalloc",
    "strict", "fused", "compile", "single", "auto", "GB", "MB", "kB",  # in tables, as the command line writes them
}  # fmt: skip
GRADIOS_OWN = {
    "Stop Recording", "Close", "Gradio footer navigation", "More tabs", "Empty value", "Fullscreen", "File upload",
    "Thumbnail 1 of 1", "detailed view of selected image", "Paste from clipboard", "Upload file", "Error",
    "Reset to default value",
}  # fmt: skip
TEXTS = """() => {
    const found = new Set();
    const add = text => { text = (text || "").trim(); if (/[A-Za-z]{2}/.test(text)) found.add(text); };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const at = walker.currentNode.parentElement;
        if (!at.closest("script, style, .options, #model, #warm-model")) add(walker.currentNode.data);
    }
    for (const element of document.querySelectorAll("body *")) {
        if (element.closest(".options, [role=option]")) continue;
        for (const name of ["aria-label", "title", "placeholder", "alt"]) add(element.getAttribute(name));
    }
    return [...found];
}"""


@pytest.fixture(scope="module")
def shown(browser: Browser, server: Server) -> dict[str, set[str]]:
    """What stands on the page on the way through all tabs, by language."""
    found: dict[str, set[str]] = {}
    for locale, tabs in TABS.items():
        context = browser.new_context(locale=locale, viewport={"width": 1440, "height": 900})
        page = open_page(context, server)
        texts = found[locale] = set()

        def look(page=page, texts=texts) -> None:
            page.tab.wait_for_timeout(500)
            texts.update(page.tab.evaluate(TEXTS))

        look()
        page.generate(prompt="x", steps=2, seed=5, width=64, height=64)
        page.tab.locator("#gallery img").first.wait_for(timeout=90_000)
        for box in ("report-box", "from-picture", "advanced"):
            page.tab.click(f"#{box} button")
        look()
        page.fill(width=63)
        page.wait_for_verdict("refused")
        page.fill(width=48)
        page.wait_for_verdict("cold", "warm")
        look()
        for name, ready in zip(
            tabs[1:], ("#known-shapes td", "#history img", "#png-found p", "#system-facts td"), strict=True
        ):
            page.tab.get_by_role("tab", name=name, exact=True).click()
            page.tab.locator(ready).first.wait_for()
            look()
            if ready == "#history img":
                page.tab.locator("#history button img").first.click()
                page.tab.locator("#history-details td").first.wait_for()
                look()
        context.close()
    return found


def test_the_walk_saw_all_tabs(shown: dict[str, set[str]]):
    for locale, words in {
        "pt-BR": {"Concluído", "Aquecer", "Excluir a imagem", "pedido", "núcleos da CPU", "Relatório"},
        "en-US": {"Done", "Warm up", "Delete the picture", "CPU cores", "Report"},
    }.items():
        missing = [word for word in words if not any(word in text for text in shown[locale])]
        assert missing == []


def test_what_both_languages_show_alike_is_a_name(shown: dict[str, set[str]]):
    alike = shown["pt-BR"] & shown["en-US"]
    words = {text: set(re.findall(r"[A-Za-z_-]{2,}", re.sub(r"/\S+|\S*\d\S*", "", text))) for text in alike}
    assert sorted(text for text in alike - GRADIOS_OWN if words[text] - ALIKE) == []
