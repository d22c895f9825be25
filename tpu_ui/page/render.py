"""HTML of the parts that change. Every text goes through `html.escape` here, and nowhere else is HTML made."""

import base64
import io
from html import escape

from PIL import Image, ImageOps

from tpu_ui import wording
from tpu_ui.events import Phase, Progress
from tpu_ui.page.verdict import Verdict
from tpu_ui.report import Report
from tpu_ui.translations import ENGLISH, Language, marked

_VERDICT_WORDS = {"starting": marked("Starting"), "absent": marked("Not downloaded"), "refused": marked("Cannot run")}
_MARKS = {
    "warm": "●", "on_disk": "◐", "compiling": "◔", "cold": "○",
    "failed": "✕", "refused": "✕", "absent": "↓", "starting": "…",
}  # fmt: skip
_PREVIEW_SIDES = (640, 640)  # at most, of all pictures of a batch together


def mark(state: str) -> str:
    """A sign for a state, so that it is never told by colour alone."""
    return _MARKS.get(state, "○")


def verdict(word: Verdict, say: Language = ENGLISH) -> str:
    title = say(_VERDICT_WORDS[word.state]) if word.state in _VERDICT_WORDS else wording.state(word.state, say)
    return (
        f'<div class="verdict" data-state="{escape(word.state)}" role="status" aria-live="polite">'
        f'<span class="mark" aria-hidden="true">{mark(word.state)}</span>'
        f"<p><strong>{escape(title)}.</strong> {escape(word.sentence)}</p></div>"
    )


def idle(sentence: str, say: Language = ENGLISH) -> str:
    return _status("idle", say("Ready"), sentence, None, say)


def running(title: str, line: str, fraction: float | None, note: str = "", say: Language = ENGLISH) -> str:
    return _status("running", title, line, fraction, say, note, is_moving=True)


def ended(state: str, title: str, sentence: str, say: Language = ENGLISH) -> str:
    return _status(state, title, sentence, 1.0 if state == "done" else 0.0, say)


def _status(
    state: str, title: str, line: str, fraction: float | None, say: Language, note: str = "", is_moving: bool = False
) -> str:
    """One panel of a fixed height: title, bar, line, note. Nothing moves when it changes."""
    if fraction is None:
        width, label = "100%", ""
    else:
        width, label = f"{100 * fraction:.0f}%", f' aria-valuenow="{100 * fraction:.0f}"'
    css = "bar" + (" unknown" if fraction is None and is_moving else "") + (" empty" if not is_moving else "")
    return (
        f'<div class="status" data-state="{escape(state)}">'
        f'<p class="title" role="status" aria-live="polite">{escape(title)}</p>'
        f'<div class="{css}" role="progressbar" aria-label="{say("Progress")}" aria-valuemin="0" '
        f'aria-valuemax="100"{label}>'
        f'<span style="width:{width}"></span></div>'
        f'<p class="line">{escape(line) or "&nbsp;"}</p>'
        f'<p class="note">{escape(note) or "&nbsp;"}</p></div>'
    )


def progress(event: Progress, elapsed_seconds: float | None, note: str = "", say: Language = ENGLISH) -> str:
    line = wording.progress_line(event, elapsed_seconds, say)
    title = wording.phase(event.phase, say)
    return running(title, line, None if event.phase is Phase.QUEUED else wording.progress_fraction(event), note, say)


def preview(image: Image.Image, say: Language = ENGLISH) -> str:
    """A picture that forms. It stands in the page itself: no file of it can be asked for by others."""
    small = ImageOps.contain(image, _PREVIEW_SIDES) if max(image.size) > max(_PREVIEW_SIDES) else image
    coded = io.BytesIO()
    small.save(coded, "JPEG", quality=90, subsampling=0)  # coarse colours would show: it is drawn large
    address = f"data:image/jpeg;base64,{base64.b64encode(coded.getvalue()).decode()}"
    described = escape(say("Preview of the picture as it forms"))
    return f'<img src="{address}" alt="{described}" decoding="sync">'


def report(finished: Report, say: Language = ENGLISH) -> str:
    return rows(wording.report_rows(finished, say), "report")


def rows(pairs: list[tuple[str, str]], css: str = "") -> str:
    """Names and values as a table."""
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in pairs)
    return f'<table class="pairs {css}"><tbody>{lines}</tbody></table>'


def table(head: list[str], body: list[list[str]], empty: str) -> str:
    """A table that scrolls sideways on a narrow screen."""
    if not body:
        return f'<p class="empty">{escape(empty)}</p>'
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body)
    return (
        f'<div class="scroll" tabindex="0"><table class="grid"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def sentence(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'


def link(address: str, text: str) -> str:
    """A link to a page of our own."""
    return f'<p><a href="{escape(address)}" target="_blank" rel="noopener">{escape(text)}</a></p>'
