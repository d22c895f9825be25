"""From --tensor-parallel to a group: how many devices, in which process, and what stands against it. No torch yet."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from tpu_ui.errors import DeviceUnavailable, InvalidRequest, TpuUiError
from tpu_ui.hardware import DeviceChoice
from tpu_ui.jobs import Engine
from tpu_ui.parallel.setup import Limits, OuterLaunch, Setup
from tpu_ui.planner.models import KnownModel, find_known_model
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings
from tpu_ui.tensor_parallel import allowed_devices, check_group_request, parse_devices

# What `python -m torch.tpu.distributed` prints first of all.
_TPU_LAUNCH_VARIABLE = "TORCH_TPU_SLICEBUILDER_ADDRESSES"


@dataclass(frozen=True)
class GroupStarter:
    """Starts the group; see `job.EngineStarter`."""

    setup: Setup
    outer: OuterLaunch | None

    def __call__(self, cancelled: Callable[[], bool] = lambda: False) -> Engine:
        from tpu_ui.parallel.engine import GroupEngine  # imports torch where it starts

        return GroupEngine(self.setup, self.outer, cancelled=cancelled)


def group_starter(
    choice: DeviceChoice, settings: Settings, model: str, wanted: str, environ: Mapping[str, str] = os.environ
) -> GroupStarter:
    """What starts the group later.

    Args:
        wanted: as a user writes it: `auto`, or a number of devices.

    Raises:
        TpuUiError: it cannot be started here, or cannot run this model.
    """
    outer = OuterLaunch.find(environ)
    return GroupStarter(group_setup(choice, settings, model, wanted, outer, environ), outer)


def group_setup(
    choice: DeviceChoice,
    settings: Settings,
    model: str,
    wanted: str,
    outer: OuterLaunch | None,
    environ: Mapping[str, str] = os.environ,
) -> Setup:
    """The group that is meant.

    Raises:
        TpuUiError: see `group_starter`.
    """
    if not choice.kind.startswith("tpu"):
        raise DeviceUnavailable(
            f"tensor-parallel: it runs on TPUs only, and the device is {choice.kind}.",
            "Start without --tensor-parallel, or on a TPU host.",
        )
    if outer is not None and choice.kind == "tpu" and not environ.get(_TPU_LAUNCH_VARIABLE):
        raise DeviceUnavailable(
            f"tensor-parallel: {_TPU_LAUNCH_VARIABLE} is not set, from which the processes of a TPU slice know of one "
            "another.",
            'Before torchrun, run on each host: set -a; eval "$(python -m torch.tpu.distributed)"; set +a',
        )
    known: KnownModel | None = None
    with suppress(TpuUiError):  # what is wrong with the model, the page tells where it is asked for
        known = find_known_model(model, choice.kind, settings.hub_cache_dir)
    devices = _number(choice, wanted, outer, known)
    if known is not None:
        check_group_request(GenerationRequest(), known.card.label, known.parts, devices)
    # torchrun has brought all processes together already; without it nobody knows whether there are any.
    partners = Limits.joining if outer is not None and outer.has_agent else Limits.partners
    return Setup(choice.kind, settings, model, devices, replace(Limits(), partners=partners))


def run_launched_rank(choice: DeviceChoice, settings: Settings, model: str, wanted: str, outer: OuterLaunch) -> None:
    """Be a rank above 0 of an outer launcher until the group ends.

    Raises:
        TpuUiError: see `group_starter`, or the other ranks did not come.
    """
    from tpu_ui.parallel.rank import run_rank

    run_rank(group_setup(choice, settings, model, wanted, outer), outer)


def _number(choice: DeviceChoice, wanted: str, outer: OuterLaunch | None, known: KnownModel | None) -> int:
    number = parse_devices(wanted)
    if outer is not None:
        if number not in (None, outer.world_size):
            raise InvalidRequest(
                "tensor-parallel",
                f"{number} devices were asked for, and WORLD_SIZE says {outer.world_size} processes.",
                "Give auto, or the number that the launcher starts.",
            )
        return outer.world_size
    there = choice.tpu.devices if choice.tpu is not None else 1
    if number is None:
        return max(allowed_devices(known.parts, there), default=there) if known is not None else there
    if number > there:
        raise InvalidRequest(
            "tensor-parallel",
            f"{number} devices were asked for, and there are {there} here.",
            f"Give auto, or at most {there}; over several hosts start it with torchrun.",
        )
    return number
