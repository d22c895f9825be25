"""The page's sentences in Portuguese: none is missing, none is left over, each has the same values in it."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpu_ui
from tpu_ui import hardware, wording
from tpu_ui.events import Phase, Progress
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.modes import ExecutionMode
from tpu_ui.page import labels, render, system_tab
from tpu_ui.page.generate_tab import PLACEMENT_WORDS
from tpu_ui.page.known_shapes import OTHER_VERSIONS
from tpu_ui.page.verdict import Verdict
from tpu_ui.page.warmup_tab import _state
from tpu_ui.report import Report, Timings
from tpu_ui.translations import ENGLISH, PORTUGUESE, chosen_by

TPU_UI = Path(tpu_ui.__file__).parent


def templates_in(source: str) -> Iterator[str]:
    """Every template that is said, counted or marked."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name("say" | "marked"):
                said = node.args[:1]
            case ast.Attribute(ast.Name("say"), "counted"):
                said = node.args[1:3]
            case ast.Call(ast.Name("language_of")):
                said = node.args[:1]
            case _:
                continue
        yield from (argument.value for argument in said if isinstance(argument, ast.Constant))


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


USED = {template for path in TPU_UI.rglob("*.py") for template in templates_in(path.read_text())}


def test_templates_are_found():
    source = 'say("a {b}", b=1); say.counted(n, "one", "many", x=2); marked("m"); language_of(request)("r"); say(name)'
    assert list(templates_in(source)) == ["a {b}", "one", "many", "m", "r"]
    assert len(USED) > 100


def test_every_sentence_has_a_translation():
    assert sorted(USED - set(PORTUGUESE.templates)) == []


def test_no_translation_is_left_over():
    assert sorted(set(PORTUGUESE.templates) - USED) == []


@pytest.mark.parametrize("template", sorted(USED & set(PORTUGUESE.templates)))
def test_a_translation_has_the_same_values(template: str):
    translated = PORTUGUESE.templates[template]
    assert placeholders(translated) == placeholders(template)
    assert (template[-1] in ".:") == (translated[-1] in ".:")


def test_every_label_has_both_languages():
    translations = labels.translations().translations
    assert set(translations["en"]) == set(translations["pt"]) == set(translations["pt-BR"])
    assert all(translations["pt"].values())


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("pt-BR,pt;q=0.9,en;q=0.8", "pt"), ("pt", "pt"), ("PT-pt", "pt"), ("en;q=0.5, pt;q=0.9", "pt"),
        ("en-US,en;q=0.9,pt;q=0.8", "en"), ("es-ES,pt;q=0.9", "en"), ("*", "en"), ("", "en"), (None, "en"),
        ("pt;q=x,en", "en"), ("ptolemaic", "en"), (",,;", "en"),
    ],
)  # fmt: skip
def test_the_language_is_the_first_choice_of_the_browser(header: str | None, code: str):
    assert chosen_by(header).code == code


def test_numbers():
    assert ENGLISH.number(1234567.25, 1) == "1,234,567.2"
    assert PORTUGUESE.number(1234567.25, 1) == "1.234.567,2"
    assert wording.duration(0.8, PORTUGUESE) == "0,8 s"
    assert wording.duration(None, PORTUGUESE) == "ainda não se sabe"
    assert wording.size_in_bytes(1.25e6, PORTUGUESE) == "1,2 MB"


def test_values_may_hold_braces():
    assert PORTUGUESE("could not be started. {error}", error="{x} {}") == "não pôde ser iniciado. {x} {}"


FORECASTS = [
    Forecast(state, graphs, warmup, run, runs, like, reason)
    for state in WarmupState
    for graphs, warmup, run, runs, like, reason in (
        (0, 0.0, 0.8, 1, 0, None), (0, 0.0, 0.8, 12, 0, None), (1, 90.0, 0.8, 0, 4, "No room."),
        (42, 90.0, None, 0, 0, None), (None, None, None, 0, 0, None), (None, None, 0.8, 0, 0, None),
    )
]  # fmt: skip
EVENTS = [
    Progress(Phase.LOADING, bytes_done=1_200_000_000, bytes_total=22_500_000_000, detail="vae"),
    Progress(Phase.COMPILING, 12, graphs=3, graphs_expected=40), Progress(Phase.COMPILING, 2, graphs=1),
    Progress(Phase.DENOISING, 3, step=5, steps=20, seconds_per_step=0.5), Progress(Phase.DECODING, 4),
    Progress(Phase.QUEUED, position=0), Progress(Phase.QUEUED, position=1), Progress(Phase.QUEUED, position=2),
]  # fmt: skip
REPORTS = [
    Report(True, seeds=(1,), new_compiles=1, timings=Timings(compile=6.9, total=8.0), state_before="cold"),
    Report(True, seeds=(1, 2), was_warm=True, timings=Timings(total=0.8), state_before="warm"),
    Report(True, seeds=(1,), timings=Timings(total=4.0), state_before="on_disk"),
    Report(True, seeds=(1,), timings=Timings(total=4.0), state_before="failed"),
    Report(True, seeds=(1,), state_before="warm", strength=0.5, image_sha256="12" * 32),
]


class Everything(dict):
    """Templates of a language in which each word is Ω."""

    def get(self, template: str, _default: str = "") -> str:
        return "".join(
            "Ω" * sum(not letter.isspace() for letter in text) + ("" if name is None else f"{{{name}}}")
            for text, name, _, _ in string.Formatter().parse(template)
        )


def test_no_english_is_left_in_what_wording_and_panels_say():
    """Said in a language of Ω alone, nothing but values is left: no sentence goes past its template."""
    say = type(ENGLISH)("xx", Everything())
    said = [
        *(wording.forecast_sentence(forecast, say).removesuffix(forecast.reason or "") for forecast in FORECASTS),
        *(wording.progress_line(event, say=say).removesuffix(event.detail) for event in EVENTS),
        *(wording.outcome(report, say) for report in REPORTS),
        *(name + value for report in REPORTS for name, value in wording.report_rows(report, say)),
        *(wording.phase(phase, say) + wording.state(state, say) for phase in Phase for state in WarmupState),
        *(_state(state, say) for state in [*WarmupState, OTHER_VERSIONS]),
        *(say(mode.label) for mode in ExecutionMode), *(say(words) for words in PLACEMENT_WORDS.values()),
        wording.waiting_line(3, 95.0, say), wording.starting("", 3, say), wording.cancelling(True, say),
        wording.cancelling(False, say), wording.duration(None, say), wording.size_in_bytes(None, say),
    ]  # fmt: skip
    units = {"s", "min", "h", "B", "kB", "MB", "GB", "TB", "None"}
    for sentence in said:
        words = "".join(letter if letter.isalpha() else " " for letter in sentence.replace("Ω", " ")).split()
        assert set(words) <= units, sentence


def test_portuguese_panels():
    warm = Forecast(WarmupState.WARM, 0, 0.0, 0.8, 12, 0)
    verdict = render.verdict(Verdict("warm", wording.forecast_sentence(warm, PORTUGUESE)), PORTUGUESE)
    assert "<strong>Aquecido.</strong> Cerca de 0,8 s (por 12 execuções)." in verdict
    cold = Forecast(WarmupState.COLD, 42, 90.0, 0.8, 0, 4)
    assert wording.forecast_sentence(cold, PORTUGUESE) == (
        "Compila primeiro: cerca de 1 min 30 s, 42 grafos (por tamanhos parecidos), depois 0,8 s."
    )
    panel = render.progress(EVENTS[3], 3, say=PORTUGUESE)
    assert "Removendo o ruído" in panel
    assert "passo 5 de 20 · 0,5 s por passo · faltam 7,5 s" in panel
    assert 'aria-label="Progresso"' in panel
    assert wording.outcome(REPORTS[1], PORTUGUESE) == "2 imagens em 0,8 s, aquecido como prometido: nada foi compilado."


def test_every_reason_for_a_device_is_translated(tmp_path: Path):
    """Of each device that a machine may have; the facts' words too."""

    def reason(kind: str, root: Path = tmp_path, sys_root: Path = tmp_path) -> str:
        choice = hardware.choose_device(kind, sys_root=sys_root, root=root, is_installed=lambda _: True)
        return system_tab._reason(choice, type(ENGLISH)("xx", Everything()))

    gpu, tpu = tmp_path / "gpu", tmp_path / "tpu"
    (gpu / "proc/driver/nvidia").mkdir(parents=True)
    (tpu / "bus/pci/devices/0").mkdir(parents=True)
    (tpu / "bus/pci/devices/0/vendor").write_text(hardware.GOOGLE_PCI_VENDOR)
    (tpu / "bus/pci/devices/0/device").write_text("0x006f")
    said = [reason("cpu"), reason("tpu-emulated"), reason("auto"), reason("auto", gpu), reason("cuda", gpu)]
    assert [set(sentence) - {"Ω"} for sentence in said] == [set()] * 5
    assert set(reason("auto", sys_root=tpu).replace("v6e", "").replace("1", "")) == {"Ω"}


def test_the_names_of_buttons_without_words_follow_the_labels():
    script = (TPU_UI / "page" / "page.js").read_text()
    assert all(name in script for name in ("Trocar largura e altura", "Swap width and height"))
