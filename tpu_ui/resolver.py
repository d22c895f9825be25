"""Requests resolved against the models of this machine and one device, before torch is there."""

from dataclasses import replace

from tpu_ui import hardware
from tpu_ui.modes import default_mode
from tpu_ui.placement import choose_placement
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest, resolve
from tpu_ui.settings import Settings
from tpu_ui.sources import Fetching, ModelSource, find_model

_BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2}


def dtype_on_device(card_dtype: str, device_kind: str) -> str:
    """The data type to run in: float16 has no hardware on a TPU, and neither half type is fast on most CPUs."""
    if device_kind == "cpu":
        return "float32"
    if device_kind.startswith("tpu") and card_dtype == "float16":
        return "bfloat16"
    return card_dtype


def weight_bytes_on_device(source: ModelSource, device_kind: str) -> int:
    """Bytes of a model's weights in the data type in which it runs there."""
    return source.parameters * _BYTES_PER_PARAMETER[dtype_on_device(source.card.dtype, device_kind)]


class Resolver:
    """Stateless but for its settings; safe in any thread."""

    def __init__(self, device_kind: str, settings: Settings, default_model: str) -> None:
        self.device_kind = device_kind
        self.default_model = default_model
        self._settings = settings
        self._device_bytes = hardware.device_memory_bytes(device_kind)

    def find(self, model: str, fetching: Fetching | None = None) -> ModelSource:
        """A model by its name; see `sources.find_model`."""
        return find_model(
            model, offline=self._settings.offline, hub_cache=self._settings.hub_cache_dir, fetching=fetching
        )

    def resolve(
        self, request: GenerationRequest, fetching: Fetching | None = None
    ) -> tuple[ResolvedRequest, ModelSource]:
        """Check a request against its model and fill in the defaults.

        Args:
            fetching: a model of the Hub that is not on this machine is fetched; otherwise it is an error.

        Raises:
            TpuUiError: what is wrong, in a sentence.
            JobCancelled: `fetching.cancelled` said so.
        """
        request = replace(request, model=request.model or self.default_model)
        source = self.find(request.model, fetching)
        resolved = resolve(
            request,
            source.card,
            revision=source.revision,
            dtype=dtype_on_device(source.card.dtype, self.device_kind),
            device_kind=self.device_kind,
            default_mode=default_mode(self.device_kind, self._settings.defer_and_fuse),
            placement=choose_placement(weight_bytes_on_device(source, self.device_kind), self._device_bytes),
        )
        return resolved, source
