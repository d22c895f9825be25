"""The road from options to a page that is up, and back down."""

import errno
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpu_ui import hardware
from tpu_ui.catalogue import default_model_on, find_card
from tpu_ui.engine import engine_starter
from tpu_ui.errors import DeviceUnavailable, InvalidRequest, JobCancelled
from tpu_ui.job import Engine, Pool
from tpu_ui.jobs import JobQueue
from tpu_ui.modes import check_mode_on_device
from tpu_ui.page.options import AppOptions
from tpu_ui.parallel.starting import GroupStarter
from tpu_ui.settings import Settings
from tpu_ui.tensor_parallel import check_group_mode

log = logging.getLogger(__name__)

_PORTS_TRIED = 50


@dataclass(frozen=True)
class Served:
    """A page that is up."""

    url: str
    share_url: str | None


@contextmanager
def serve(options: AppOptions, settings: Settings) -> Iterator[Served]:
    """Start the page; the device opens behind it. On the way out everything is closed.

    Raises:
        TpuUiError: the device is not there, lacks the mode, no port is free, there is no such model, or a folder cannot
            be used. Nothing was loaded.
    """
    check_folders(options, settings)
    if options.model is not None:
        find_card(options.model)
    device = hardware.choose_device(options.device)
    if options.mode is not None:
        check_mode_on_device(options.mode, device.kind)
        if options.tensor_parallel is not None:
            check_group_mode(options.mode)
    model = options.model or default_model_on(device.kind)
    open_device = engine_starter(
        options.device, settings, model, options.tensor_parallel, options.replicas, options.ray_address
    )
    port = find_port(options.host, options.port, options.port_is_fixed)
    kept_dir = _own_served_dir(settings.cache_dir / "served")
    neutral_dir, served_dir = _neutral_name_of(kept_dir)
    # Gradio reads it when it is imported; its default is one folder for all users of the machine.
    os.environ["GRADIO_TEMP_DIR"] = str(served_dir)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

    from tpu_ui.outputs import OutputFolder
    from tpu_ui.page import build, labels, routes
    from tpu_ui.page.desk import Desk, Keeper, PageOptions
    from tpu_ui.page.metrics import Metrics

    page_options = PageOptions(
        device=device,
        default_model=model,
        served_dir=served_dir / "pictures",
        default_mode=options.mode,
        is_private=not options.is_public,
        has_login=bool(options.auth),
        group_devices=open_device.setup.devices if isinstance(open_device, GroupStarter) else None,
    )
    outputs = OutputFolder(options.outputs or settings.cache_dir / "outputs", shared=options.shared_history)
    metrics = Metrics()
    page_is_up, is_ending = threading.Event(), threading.Event()

    def start_engine() -> Engine | Pool:
        page_is_up.wait()
        with suppress(JobCancelled):
            if not is_ending.is_set():
                return open_device(is_ending.is_set)
        raise DeviceUnavailable("The program is ending.")

    queue = JobQueue(start_engine, on_finished=metrics.count, keep=Keeper(outputs))
    metrics.watch(queue)
    desk = Desk(queue, outputs, settings, page_options)
    page = None
    try:
        text = labels.translations()
        page = build.build_page(desk, text)
        if options.share:
            page_is_up.set()  # opening the tunnel may take half a minute, and the device need not wait for it
        _, local_url, share_url = page.launch(
            server_name=options.host,
            server_port=port,
            share=options.share,
            auth=list(options.auth) or None,
            prevent_thread_lock=True,
            quiet=True,
            inbrowser=False,
            app_kwargs=routes.app_options(metrics, options.auth),
            **build.launch_options(text),
        )
        desk.warm_at_start(options.warm)
        page_is_up.set()
        yield Served(local_url, share_url)
    finally:
        is_ending.set()
        page_is_up.set()
        if page is not None:
            page.close(verbose=False)
        desk.close()
        shutil.rmtree(kept_dir, ignore_errors=True)
        if neutral_dir is not None:
            shutil.rmtree(neutral_dir, ignore_errors=True)


def check_folders(options: AppOptions, settings: Settings) -> None:
    """See that the folders of the command line are folders, and that those that are written to can be.

    Raises:
        InvalidRequest: one is not.
    """
    for field, folder in (("loras", options.loras), ("hub-cache", options.hub_cache)):
        is_wrong = folder is not None and (not os.path.isdir(folder) if field == "loras" else os.path.isfile(folder))
        if is_wrong:
            raise InvalidRequest(field, f"{str(folder)!r:.200} is no folder.", "Give the path of a folder.")
    for field, folder in (("TPU_UI_CACHE_DIR", settings.cache_dir), ("outputs", options.outputs)):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InvalidRequest(
                field,
                f"{str(folder)!r:.200} cannot be used: {error.strerror}.",
                "Give a folder that can be written to.",
            ) from None


def find_port(host: str, wanted: int, is_fixed: bool) -> int:
    """The wanted port, or the next one that is free.

    Raises:
        DeviceUnavailable: none is, or this user may not have it.
        InvalidRequest: the host is no address of this machine.
    """
    tried = range(wanted, wanted + 1 if is_fixed else min(wanted + _PORTS_TRIED, 65536))
    for port in tried:
        if _is_free(host, port):
            return port
    raise DeviceUnavailable(
        f"port: {wanted} is taken{_holder(wanted)}"
        + ("." if is_fixed else f", and so are the {len(tried) - 1} after it."),
        "End the program that holds it, or choose another with --port.",
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    no_address = InvalidRequest(
        "host", f"{host!r:.80} is no address of this machine.", "Give 127.0.0.1, or 0.0.0.0 for all of its addresses."
    )
    try:
        (_, kind, _, _, address), *_ = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise no_address from None
    with closing(socket.socket(family, kind)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            raise DeviceUnavailable(
                f"port: {port} is the administrator's.", "Choose one above 1023 with --port."
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise no_address from None
    return True


def _holder(port: int) -> str:
    """Who listens on a port, as words to add to a sentence; nothing where this user may not see it."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def _own_served_dir(root: Path) -> Path:
    """A folder for this process alone; those of processes that were killed are removed."""
    if root.is_dir():
        for folder in root.iterdir():
            if folder.name.isdigit() and not Path(f"/proc/{folder.name}").exists():
                shutil.rmtree(folder, ignore_errors=True)
    own = root / str(os.getpid())
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    return own


def _neutral_name_of(folder: Path) -> tuple[Path | None, Path]:
    """A name for a folder that tells nothing of this machine: a link in a new folder for temporary files, and that one.

    The addresses of pictures hold the whole path under which Gradio knows them, and the cache is mostly in somebody's
    home. The files stay where they are, on the disk of the pictures, so that a copy costs nothing.
    """
    root = Path(tempfile.gettempdir())
    for other in root.glob("tpu_ui-*"):  # of processes that were killed, whose folder is gone
        link = other / "served"
        if os.path.islink(link) and link.readlink().parent == folder.parent and not os.path.exists(link):
            shutil.rmtree(other, ignore_errors=True)
    try:
        own = Path(tempfile.mkdtemp(prefix="tpu_ui-"))
        link = own / "served"
        link.symlink_to(folder)
    except OSError:
        return None, folder
    return own, link


def announce(options: AppOptions, served: Served) -> list[str]:
    """What to tell on the terminal once the page is up."""
    port = served.url.rstrip("/").rsplit(":", 1)[-1]
    lines = [f"tpu_ui is at {served.url}"]
    if port != str(options.port):
        lines.append(f"Port {options.port} is taken, so it listens on {port}.")
        if holder := _holder(options.port):
            lines.append(f"Port {options.port} is held{holder}.")
    if served.share_url:
        lines.append(f"Public link: {served.share_url}")
    elif options.share:
        lines.append("No public link: Gradio's tunnel could not be opened (no network?). The page is up locally.")
    if options.is_space:
        return lines
    if options.is_public and not options.auth:
        lines.append("WARNING: anyone who can reach this page may use it. Add --auth user:password or a file.")
    elif not options.is_public:
        lines.append(
            f"It listens on this machine only. From elsewhere: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE; or --host "
            "0.0.0.0 with --auth, behind a firewall rule limited to your own address."
        )
    return lines


def wait_for_end() -> None:
    """Until Ctrl+C or a request of the system to end."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        while not over.wait(0.5):
            pass
    except KeyboardInterrupt:
        pass


class HideSecrets(logging.Filter):
    """Masks passwords and tokens in log records and their tracebacks, should a library ever print one."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__()
        self._secrets = [secret for secret in secrets if len(secret) >= 4]

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._masked(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)  # formatters take this text
        record.exc_text = record.exc_text and self._masked(record.exc_text)
        return True

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
