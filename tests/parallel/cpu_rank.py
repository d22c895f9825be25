"""A rank on the CPU: diffusers' device check is widened here, and faults are injected where a test asks for them."""

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from tpu_ui.parallel import rank
from tpu_ui.parallel.setup import OuterLaunch, Setup

FAULT_FILE = "TPU_UI_TEST_FAULT"
"""Names a file that holds "RANK CALL PLACE WHAT": the fault of one rank at a call of the transformer, once."""

IS_LAUNCHED_BY_ANOTHER = "TPU_UI_TEST_OUTER"
"""Set for a rank that a launcher started, not the front."""


def _allow_cpu() -> None:
    import diffusers.hooks.tensor_parallel as tensor_parallel
    import torch

    torch.set_num_threads(1)
    tensor_parallel._SUPPORTED_TP_DEVICES += ("cpu",)
    torch.accelerator.device_count = lambda: 1
    torch._C._get_accelerator = lambda: torch.device("cpu")


def _inject_faults() -> None:
    from diffusers import FluxTransformer2DModel

    original, calls = FluxTransformer2DModel.forward, Counter()

    def forward(self, *args: object, **kwargs: object) -> object:
        file = Path(os.environ[FAULT_FILE])
        try:
            (who, call, place, what), written = file.read_text().split(), file.stat().st_mtime_ns
        except FileNotFoundError:
            return original(self, *args, **kwargs)
        calls[written] += 1
        is_now = calls[written] == int(call) and who == os.environ["RANK"]
        if is_now and place == "before":
            _fail(what, file)
        result = original(self, *args, **kwargs)
        if is_now and place == "after":
            _fail(what, file)
        return result

    FluxTransformer2DModel.forward = forward


def _fail(what: str, file: Path) -> None:
    file.unlink()
    match what:
        case "raise":
            raise RuntimeError("injected")
        case "hang":
            time.sleep(600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    start = rank.start_runtime

    def start_on_cpu(*args: object, before_opening, **kwargs: object) -> object:
        def join() -> None:
            before_opening()
            _allow_cpu()
            _inject_faults()

        return start(*args, before_opening=join, **kwargs)

    rank.start_runtime = start_on_cpu
    if os.environ.pop(IS_LAUNCHED_BY_ANOTHER, None):
        rank.run_rank(Setup.from_environment(), OuterLaunch.find())
        return 0
    return rank.main()


if __name__ == "__main__":
    sys.exit(main())
