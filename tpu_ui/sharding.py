"""How a rank reads a pipeline: of what can be split only its own slices, by the libraries' own plans."""

from typing import Any

from diffusers import TensorParallelConfig
from torch.distributed.device_mesh import DeviceMesh
from transformers.distributed import DistributedConfig

from tpu_ui.model_folder import Component
from tpu_ui.planner.parts import Part
from tpu_ui.planner.plan import can_be_split


class Sharding:
    """What `from_pretrained` of each component is told, for `loading.load_pipeline`.

    What has no plan, such as T5, CLIP and the VAE, is whole on every rank: each computes the same, and nothing has to
    be sent.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def __call__(self, component: Component) -> dict[str, Any]:
        part = Part(component.name, component.class_name, component.weight_bytes, component.config)
        if not can_be_split(part, self._mesh.size()):
            return {}
        if component.library == "diffusers":
            return {"parallel_config": TensorParallelConfig(mesh=self._mesh)}
        return {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=self._mesh.size())}
