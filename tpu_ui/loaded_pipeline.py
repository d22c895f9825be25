"""A pipeline in memory: where it is placed, in which mode it runs, and one run of it."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import accelerate
import diffusers
import numpy
import torch

from tpu_ui.compiled_modules import CallSwitch, denoisers, make_group_norm_inputs_contiguous, move_tables
from tpu_ui.device_scalar import DeviceScalar
from tpu_ui.errors import ModeNotAllowed
from tpu_ui.fixed_text import fix_text_length
from tpu_ui.graphs import Stage
from tpu_ui.image_to_image import image_to_image_of
from tpu_ui.kept_text import KeptText
from tpu_ui.loading import free_weights, weight_bytes
from tpu_ui.lora_files import LoraFile
from tpu_ui.lora_weights import LoraWeights
from tpu_ui.modes import ExecutionMode
from tpu_ui.offload import OffloadedModels, move
from tpu_ui.passes import PassObserver
from tpu_ui.pipeline_kinds import guidance_argument
from tpu_ui.placement import Placement
from tpu_ui.preview import LatentColours, LatentPreview
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.runs import Pictures
from tpu_ui.runtime import Runtime
from tpu_ui.schedule import keep_on_host

log = logging.getLogger(__name__)


class LoadedPipeline:
    """Belongs to the device thread."""

    def __init__(
        self, pipeline: diffusers.DiffusionPipeline, runtime: Runtime, dtype: torch.dtype, colours: LatentColours
    ) -> None:
        self.pipeline = pipeline
        self.loras = LoraWeights(pipeline, runtime)
        self._weight_bytes = weight_bytes(pipeline)
        self.dtype = dtype
        self.placement: Placement | None = None
        self.offloaded: OffloadedModels | None = None  # under CPU offload
        self._runtime = runtime
        self._colours = colours
        self._observer: PassObserver | None = None
        self._request: GenerationRequest | None = None
        self._switches: dict[Placement, CallSwitch] = {}
        self._last_latents: torch.Tensor | None = None
        # At the loop's beginning, not at the denoiser's first call: what a pipeline computes before each call is then
        # cut into graphs in the first step as in all others.
        pipeline.scheduler = keep_on_host(
            pipeline.scheduler, runtime.torch_device, runtime.mark, lambda: self._enter(Stage.DENOISER), self._on_step
        )
        self.image_to_image = image_to_image_of(pipeline)
        self.kept_text = KeptText()
        for each, after in ((pipeline, Stage.LATENTS), (self.image_to_image, Stage.PICTURE)):
            if each is None:
                continue
            fix_text_length(each)
            if hasattr(each, "encode_prompt"):
                each.encode_prompt = functools.partial(self._encode_or_recall, each.encode_prompt)
            self._announce("encode_prompt", each, before=Stage.TEXT, after=after)
        if getattr(pipeline, "vae", None) is not None:
            self._announce("encode", pipeline.vae, before=Stage.PICTURE)
            self._announce("decode", pipeline.vae, before=Stage.DECODER, convert=_decoded_on_host)
            if runtime.kind.startswith("tpu"):
                make_group_norm_inputs_contiguous(pipeline.vae)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, and of the original ones that are kept beside those with LoRAs in them."""
        return self._weight_bytes + self.loras.kept_bytes

    # -- placement and mode -------------------------------------------------------------------------------------------

    def place(self, placement: Placement) -> None:
        """Move the weights. Does nothing where they are already.

        Raises:
            ModeNotAllowed: the pipeline does not say in which order its models run, so it cannot be offloaded.
        """
        if placement is self.placement:
            return
        if placement is Placement.CPU_OFFLOAD and self._runtime.torch_device.type == "cpu":
            raise ModeNotAllowed("placement: cpu_offload needs a device beside the CPU.", "Choose auto or single.")
        if placement is Placement.CPU_OFFLOAD and self.pipeline.model_cpu_offload_seq is None:
            raise ModeNotAllowed(
                f"placement: {type(self.pipeline).__name__} does not support model CPU offload.", "Choose single."
            )
        if self.offloaded is not None:
            self.offloaded.remove()
            self.offloaded = None
        self.placement = None  # should moving fail, it is nowhere whole
        # In fused mode the moves would be fused into the next graphs, which would then be others than those of later
        # passes.
        self._runtime.set_mode(ExecutionMode.STRICT_EAGER)
        if placement is Placement.CPU_OFFLOAD:
            self.offloaded = OffloadedModels(self.pipeline, self._runtime)
        else:
            move(self.pipeline, self._runtime.torch_device)
        for denoiser in denoisers(self.pipeline).values():
            move_tables(denoiser, self._runtime.torch_device)
        self._runtime.synchronize()
        self.placement = placement

    def set_mode(self, mode: ExecutionMode) -> None:
        """Put the mode on the device and on the pipeline's modules. The pipeline must be placed."""
        self._runtime.set_mode(mode)
        for switch in self._switches.values():
            switch.take_off()  # another placement's switch has compiled other modules
        if self.placement not in self._switches:
            self._switches[self.placement] = CallSwitch(
                self.pipeline, self.placement, self._runtime.compile, lambda: self._enter(Stage.DENOISER)
            )
        self._switches[self.placement].set(mode)

    def apply_loras(self, loras: tuple[LoraFile, ...]) -> None:
        """Make these the LoRAs in the weights; raises what `LoraWeights.apply` raises. The pipeline must be placed."""
        if self.offloaded is not None and self.loras.would_change(loras):
            self.offloaded.leave_all()  # what is merged into the device's copy alone would not come a second time
        self.loras.apply(loras)

    @property
    def bytes_to_device(self) -> int:
        """Weights that runs under CPU offload have moved to the device since the placement."""
        return 0 if self.offloaded is None else self.offloaded.bytes_to_device

    def unload(self) -> None:
        """Give the memory back. The object is of no use afterwards."""
        for switch in self._switches.values():
            switch.take_off()
        self._switches.clear()
        self.offloaded = None
        self.loras.forget()
        self.pipeline.remove_all_hooks()
        for module in self.pipeline.components.values():
            if isinstance(module, torch.nn.Module):
                accelerate.hooks.remove_hook_from_module(module, recurse=True)
                free_weights(module)  # even if something still holds the module
        self._last_latents = None
        self.kept_text.clear()
        del self.pipeline, self.image_to_image

    # -- one pass -----------------------------------------------------------------------------------------------------

    def run(self, resolved: ResolvedRequest, observer: PassObserver) -> Pictures:
        """Make the pictures of a request that takes one run.

        Raises:
            JobCancelled: between steps or stages.
        """
        self._observer, self._request = observer, resolved.request
        self._last_latents = None
        if self.offloaded is not None:
            self.offloaded.begin_run(resolved.request.mode, resolved.weight_room_bytes)
        try:
            with torch.inference_mode(False), torch.no_grad():
                pipeline = self.pipeline if resolved.picture is None else self.image_to_image
                pixels = pipeline(**_arguments(resolved, pipeline)).images
            self._enter(Stage.DECODER)  # for pipelines that decode in another way
            return self._checked(numpy.asarray(pixels, dtype=numpy.float32))
        finally:
            self.pipeline.scheduler.forget()
            self._observer = self._request = None

    def _checked(self, pixels: numpy.ndarray) -> Pictures:
        good = numpy.isfinite(pixels).reshape(len(pixels), -1).all(axis=1)
        stage = "VAE"
        if self._last_latents is not None and not torch.isfinite(self._last_latents).all():
            stage = "denoiser"  # asked for itself: a VAE may turn NaN into a finite grey or black
            if len(self._last_latents) == len(pixels):
                good &= torch.isfinite(self._last_latents).flatten(1).all(dim=1).numpy()
            else:
                good[:] = False
        return Pictures(
            pixels[good],
            tuple(int(i) for i in numpy.flatnonzero(good)),
            {int(i): stage for i in numpy.flatnonzero(~good)},
            str(self.dtype).removeprefix("torch."),
        )

    def learn_colours(self, pictures: Pictures) -> None:
        """Let later previews learn from the pictures of the last run."""
        latents, indices = self._last_latents, list(pictures.indices)
        if latents is not None and self._colours.wants_more and indices and max(indices) < len(latents):
            self._colours.learn(latents[indices].float().numpy(), pictures.images)

    # -- what the pipeline tells while it runs ------------------------------------------------------------------------

    def _on_step(self, step: int, steps: int, latents: torch.Tensor, denoised: Callable[[], numpy.ndarray]) -> None:
        self._last_latents = latents
        if self._observer is not None and self._request is not None:
            preview = LatentPreview(denoised, self._request.width, self._request.height, self._colours)
            self._observer.on_step(step, steps, preview)

    def _encode_or_recall(self, encode_prompt: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._observer is None or self._request is None:
            return encode_prompt(*args, **kwargs)
        ran_as = (self._request.mode, self._request.placement, self.loras.applied)
        result, recalled = self.kept_text.encode(encode_prompt, args, kwargs, ran_as, self._observer.may_recall_text)
        if recalled:
            self._observer.text_was_recalled()
        return result

    def _enter(self, stage: Stage) -> None:
        if stage is not Stage.DENOISER:
            self.pipeline.scheduler.drain()
        if self._observer is not None:
            self._observer.enter(stage)

    def _announce(
        self,
        name: str,
        owner: Any,
        before: Stage,
        after: Stage | None = None,
        convert: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        """Note the stage whenever `owner.name` is called, on this one object, and convert its result."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def announced(*args: Any, **kwargs: Any) -> Any:
            self._enter(before)
            result = convert(original(*args, **kwargs))
            if after is not None:
                self._enter(after)
            return result

        setattr(owner, name, announced)


def _arguments(resolved: ResolvedRequest, pipeline: diffusers.DiffusionPipeline) -> dict[str, Any]:
    """What `pipeline` is called with, text to image or image to image."""
    request, picture = resolved.request, resolved.picture
    offered: dict[str, Any] = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt if resolved.guidance_on else None,
        "height": request.height,
        "width": request.width,
        "num_inference_steps": request.steps,
        guidance_argument(resolved.card.pipeline_class): DeviceScalar(request.guidance),
        "num_images_per_prompt": request.batch,
        # Each picture has a generator of its own, on the CPU: the same noise on every device and in every batch.
        "generator": [torch.Generator("cpu").manual_seed(seed) for seed in request.seeds],
        "max_sequence_length": resolved.card.text_length,
        "use_resolution_binning": False,  # it would make another size and scale the picture
        "output_type": "np",
    }
    if picture is not None:
        # Once for each picture of a batch, else some classes encode it with the first generator alone.
        offered["image"] = [picture.fitted(request.width, request.height)] * request.batch
        offered["strength"] = request.strength
    taken = inspect.signature(pipeline.__call__).parameters
    return {name: value for name, value in offered.items() if name in taken}


def _decoded_on_host(decoded: Any) -> Any:
    """The VAE's pictures on the host: what the pipeline does to them there compiles nothing and clamps no NaN away.

    It would clamp infinity to white or black, so that becomes NaN.
    """

    def on_host(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        return part.cpu().nan_to_num(nan=torch.nan, posinf=torch.nan, neginf=torch.nan)

    if isinstance(decoded, tuple):
        return tuple(map(on_host, decoded))
    return type(decoded)(**{name: on_host(part) for name, part in decoded.items()})
