"""The System tab: device, memory, queue, versions, promises."""

import time

import gradio as gr

from tpu_ui import hardware, wording
from tpu_ui.devices import describe_devices
from tpu_ui.job import MemberStatus
from tpu_ui.page import render
from tpu_ui.page.desk import Desk
from tpu_ui.page.generate_handlers import QUICK
from tpu_ui.page.labels import language_of
from tpu_ui.translations import Language, marked

_PATHS = ("compile_cache", "tcmalloc")
_WORDS = (marked("available"), marked("not installed"), marked("loaded"))
_ELSEWHERE = ("device", "why")  # of `auto`; this page may have been started with another
_NAMES = {
    "chip": marked("chip"),
    "chips": marked("chips"),
    "devices_per_chip": marked("devices per chip"),
    "memory_per_chip_bytes": marked("memory per chip"),
    "peak_bf16_flops_per_chip": marked("bf16 peak per chip (FLOP/s)"),
    "source": marked("source"),
    "cpu_cores": marked("CPU cores"),
    "host_memory_bytes": marked("host memory"),
    "tpu_emulated": marked("emulated TPU"),
    "compile_cache": marked("compile cache"),
    "compile_cache_bytes": marked("compile cache size"),
    "compile_cache_budget_bytes": marked("compile cache budget"),
}
"""Of the facts; what is not here is a package's name."""
_STATES = {
    "starting": marked("starting"),
    "idle": marked("idle"),
    "running": marked("running"),
    "lost": marked("lost"),
}

_REASONS = (
    marked("asked for"),
    marked("asked for: TorchTPU on XLA's CPU plugin"),
    marked("no TPU on the PCI bus; NVIDIA's driver is there"),
    marked("no TPU on the PCI bus and no NVIDIA driver"),
)


def build_and_wire(desk: Desk, text: gr.I18n, tab: gr.Tab) -> None:
    """Lay the tab out and connect it."""
    with gr.Row(elem_classes="two-columns"):
        now = gr.HTML(elem_id="system-now", elem_classes="panel-card", padding=True)
        facts = gr.HTML(elem_id="system-facts", elem_classes="panel-card", padding=True)
    refresh = gr.Button(text("refresh"), size="sm", elem_id="system-refresh")

    def show(request: gr.Request) -> tuple[str, str]:
        say = language_of(request)
        metrics = render.link("/metrics", say("Metrics for Prometheus"))
        return render.rows(_now(desk, say)) + metrics, render.rows(_facts(desk, say))

    gr.on([tab.select, refresh.click], show, None, [now, facts], **QUICK)


def _now(desk: Desk, say: Language) -> list[tuple[str, str]]:
    rows = [
        (say("Device"), f"{desk.options.device.kind} ({_reason(desk.options.device, say)})"),
        (say("Up for"), wording.duration(time.time() - desk.started, say)),
        (say("Jobs that wait"), say.number(desk.queue.waiting_count)),
        (say("Open pages"), say.number(desk.presence.pages)),
    ]
    engine, error = desk.judge.engine, desk.queue.engine_error
    if error is not None:
        return [*rows, (say("State"), say("could not be started. {error}", error=desk.without_paths(str(error))))]
    if engine is None:
        return [*rows, (say("State"), say("starting: torch is loading"))]
    memory = engine.runtime.memory()
    used, total = (wording.size_in_bytes(count, say) for count in (memory.used_bytes, memory.total_bytes))
    promises = {name: say.number(count) for name, count in engine.ledger.promises().items()}
    replicas = desk.queue.statuses()
    of_one = [] if replicas else [(say("Memory"), say("{done} of {total}", done=used, total=total))]
    return [
        *rows,
        (say("State"), say("ready")),
        *of_one,
        (say("Warm-up promises"), say("{kept} kept, {broken} broken", **promises)),
        *(_replica(number, status, say) for number, status in enumerate(replicas, 1)),
    ]


def _reason(device: hardware.DeviceChoice, say: Language) -> str:
    """Why this device was chosen."""
    if device.tpu is not None:
        return say("{chips} TPU {chip} chip(s) on the PCI bus", chips=device.tpu.chips, chip=device.tpu.generation)
    return say(device.reason) if device.reason in _REASONS else device.reason


def _tcmalloc(say: Language) -> str:
    status = hardware.tcmalloc_status()
    if status.loaded:
        return say("loaded")
    if status.library is None:
        return say("not loaded. Install libtcmalloc-minimal4 (Debian and Ubuntu), then start with LD_PRELOAD.")
    return say("not loaded. Start with: LD_PRELOAD={library} python app.py", library=status.library)


def _replica(number: int, status: MemberStatus, say: Language) -> tuple[str, str]:
    name, state = say("Replica {number}", number=say.number(number)), say(_STATES[status.state])
    if status.pid is None:
        return name, state
    used, total = (wording.size_in_bytes(count, say) for count in (status.memory_used_bytes, status.memory_total_bytes))
    place = say("process {pid} on {node}", pid=status.pid, node=status.node)
    memory = say("{done} of {total}", done=used, total=total)
    return name, f"{state} · {place} · {memory} · {say.counted(status.jobs, '{number} job done', '{number} jobs done')}"


def _facts(desk: Desk, say: Language) -> list[tuple[str, str]]:
    rows = []
    for name, value in describe_devices(desk.settings).items():
        if name in _ELSEWHERE or (name in _PATHS and (desk.options.has_login or not desk.options.is_private)):
            continue
        told = wording.size_in_bytes(value, say) if name.endswith("_bytes") else str(value)
        if name == "tcmalloc":
            told = _tcmalloc(say)
        told = say(told) if told in _WORDS else told
        rows.append((say(_NAMES[name]) if name in _NAMES else name, told))
    return rows
