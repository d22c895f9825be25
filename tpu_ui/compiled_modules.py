"""Which modules of a pipeline torch.compile takes, and how a mode is put on and taken off again."""

from collections.abc import Callable, Iterator

import diffusers
import torch

from tpu_ui.modes import ExecutionMode
from tpu_ui.placement import Placement

DENOISER_NAMES = ("transformer", "transformer_2", "unet")


def denoisers(pipeline: diffusers.DiffusionPipeline) -> dict[str, torch.nn.Module]:
    """The pipeline's transformer or UNet; some have two."""
    found = {name: getattr(pipeline, name, None) for name in DENOISER_NAMES}
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Module)}


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks that a model repeats, which are worth compiling once for all of them.

    diffusers names their classes in `_repeated_blocks`; where it names none (SD3), in `_no_split_modules`; where it
    names neither, they are the members of the module lists that hold several modules of one class.
    """
    names = getattr(module, "_repeated_blocks", None) or getattr(module, "_no_split_modules", None) or ()
    named = [block for block in module.modules() if type(block).__name__ in names]
    return _outermost(named) or _outermost(list(_members_of_uniform_lists(module)))


def _members_of_uniform_lists(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.modules():
        if isinstance(child, torch.nn.ModuleList) and len(child) > 1 and len({type(block) for block in child}) == 1:
            yield from child


def _outermost(blocks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    return [block for block in blocks if id(block) not in inner]


def modules_to_compile(pipeline: diffusers.DiffusionPipeline, placement: Placement) -> list[torch.nn.Module]:
    """What compile mode compiles: the whole denoiser on one chip and under tensor parallel; under CPU offload its
    repeated blocks, since accelerate's hooks cannot be traced.

    Not the VAE and the text encoders: the fused eager mode around the compiled modules makes as few graphs of them (a
    tiny FLUX.1: 7 with and without the decoder compiled), while TorchTPU 0.2.0 refuses the decoder's group_norm after
    an attention, and Dynamo the encoders that return hidden states.
    """
    chosen: list[torch.nn.Module] = []
    for module in denoisers(pipeline).values():
        chosen += repeated_blocks(module) if placement is Placement.CPU_OFFLOAD else [module]
    return chosen


class CallSwitch:
    """Puts an execution mode on a pipeline's modules. One for a pipeline and placement.

    torch.nn.Module calls `_compiled_call_impl` instead of its own `_call_impl` where it is set (Module.compile sets
    it). That one place serves twice here: for the compiled function, and to note when the denoiser is first called.

    Args:
        pipeline: placed already.
        compile_function: the runtime's torch.compile.
        on_denoiser_call: called before each call of a denoiser, outside every graph.
    """

    def __init__(
        self,
        pipeline: diffusers.DiffusionPipeline,
        placement: Placement,
        compile_function: Callable[[Callable], Callable],
        on_denoiser_call: Callable[[], None],
    ) -> None:
        self._denoisers = list(denoisers(pipeline).values())
        self._to_compile = modules_to_compile(pipeline, placement)
        self._compile_function = compile_function
        self._on_denoiser_call = on_denoiser_call
        self._compiled: dict[torch.nn.Module, Callable] = {}

    def set(self, mode: ExecutionMode) -> None:
        """From now on the modules run in `mode`; nothing of another mode stays."""
        self.take_off()
        if mode is ExecutionMode.COMPILED:
            for module in self._to_compile:
                if module not in self._compiled:
                    self._compiled[module] = self._compile_function(module._call_impl)
                module._compiled_call_impl = self._compiled[module]
        for module in self._denoisers:
            call = module._compiled_call_impl or module._call_impl
            module._compiled_call_impl = self._noting(call, isinstance(module, diffusers.SD3Transformer2DModel))

    def take_off(self) -> None:
        """Leave the modules as they were; what was compiled is kept for the next time."""
        for module in {*self._to_compile, *self._denoisers}:
            module._compiled_call_impl = None

    def _noting(self, call: Callable, is_sd3: bool) -> Callable:
        def noted(*args: object, **kwargs: object) -> object:
            self._on_denoiser_call()
            if is_sd3 and 0 in kwargs["timestep"].stride():
                # Text to image clones it on a TPU, image to image leaves it expanded: to a graph that is another input.
                kwargs["timestep"] = kwargs["timestep"].clone()
            return call(*args, **kwargs)

        return noted


def move_tables(module: torch.nn.Module, device: torch.device) -> None:
    """Move the tables of rotary embeddings that a denoiser holds as plain attributes, which no `to` reaches.

    TorchTPU 0.2.0 fails on a compiled graph that moves such a table itself ("expected tensor to be on tpu, got cpu").
    """
    for part in module.modules():
        own_objects = [value for value in vars(part).values() if type(value).__module__ == type(part).__module__]
        for holder in (part, *(value for value in own_objects if not isinstance(value, torch.nn.Module))):
            for name, value in vars(holder).items():
                if isinstance(value, torch.Tensor):
                    setattr(holder, name, value.to(device))
                elif isinstance(value, list) and value and all(isinstance(each, torch.Tensor) for each in value):
                    setattr(holder, name, [each.to(device) for each in value])


def make_group_norm_inputs_contiguous(module: torch.nn.Module) -> None:
    """Work around TorchTPU 0.2.0, which lowers group_norm to a view: on the permuted strides that a VAE's attention
    returns it fails ("cannot create a view of shape ...") when a batch has more than one picture.
    """
    for part in module.modules():
        if isinstance(part, torch.nn.GroupNorm):
            part.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(), *inputs[1:]))
