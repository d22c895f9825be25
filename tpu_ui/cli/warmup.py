"""`warmup`: compile sizes now."""

import argparse
import json
import sys

from tpu_ui.cli.running import EngineOnDemand, exit_code_of, results_on_stdout
from tpu_ui.cli.values import integer
from tpu_ui.errors import TpuUiError
from tpu_ui.jobs import JobKind
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest
from tpu_ui.shapes import parse_size


def run(options: argparse.Namespace) -> int:
    """Warm every size with every batch, and report each; the exit code is that of the worst."""
    sizes = [parse_size(size) for size in options.size.split(",")] if options.size else [(None, None)]
    batches = [integer("batch", batch) for batch in options.batch.split(",")]
    worst = 0
    with results_on_stdout() as results, EngineOnDemand(options) as engine:
        for width, height in sizes:
            for batch in batches:
                request = None
                try:
                    request = GenerationRequest(
                        prompt="warm-up",
                        model=options.model,
                        mode=options.mode,
                        placement=options.placement,
                        width=width,
                        height=height,
                        batch=batch,
                        image=options.image,
                    )
                    report = engine.run(request, JobKind.WARM_UP).report
                except TpuUiError as error:
                    report, worst = Report.of_failure(error, request), max(worst, exit_code_of(error))
                if options.json:
                    print(json.dumps(report.as_dict()), file=results, flush=True)
                print(_line(report, batch), file=sys.stderr)
    return worst


def _line(report: Report, batch: int) -> str:
    if not report.ok:
        return f"tpu_ui: {report.error}"
    compiled = f"{report.new_compiles} graphs in {report.timings.compile:.1f} s"
    return f"{report.model} {report.width}×{report.height} batch {batch} {report.mode}: warm ({compiled})"
