"""Where a model fits: on one chip whole, by CPU offload, or only over several chips. Arithmetic; loads nothing."""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from tpu_ui.errors import DoesNotFit
from tpu_ui.hardware import GIB, TpuChip
from tpu_ui.placement import Placement
from tpu_ui.planner.activations import Load, activation_bytes, text_config
from tpu_ui.planner.parts import Part
from tpu_ui.request import MAX_BATCH, MAX_REQUEST_PIXELS

PROGRAM_BYTES = GIB
"""Room for compiled programs, which lie in a TPU's memory too. libtpu reports 0.03 GiB for FLUX.1's whole transformer,
0.50 GiB for SDXL's UNet and 0.46 GiB for the VAE decoder at 1024×1024."""

# Classes that diffusers 0.42.1 (hooks/tensor_parallel.py) and transformers 5.24 have a plan for.
TENSOR_PARALLEL_CLASSES = frozenset(
    {
        "FluxTransformer2DModel",
        "Flux2Transformer2DModel",
        "QwenImageTransformer2DModel",
        "Gemma2Model",
        "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3Model",
    }
)
_TENSOR_PARALLEL_DEGREES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Target:
    """The memory that is planned for.

    Attributes:
        name: of one device, as in "31.25 GiB of one v6e chip".
        bytes: of one device.
        devices: how many there are.
        program_bytes: kept free on each for compiled programs.
        unit: "chip", or "device" where a chip shows several.
        is_host: the device's memory is the host's, so that nothing is saved by CPU offload.
    """

    name: str
    bytes: int
    devices: int = 1
    program_bytes: int = 0
    unit: str = "chip"
    is_host: bool = False

    @classmethod
    def of_chips(cls, chip: TpuChip, chips: int = 1, available_bytes: int | None = None) -> "Target":
        """`available_bytes` is what the device reports, where it is open."""
        unit = "chip" if chip.devices_per_chip == 1 else "device"
        return cls(
            name=f"one {chip.name} {unit}",
            bytes=available_bytes or chip.available_hbm_bytes_per_device,
            devices=chips * chip.devices_per_chip,
            program_bytes=PROGRAM_BYTES,
            unit=unit,
        )


class Decision(StrEnum):
    """What the planner decides; the first two are placements of the same name."""

    SINGLE = "single"
    CPU_OFFLOAD = "cpu_offload"
    TENSOR_PARALLEL = "tensor_parallel"
    NOT_POSSIBLE = "not_possible"


@dataclass(frozen=True)
class Plan:
    """A model's memory under one load on one target. All figures are bytes of one device.

    Attributes:
        label: the model's name for people.
    """

    label: str
    parts: tuple[Part, ...]
    load: Load
    target: Target

    @cached_property
    def activations(self) -> dict[str, int]:
        """By part, while it runs."""
        return {part.name: activation_bytes(part, self.load) for part in self.parts}

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part in self.parts)

    @property
    def largest_activations(self) -> int:
        """The parts run one after another, in the same memory."""
        return max(self.activations.values(), default=0)

    @property
    def widest_part(self) -> Part:
        """The one that needs most while it is alone on the device."""
        return max(self.parts, key=lambda part: part.weight_bytes + self.activations[part.name])

    @property
    def single_bytes(self) -> int:
        """At the peak with all weights on one device."""
        return self.weight_bytes + self.largest_activations + self.target.program_bytes

    @property
    def offload_bytes(self) -> int:
        """At the peak with one part at a time on the device."""
        if self.target.is_host:
            return self.single_bytes
        widest = self.widest_part
        return widest.weight_bytes + self.activations[widest.name] + self.target.program_bytes

    @property
    def weight_room_bytes(self) -> dict[str, int]:
        """By part: what the weights of all parts may take on the device while it runs, under CPU offload."""
        host_copy = self.weight_bytes if self.target.is_host else 0
        rest = self.target.bytes - self.target.program_bytes - host_copy
        return {name: rest - activations for name, activations in self.activations.items()}

    def tensor_parallel_bytes(self, devices: int) -> int:
        """At the peak with transformer and text encoders split; activations count as if they were not."""
        weights = sum(bytes_of_each_device(part, devices) for part in self.parts)
        return weights + self.largest_activations + self.target.program_bytes

    def bytes_under(self, placement: Placement) -> int:
        """At the peak, under any placement but AUTO; under tensor parallel over all of the target's devices."""
        match placement:
            case Placement.CPU_OFFLOAD:
                return self.offload_bytes
            case Placement.TENSOR_PARALLEL:
                return self.tensor_parallel_bytes(self.target.devices)
        return self.single_bytes

    @cached_property
    def devices_needed(self) -> int | None:
        """The fewest devices over which tensor parallel fits, 2 to 16; None if none do, or no part can be split."""
        if self.target.is_host:
            return None
        for devices in _TENSOR_PARALLEL_DEGREES:
            if any(can_be_split(part, devices) for part in self.parts) and self._fits(
                self.tensor_parallel_bytes(devices)
            ):
                return devices
        return None

    @property
    def decision(self) -> Decision:
        if self._fits(self.single_bytes):
            return Decision.SINGLE
        if self.devices_needed is not None and self.devices_needed <= self.target.devices:
            return Decision.TENSOR_PARALLEL
        if self._fits(self.offload_bytes):
            return Decision.CPU_OFFLOAD
        return Decision.NOT_POSSIBLE

    @property
    def sentence(self) -> str:
        """The decision's reason, one sentence without a capital."""
        have = f"{gib(self.target.bytes)} of {self.target.name}"
        too_much = _too_much(self.weight_bytes, self.largest_activations, self.target)
        match self.decision:
            case Decision.SINGLE:
                return (
                    f"weights {gib(self.weight_bytes)} and {gib(self.largest_activations)} for activations fit {have}"
                )
            case Decision.CPU_OFFLOAD:
                widest = max(self.parts, key=lambda part: part.weight_bytes)
                return (
                    f"{too_much} > {have}; "
                    f"with CPU offload the largest component is {gib(widest.weight_bytes)} ({widest.name})"
                )
            case Decision.TENSOR_PARALLEL:
                each = gib(self.tensor_parallel_bytes(self.devices_needed))
                return (
                    f"{too_much} > {have}; "
                    f"tensor parallel over {self.devices_needed} {self.target.unit}s takes {each} of each"
                )
        if self.target.is_host:
            return f"{too_much} > {have}"
        widest = self.widest_part
        way_out, _ = self._way_out()
        alone = _too_much(widest.weight_bytes, self.activations[widest.name], self.target)
        return f"{widest.name} alone: {alone} > {have}; {way_out}"

    def check(self, placement: Placement) -> None:
        """Refuse, before anything is loaded, what one device cannot hold.

        Args:
            placement: AUTO stands for whichever fits.

        Raises:
            DoesNotFit: with the figures, and what to do.
        """
        if placement is Placement.AUTO:
            if self.placement is None:
                _, advice = self._way_out()
                raise DoesNotFit(f"{self.label} does not fit: {self.sentence}.", advice)
        elif not self._fits(self.bytes_under(placement)):
            _, advice = self._way_out()
            needed = gib(self.bytes_under(placement))
            raise DoesNotFit(
                f"Does not fit: needs {needed} of {gib(self.target.bytes)} of {self.target.name}.",
                "Try CPU offload." if placement is Placement.SINGLE and self._fits(self.offload_bytes) else advice,
            )

    @property
    def placement(self) -> Placement | None:
        """What AUTO means on one device; None where nothing fits it."""
        match replace(self, target=replace(self.target, devices=1)).decision:
            case Decision.SINGLE:
                return Placement.SINGLE
            case Decision.CPU_OFFLOAD:
                return Placement.CPU_OFFLOAD
        return None

    def largest_batch(self, placement: Placement) -> int:
        """How many pictures one run may make at most, under any placement but AUTO; 0 if not even one fits."""
        allowed = min(MAX_BATCH, MAX_REQUEST_PIXELS // (self.load.width * self.load.height))
        for batch in range(allowed, 0, -1):
            plan = replace(self, load=replace(self.load, batch=batch))
            if self._fits(plan.bytes_under(placement)):
                return batch
        return 0

    def run_batch(self, placement: Placement) -> int:
        """How many of the pictures one run makes: the most that fit and divide their number evenly.

        So all runs of a request have one shape, and compile one set of graphs: 4 pictures of which 3 fit are 2 runs of
        2, and 5 of which 4 fit are 5 runs of 1. At least 1, also where not even one fits.
        """
        pictures, most = self.load.batch, max(1, self.largest_batch(placement))
        return max(size for size in range(1, min(pictures, most) + 1) if pictures % size == 0)

    @property
    def of_one_picture(self) -> "Plan":
        """The same with one picture in a run: what decides whether a request can run, and where."""
        return replace(self, load=replace(self.load, batch=1))

    def _fits(self, needed_bytes: int) -> bool:
        return needed_bytes <= self.target.bytes

    def _weights_leave_room(self) -> bool:
        """Whether a smaller size could fit, by the placement that takes least."""
        weights = self.weight_bytes if self.target.is_host else self.widest_part.weight_bytes
        return weights + self.target.program_bytes < self.target.bytes

    def _way_out(self) -> tuple[str, str]:
        """What would make it fit: as the end of a sentence, and as advice."""
        one = self.of_one_picture
        if self.load.batch > 1 and one.placement is not None:
            most = self.largest_batch(one.placement)
            return (
                f"{most} of the {self.load.batch} pictures fit in one run",
                f"Ask for at most {most} picture(s) in one run, or a smaller size.",
            )
        if self._weights_leave_room():
            return "a smaller size takes less", "Ask for a smaller size, or choose a smaller model."
        if self.devices_needed is None:
            return "tensor parallel does not make it fit", "Choose a smaller model."
        return (
            f"it needs tensor parallel over {self.devices_needed} {self.target.unit}s",
            f"Choose a smaller model, or start app.py with --tensor-parallel {self.devices_needed}.",
        )


def gib(count: int) -> str:
    """Bytes in GiB, the unit of a chip's memory: "31.25 GiB"; small ones in MiB."""
    if count < GIB / 10:
        return f"{count / 2**20:.3g} MiB"
    return f"{count / GIB:.2f}".rstrip("0").rstrip(".") + " GiB"


def _too_much(weight_bytes: int, activations: int, target: Target) -> str:
    """The left side of "a > b": the weights where they alone are too much, else all that is needed."""
    if weight_bytes > target.bytes:
        return f"weights {gib(weight_bytes)}"
    programs = f" and {gib(target.program_bytes)} for programs" if target.program_bytes else ""
    return f"weights {gib(weight_bytes)}, {gib(activations)} for activations{programs}"


def can_be_split(part: Part, devices: int) -> bool:
    """Whether tensor parallel splits a part over so many devices; else each of them has it whole."""
    heads = [text_config(part).get(key) for key in ("num_attention_heads", "num_key_value_heads")]
    return part.class_name in TENSOR_PARALLEL_CLASSES and all(
        count % devices == 0 for count in heads if type(count) is int
    )


def bytes_of_each_device(part: Part, devices: int) -> int:
    """A part's weights on each of the devices of a tensor parallel group."""
    return part.weight_bytes // (devices if can_be_split(part, devices) else 1)
