"""The road from a choice of device to a running manager, for every face."""

from collections.abc import Callable

from tpu_ui import hardware
from tpu_ui.catalogue import default_model_on
from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.job import Engine, EngineStarter
from tpu_ui.parallel.starting import group_starter
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.runtime import start_runtime
from tpu_ui.settings import Settings


def engine_starter(
    device: str,
    settings: Settings,
    default_model: str | None = None,
    tensor_parallel: str | None = None,
    replicas: str | None = None,
    ray_address: str | None = None,
) -> EngineStarter:
    """Choose the device now, and return what opens it later, on the thread that will own it.

    Args:
        tensor_parallel: one process a device, over so many of them; see `parallel.starting.group_starter`.
        replicas, ray_address: one process a device, each with the whole model; see `replicas.starting.replica_starter`.

    Raises:
        DeviceUnavailable: the device is not in this machine, or what it needs is not installed.
        InvalidRequest: a number of devices is not possible here, or `tensor_parallel` and `replicas` are both given.
    """
    if replicas is not None and tensor_parallel is not None:
        raise InvalidRequest(
            "replicas", "they hold a whole model each, and --tensor-parallel splits one.", "Give one of the two."
        )
    if replicas is None and ray_address is not None:
        raise InvalidRequest("ray-address", "it is for replicas.", "Give --replicas auto or a number too.")
    choice = hardware.choose_device(device)
    if settings.world_size > 1 and tensor_parallel is None:
        raise DeviceUnavailable(
            f"WORLD_SIZE={settings.world_size} is set, but this process runs on one chip and waits for no partners.",
            "Unset RANK and WORLD_SIZE, or start app.py with --tensor-parallel auto.",
        )
    # The processes of another launcher may have opened their chips already.
    if choice.kind == "tpu" and settings.world_size == 1 and (holder := hardware.find_tpu_holder()):
        raise DeviceUnavailable(
            f"device: the TPU is held by process {holder.pid} ({holder.name}).",
            f"End it (kill {holder.pid}), or choose --device tpu-emulated or cpu.",
        )
    model = default_model or default_model_on(choice.kind)
    if tensor_parallel is not None:
        return group_starter(choice, settings, model, tensor_parallel)
    if replicas is not None:
        return replica_starter(choice, settings, model, replicas, ray_address)

    def start(cancelled: Callable[[], bool] = lambda: False) -> Engine:  # noqa: ARG001 (nothing is waited for)
        runtime = start_runtime(choice.kind, settings)
        from tpu_ui.manager import PipelineManager  # imports torch, which the runtime has prepared

        return PipelineManager(runtime, settings, model)

    return start
