"""The System tab: device, memory, queue, versions, promises."""

import time

import gradio as gr

from tpu_ui import wording
from tpu_ui.devices import describe_devices
from tpu_ui.page import render
from tpu_ui.page.desk import Desk
from tpu_ui.page.generate_handlers import QUICK

_PATHS = ("compile_cache", "tcmalloc")
_ELSEWHERE = ("device", "why")  # of `auto`; this page may have been started with another


def build_and_wire(desk: Desk, text: gr.I18n, tab: gr.Tab) -> None:
    """Lay the tab out and connect it."""
    with gr.Row(elem_classes="two-columns"):
        now = gr.HTML(elem_id="system-now", elem_classes="panel-card", padding=True)
        facts = gr.HTML(elem_id="system-facts", elem_classes="panel-card", padding=True)
    refresh = gr.Button(text("refresh"), size="sm", elem_id="system-refresh")

    def show() -> tuple[str, str]:
        return render.rows(_now(desk)) + render.link("/metrics", "Metrics for Prometheus"), render.rows(_facts(desk))

    gr.on([tab.select, refresh.click], show, None, [now, facts], **QUICK)


def _now(desk: Desk) -> list[tuple[str, str]]:
    rows = [
        ("Device", f"{desk.options.device.kind} ({desk.options.device.reason})"),
        ("Up for", wording.duration(time.time() - desk.started)),
        ("Jobs that wait", str(desk.queue.waiting_count)),
        ("Open pages", str(desk.presence.pages)),
    ]
    engine, error = desk.judge.engine, desk.queue.engine_error
    if error is not None:
        return [*rows, ("State", desk.without_paths(f"could not be started. {error}"))]
    if engine is None:
        return [*rows, ("State", "starting: torch is loading")]
    memory = engine.runtime.memory()
    promises = engine.ledger.promises()
    return [
        *rows,
        ("State", "ready"),
        ("Memory", f"{wording.size_in_bytes(memory.used_bytes)} of {wording.size_in_bytes(memory.total_bytes)}"),
        ("Warm-up promises", f"{promises['kept']:,} kept, {promises['broken']:,} broken"),
    ]


def _facts(desk: Desk) -> list[tuple[str, str]]:
    facts = describe_devices(desk.settings)
    rows = []
    for name, value in facts.items():
        if name in _ELSEWHERE or (name in _PATHS and not desk.options.is_private):
            continue
        told = wording.size_in_bytes(value) if name.endswith("_bytes") else str(value)
        rows.append((name.replace("_bytes", " size" if name == "compile_cache_bytes" else "").replace("_", " "), told))
    return rows
