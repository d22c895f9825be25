"""How a command drives the engine: started when first needed, watched, cancelled with Ctrl+C."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

from tpu_ui.catalogue import default_model_on
from tpu_ui.cli.progress import ProgressPrinter
from tpu_ui.engine import engine_starter
from tpu_ui.errors import NotDownloaded, TpuUiError
from tpu_ui.hardware import choose_device
from tpu_ui.jobs import JobKind, JobQueue, JobState
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings, folder_of, read_settings

_OWNER = "command line"


def exit_code_of(error: TpuUiError) -> int:
    """2 for a mistake of the user, 1 for a fault."""
    return 2 if error.is_users_mistake else 1


def chosen_settings(options: argparse.Namespace) -> Settings:
    """The settings of this process, with what the command line says of them."""
    settings = read_settings()
    if options.hub_cache is None:
        return settings
    return replace(settings, hub_cache_dir=folder_of("hub-cache", options.hub_cache))


@contextlib.contextmanager
def results_on_stdout() -> Iterator[TextIO]:
    """Keep standard output for results: what libraries print meanwhile goes to standard error."""
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield results


class EngineOnDemand:
    """Use as a context. The device is opened by the first request that passes its checks.

    Raises:
        DeviceUnavailable: the device is not to be had.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._choice = choose_device(options.device)
        self._settings = chosen_settings(options)
        self._resolver = Resolver(self._choice.kind, self._settings, default_model_on(self._choice.kind))
        self._queue: JobQueue | None = None

    def __enter__(self) -> "EngineOnDemand":
        # A service manager ends programs with SIGTERM; treat it as Ctrl+C, so that the device is given back.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        if self._queue is not None:
            self._queue.close()

    def _check(self, request: GenerationRequest) -> None:
        """Refuse at once what needs no device and no download to be refused."""
        try:
            self._resolver.resolve(request)
        except NotDownloaded:
            self._resolver.foresee_unseen(request)

    def run(self, request: GenerationRequest, kind: JobKind = JobKind.GENERATE) -> GenerationResult:
        """Run one request and show its progress.

        Raises:
            TpuUiError: why there are no pictures.
            KeyboardInterrupt: after the job has been cancelled.
        """
        self._check(request)
        if self._queue is None:
            self._queue = JobQueue(engine_starter(self._choice.kind, self._settings))
        job = self._queue.submit(request, _OWNER, kind)
        try:
            with ProgressPrinter() as printer:
                for event in job.events():
                    printer.show(event)
        except KeyboardInterrupt:
            self._queue.cancel(job.id, _OWNER)
            print("cancelling: a running compile ends first", file=sys.stderr)
            job.wait()
            raise
        if job.state is JobState.CANCELLED:
            raise KeyboardInterrupt
        if job.result is None:
            raise job.error or TpuUiError("The request ended without a result.")
        return job.result
