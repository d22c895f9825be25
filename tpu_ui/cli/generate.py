"""`generate`: one request from options, or many from a file."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from tpu_ui.cli.running import EngineOnDemand, exit_code_of, results_on_stdout
from tpu_ui.cli.values import request_values
from tpu_ui.errors import InvalidRequest, TpuUiError, shown
from tpu_ui.outputs import numbered_paths, save_as
from tpu_ui.recipe import Recipe
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest

_MAX_NAME_BYTES = 250  # file systems take 255, and a batch adds the numbers of its pictures


def run(options: argparse.Namespace) -> int:
    """Make the pictures; the exit code is that of the worst request."""
    with results_on_stdout() as results:
        try:
            return _run(options, results)
        except TpuUiError as error:
            if options.json:  # whoever reads the report also reads why there are no pictures
                print(json.dumps(Report.of_failure(error).as_dict()), file=results, flush=True)
            raise


def _run(options: argparse.Namespace, results: TextIO) -> int:
    worst = 0
    with EngineOnDemand(options) as engine:
        if options.requests is None:
            lines = iter([request_values(options) | {"out": options.out or "out.png"}])
        else:
            lines = _read_lines(options.requests)
        for number, line in enumerate(lines, start=1):
            report, code = _one(line, number, engine)
            worst = max(worst, code)
            if options.json or options.requests is not None:
                print(json.dumps(report.as_dict()), file=results, flush=True)
            _tell(report)
    return worst


def _one(line: Any, number: int, engine: EngineOnDemand) -> tuple[Report, int]:
    """Run one request; its report and the exit code that it asks for."""
    request = None
    try:
        values = _as_object(line)
        out = values.pop("out", None) or f"out-{number}.png"
        request = GenerationRequest.from_mapping(values)
        _check_out(out)
        result = engine.run(request)
        return replace(result.report, images=_save(result, out)), 0
    except TpuUiError as error:
        return Report.of_failure(error, request), exit_code_of(error)


def _save(result: GenerationResult, out: str) -> tuple[str, ...]:
    paths = numbered_paths(Path(out), len(result.images))
    for index, (image, path) in enumerate(zip(result.images, paths, strict=True)):
        save_as(image, Recipe.of(result.request, result.report, index), path)
    return tuple(map(str, paths))


def _check_out(out: Any) -> None:
    """Refuse before the pictures are made what could not be written after."""
    if not isinstance(out, str) or not out.lower().endswith(".png"):
        raise InvalidRequest("out", f"{shown(out)} is not the name of a PNG file.", "Give a name that ends in .png.")
    try:
        encoded = os.fsencode(out)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidRequest("out", f"{shown(out)} has a character that no file name may have.", "Leave it out.")
    if len(os.path.basename(encoded)) > _MAX_NAME_BYTES:
        raise InvalidRequest("out", f"{shown(out)} … is too long.", f"Give a name of at most {_MAX_NAME_BYTES} bytes.")
    if os.path.isdir(out):
        raise InvalidRequest("out", f"{out} is a folder.", "Name a file that ends in .png.")
    folder = next(parent for parent in Path(out).absolute().parents if os.path.exists(parent))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest("out", f"{folder} is no folder that can be written to.", "Choose another.")


def _read_lines(path: str) -> Iterator[str]:
    try:
        source: contextlib.AbstractContextManager[TextIO] = (
            contextlib.nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
        )
        with source as file:
            yield from (line for line in file if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("requests", f"{path} could not be read ({type(error).__name__}).") from error


def _as_object(line: Any) -> dict[str, Any]:
    if isinstance(line, dict):
        return dict(line)
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits it is a plain ValueError
        raise InvalidRequest("requests", f"a line is not JSON ({error}).", "Write one JSON object a line.") from error
    if not isinstance(values, dict):
        raise InvalidRequest("requests", "a line is not a JSON object.", 'Write for example {"prompt": "a red star"}.')
    return values


def _tell(report: Report) -> None:
    if not report.ok:
        print(f"tpu_ui: {report.error}", file=sys.stderr)
        return
    for notice in report.notices:
        print(f"note: {notice}", file=sys.stderr)
    compiled = f"{report.new_compiles} graphs compiled" if report.new_compiles else "nothing compiled"
    why = f" ({'; '.join(report.why_compiled)})" if report.why_compiled else ""
    print(f"{', '.join(report.images)}: {report.timings.total:.2f} s, {compiled}{why}", file=sys.stderr)
