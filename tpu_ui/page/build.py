"""The page put together: tabs, endpoints, and how it is launched."""

from typing import Any

import gradio as gr

from tpu_ui import __version__
from tpu_ui.jobs import JobKind
from tpu_ui.page import (
    api,
    following,
    generate_handlers,
    generate_tab,
    history_tab,
    kept_form,
    labels,
    png_tab,
    system_tab,
    theme,
    warmup_tab,
)
from tpu_ui.page.desk import Desk
from tpu_ui.page.following import Followed
from tpu_ui.page.sessions import is_token, new_token

# The browser makes its token and keeps it; with it comes the job that it last saw unfinished. Not gr.BrowserState: on a
# busy machine the page is loaded before that has read what it kept, and a known browser would be taken for a new one.
_GREETING = """() => {
    const bytes = () => [...crypto.getRandomValues(new Uint8Array(16))];
    const fresh = () => bytes().map(b => b.toString(16).padStart(2, "0")).join("");
    try {
        const kept = localStorage.getItem("tpu_ui.owner");
        if (/^[0-9a-f]{32}$/.test(kept)) return [kept, localStorage.getItem("tpu_ui.job") ?? ""];
        const made = fresh();
        localStorage.setItem("tpu_ui.owner", made);
        return [made, ""];
    } catch { return [fresh(), ""]; }
}"""


def build_page(desk: Desk, text: gr.I18n | None = None) -> gr.Blocks:
    """All tabs and endpoints over one desk."""
    text = text or labels.translations()
    with gr.Blocks(title="tpu_ui", analytics_enabled=False, fill_width=True) as page:
        browser = gr.Textbox("", visible="hidden", elem_id="owner", label="owner")
        known = gr.Textbox("", visible="hidden", elem_id="job", label="job")
        followed = gr.State(Followed())
        timer = gr.Timer(1.0)
        gr.HTML(
            f"<h1>tpu_ui</h1><p>{__version__} · {desk.options.device.kind}</p>",
            elem_id="masthead", container=False, padding=False,
        )  # fmt: skip

        def greet(owner: Any, job: Any, request: gr.Request) -> tuple[str, str, Followed]:
            """A browser tells its token, and finds its jobs again."""
            owner = owner if is_token(owner) else new_token()
            desk.presence.seen(request.session_hash, owner)
            found = following.find_again(desk, owner, JobKind.GENERATE, job)
            return owner, found.known, found

        greeted = page.load(
            greet, [browser, known], [browser, known, followed], js=_GREETING, **generate_handlers.QUICK
        )
        with gr.Tabs(selected="generate") as tabs:
            with gr.Tab(text("tab_generate"), id="generate"):
                form = generate_tab.build(desk, text)
                generate_handlers.wire(desk, form, greeted, browser, known, followed, timer)
                page.load(None, None, form.live_preview, js=generate_handlers.KEPT_CHOICE, **generate_handlers.QUICK)
                kept_form.wire(desk, page, form)
            with gr.Tab(text("tab_warmup"), id="warmup") as tab:
                warmup_tab.build_and_wire(desk, text, greeted, tab, browser)
            with gr.Tab(text("tab_history"), id="history") as tab:
                history_tab.build_and_wire(desk, text, tab, tabs, browser, form)
            with gr.Tab(text("tab_png"), id="png"):
                png_tab.build_and_wire(desk, text, greeted, tabs, form)
            with gr.Tab(text("tab_system"), id="system") as tab:
                system_tab.build_and_wire(desk, text, tab)

        def leave(request: gr.Request) -> None:
            desk.presence.closed(request.session_hash)

        api.add_endpoints(desk)
        page.unload(leave)
    page.queue(default_concurrency_limit=None, max_size=1000, api_open=True)
    return page


def launch_options(text: gr.I18n) -> dict[str, Any]:
    """The part of `launch` that belongs to the page's looks and safety."""
    return {
        "theme": theme.theme(),
        "css_paths": [theme.CSS_FILE],
        "head": theme.HEAD,
        "i18n": text,
        "allowed_paths": [],
        "max_file_size": "40mb",
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "show_error": False,
        "footer_links": ["api", "settings"],
    }
