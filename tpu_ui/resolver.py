"""Requests resolved against the models of this machine and one device, before torch is there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from tpu_ui import hardware
from tpu_ui.catalogue import find_card
from tpu_ui.errors import InvalidRequest
from tpu_ui.graphs import GraphKey, Stage
from tpu_ui.lora_files import HubLora, find_loras
from tpu_ui.model_card import ModelCard
from tpu_ui.modes import ExecutionMode, default_mode
from tpu_ui.placement import Placement
from tpu_ui.planner.models import plan_of
from tpu_ui.planner.parts import Part, dtype_on_device, parts_of_folder, published_parts
from tpu_ui.planner.plan import Plan, Target, bytes_of_each_device
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest, resolve
from tpu_ui.settings import Settings
from tpu_ui.source_picture import find_picture
from tpu_ui.sources import Fetching, ModelSource, find_model
from tpu_ui.tensor_parallel import check_group_loras, check_group_request, check_lone_request


def weight_bytes_on_device(source: ModelSource, device_kind: str, devices: int = 1) -> int:
    """Bytes of a model's weights in the data type in which it runs there, on each of the devices it is split over."""
    parts = parts_of_folder(source.folder, dtype_on_device(source.card.dtype, device_kind))
    return sum(part.weight_bytes if devices == 1 else bytes_of_each_device(part, devices) for part in parts)


class Resolver:
    """Stateless but for its settings; safe in any thread.

    Args:
        device_bytes: tells the memory of the device, once it is open; None before.
        group_devices: how many devices a tensor parallel group has; None where this process runs alone.
    """

    def __init__(
        self,
        device_kind: str,
        settings: Settings,
        default_model: str,
        device_bytes: Callable[[], int | None] = lambda: None,
        group_devices: int | None = None,
    ) -> None:
        self.device_kind = device_kind
        self.default_model = default_model
        self._settings = settings
        self._device_bytes = device_bytes
        self._group_devices = group_devices
        self._tpus = hardware.find_tpus() if device_kind == "tpu" else None

    def find(self, model: str, fetching: Fetching | None = None) -> ModelSource:
        """A model by its name; see `sources.find_model`."""
        return find_model(
            model, offline=self._settings.offline, hub_cache=self._settings.hub_cache_dir, fetching=fetching
        )

    def resolve(
        self, request: GenerationRequest, fetching: Fetching | None = None
    ) -> tuple[ResolvedRequest, ModelSource]:
        """Check a request against its model and the device's memory, and fill in the defaults.

        Args:
            fetching: a model of the Hub that is not on this machine is fetched; otherwise it is an error.

        Raises:
            TpuUiError: what is wrong, in a sentence.
            JobCancelled: `fetching.cancelled` said so.
        """
        request = replace(request, model=request.model or self.default_model)
        source = self.find(request.model, fetching)
        resolved = self._filled(request, source.card, source.revision)
        resolved = _with_picture(self._with_loras(resolved, fetching))
        return self._placed(resolved, parts_of_folder(source.folder, resolved.dtype)), source

    def graph_keys(self, resolved: ResolvedRequest, toolchain: dict[str, str]) -> dict[Stage, GraphKey]:
        """The graphs of a request; none where its mode compiles nothing on this device."""
        if not self.device_kind.startswith("tpu") and resolved.request.mode is not ExecutionMode.COMPILED:
            return {}
        return resolved.graph_keys(toolchain)

    def foresee_unseen(self, request: GenerationRequest) -> ResolvedRequest | None:
        """The same for a model that is not on this machine yet; None for one that is not in the catalogue.

        Raises:
            TpuUiError: the request cannot run.
        """
        card = find_card(request.model or self.default_model)
        if not card.is_complete:
            return None
        resolved = _with_picture(self._with_loras(self._filled(request, card, card.revision or ""), None))
        return self._placed(resolved, published_parts(card.repo_id, resolved.dtype) or ())

    def _with_loras(self, resolved: ResolvedRequest, fetching: Fetching | None) -> ResolvedRequest:
        def fetch(hub: HubLora) -> Path:
            from tpu_ui.hub_lora import find  # imports huggingface_hub, which a local LoRA does not need

            return find(hub, offline=self._settings.offline, hub_cache=self._settings.hub_cache_dir, fetching=fetching)

        folder = self._settings.lora_folder
        loras, notices = find_loras(resolved.request.loras, resolved.card.pipeline_class, folder, fetch)
        return replace(resolved, loras=loras, notices=resolved.notices + notices)

    def _filled(self, request: GenerationRequest, card: ModelCard, revision: str) -> ResolvedRequest:
        if self._group_devices is not None:
            check_group_loras(request)
        return resolve(
            request,
            card,
            revision=revision,
            dtype=dtype_on_device(card.dtype, self.device_kind),
            device_kind=self.device_kind,
            default_mode=default_mode(self.device_kind, self._settings.defer_and_fuse and self._group_devices is None),
        )

    def _placed(self, resolved: ResolvedRequest, parts: tuple[Part, ...]) -> ResolvedRequest:
        """Replace AUTO by what the planner decides, and refuse what cannot fit. One picture decides; of several, as
        many make one run as fit then.
        """
        if self._group_devices is None:
            check_lone_request(resolved.request)
        else:
            check_group_request(resolved.request, resolved.card.label, parts, self._group_devices)
            request = replace(resolved.request, placement=Placement.TENSOR_PARALLEL)
            resolved = replace(resolved, request=request, devices=self._group_devices)
        asked = resolved.request.placement
        plan = self._plan(resolved, parts)
        if plan is None:
            placement = Placement.SINGLE if asked is Placement.AUTO else asked
            return replace(resolved, request=replace(resolved.request, placement=placement))
        alone = plan.of_one_picture
        alone.check(asked)
        placement, reason = asked, ""
        if asked is Placement.AUTO:
            placement = alone.placement
            reason = f"Placed by CPU offload: {alone.sentence}." if placement is Placement.CPU_OFFLOAD else ""
        request, run_batch = replace(resolved.request, placement=placement), plan.run_batch(placement)
        notices = resolved.notices
        if run_batch < request.batch:
            pictures = "1 picture" if run_batch == 1 else f"{run_batch} pictures"
            notices += (f"{request.batch // run_batch} runs of {pictures}: {request.batch} do not fit at once.",)
        run = replace(plan, load=replace(plan.load, batch=run_batch))
        return replace(
            resolved,
            request=request,
            run_batch=run_batch,
            notices=notices,
            fits=True,
            placement_reason=reason,
            weight_room_bytes=run.weight_room_bytes,
        )

    def _plan(self, resolved: ResolvedRequest, parts: tuple[Part, ...]) -> Plan | None:
        """None where the device's memory, or what the model needs, is not known yet."""
        target = self._target()
        if target is None or not parts:
            return None
        return plan_of(resolved.card, parts, resolved.dtype, target, resolved.request, resolved.guidance_on)

    def _target(self) -> Target | None:
        """The one device of this process, or each of its group's."""
        reported = self._device_bytes()
        devices = self._group_devices or 1
        if self.device_kind in ("cpu", "tpu-emulated"):
            memory = reported or psutil.virtual_memory().total
            return Target("this machine's memory", memory, devices=devices, is_host=True)
        if self._tpus is not None:
            return replace(Target.of_chips(self._tpus.chip, available_bytes=reported), devices=devices)
        return None if reported is None else Target("this device", reported, devices=devices, unit="device")


def _with_picture(resolved: ResolvedRequest) -> ResolvedRequest:
    """Read the picture that the request starts from, if there is one."""
    request = resolved.request
    if request.image is None:
        return resolved
    picture = find_picture(request.image)
    if request.image_sha256 not in (None, picture.sha256):
        raise InvalidRequest(
            "image", f"it is not the picture asked for, whose SHA-256 is {request.image_sha256}.", "Give that one."
        )
    return replace(
        resolved,
        request=replace(request, image_sha256=picture.sha256),
        picture=picture,
        notices=resolved.notices + picture.notices(request.width, request.height),
    )
