"""app.py in a process of its own, as a user starts it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium_path() -> str:
    """Where the browser is. Tests of the page are worth nothing without one, so its absence is an error."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None or not Path(path).exists():
        raise RuntimeError("The tests of the page need chromium: install it (apt install chromium) or set CHROMIUM.")
    return path


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_tiny_model(folder: Path) -> Path:
    """A small random Stable Diffusion 3 pipeline, built in another process: the tests themselves need no torch."""
    code = "import sys, pathlib; from tests import tiny_pipelines as t; t.save('sd3', pathlib.Path(sys.argv[1]))"
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, env=environ, capture_output=True)
    return folder / "sd3"


class Server:
    """A running app.py, or what is started in its place."""

    def __init__(
        self,
        cache: Path,
        *arguments: str,
        port: int | None = None,
        program: tuple[str, ...] = ("app.py",),
        **environ: str,
    ) -> None:
        self.cache = cache
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = cache.with_name(f"{cache.name}-{self.port}.log")
        unwanted = {name: "" for name in os.environ if name.startswith("TPU_UI_")}
        self._log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ
            | unwanted
            | {"TPU_UI_CACHE_DIR": str(cache), "TPU_UI_PORT": str(self.port), "HF_HUB_OFFLINE": "1"}
            | environ,
        )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_up(self, seconds: float = 90) -> None:
        self._wait(lambda: self.get("/")[0] == 200, seconds, "the page is not up")

    def wait_until_ready(self, seconds: float = 120) -> None:
        """Until the device is open."""
        self._wait(lambda: b"tpu_ui_device_ready 1.0" in self.get("/metrics")[1], seconds, "the device is not ready")

    def _wait(self, holds, seconds: float, complaint: str) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.process.poll() is None:
            if holds():
                return
            time.sleep(0.3)
        raise AssertionError(f"{complaint}: {self.log[-3000:]}")

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body; status 0 where nobody answers."""
        try:
            asked = urllib.request.Request(self.url + path, headers=headers or {})
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def metric(self, line_start: str) -> float:
        """The value of the metric whose line begins so."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(line_start):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def wait_for_metric(self, line_start: str, value: float, seconds: float) -> None:
        """Until a metric has reached a value."""
        self._wait(lambda: self.metric(line_start) >= value, seconds, f"{line_start} did not come to {value:g}")

    def wait_for_line(self, words: str, seconds: float) -> None:
        """Until the words stand in the log."""
        self._wait(lambda: words in self.log, seconds, f"{words!r} was not logged")

    def stop(self) -> int:
        """End it as a system does, and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        return self.process.returncode
