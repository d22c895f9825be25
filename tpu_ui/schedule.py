"""The denoising schedule kept on the host, so that no graph depends on the number of steps or on the guidance value.

TorchTPU makes Python numbers and the offsets of views part of a graph's fingerprint. A scheduler on the device
indexes its schedule and multiplies by numbers drawn from it, so each new step count compiles its arithmetic again; in
fused mode, and with a UNet, the whole model. Here the scheduler does its arithmetic on the host, on the few megabytes
of the latents, and hands the device tensors only. The arithmetic is diffusers' own, unchanged, for any of its
schedulers. Where it is a weighted sum, only the weights are found on the host; see affine_step.py.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch

from tpu_ui.affine_step import PROBE_LATENTS, PROBE_OUTPUT, Weights, is_affine
from tpu_ui.device_scalar import DeviceScalar

# (step done, steps in all, latents on the host, the latest guess of what they will be in the end, made when asked for)
StepListener = Callable[[int, int, torch.Tensor, Callable[[], numpy.ndarray]], None]

# Notes the end of all that the device was given so far; the answer waits for it.
Mark = Callable[[], Callable[[], None]]

_TENSOR_METHODS = ("add_noise", "scale_noise", "index_for_timestep", "get_velocity")


class HostTimesteps(torch.Tensor):
    """A schedule on the host whose single elements come out as tensors of their own on the device.

    A pipeline loops over the timesteps and feeds each to its model. An element of a device-side schedule is a view
    with an offset, and each offset is a new graph; these elements have none. All other operations give plain host
    tensors.

    Attributes:
        device_of_elements: where single elements come out.
        on_loop: called when a loop over the timesteps begins, with how many they are.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def on(timesteps: torch.Tensor, device: torch.device, on_loop: Callable[[int], None]) -> "HostTimesteps":
        wrapped = timesteps.detach().cpu().as_subclass(HostTimesteps)
        wrapped.device_of_elements = device
        wrapped.on_loop = on_loop
        return wrapped

    @property
    def plain(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def __getitem__(self, index: Any) -> torch.Tensor:
        picked = self.plain[index]
        if isinstance(index, int):
            return _device_scalar(picked, self.device_of_elements)
        return HostTimesteps.on(picked, self.device_of_elements, self.on_loop)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.on_loop(len(self))
        return (_device_scalar(element, self.device_of_elements) for element in self.plain.unbind())


def _device_scalar(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    scalar = value.clone().to(device)
    scalar.host_value = value  # spares the way back in step()
    return scalar


class HostScheduler:
    """Mixed into a scheduler's class by `keep_on_host`; see the module's text."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        method = super().set_timesteps
        arguments = inspect.signature(method).bind(*args, **kwargs)
        if "device" in inspect.signature(method).parameters:
            arguments.arguments["device"] = "cpu"
        self._host_state.start()
        method(*arguments.args, **arguments.kwargs)
        self._host_state.steps = len(self.timesteps)
        self.timesteps = HostTimesteps.on(self.timesteps, self._host_state.device, self._host_state.begin_loop)

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        state = self._host_state
        if is_affine(self, args, kwargs):
            return self._step_on_device(super().step, model_output, timestep, sample, **kwargs)
        host_sample = state.host_copy(sample)
        host_output = _to_host(model_output)
        result = self._on_host(super().step, host_output, _to_host(timestep), host_sample, *args, **kwargs)
        # Schedulers answer with a tuple or an output class, the next latents first.
        latents = result[0]
        on_device = {id(tensor): tensor.to(state.device) for tensor in _tensors_of(result)}
        denoised = _denoised(self, result, host_output, host_sample)
        state.finish_step(latents, on_device[id(latents)], denoised)
        if isinstance(result, tuple):
            return tuple(on_device.get(id(value), value) for value in result)
        return type(result)(**{name: on_device.get(id(value), value) for name, value in result.items()})

    def _step_on_device(
        self, step: Callable, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor]:
        """The next latents alone: no pipeline asks for more."""
        state = self._host_state
        probed = self._on_host(step, PROBE_OUTPUT, _to_host(timestep), PROBE_LATENTS, **kwargs)
        latents = Weights.read(probed[0], state.device).sum(sample, model_output).to(model_output.dtype)
        guess = _denoised(self, probed, PROBE_OUTPUT, PROBE_LATENTS)()
        state.send_step(_SentStep(sample, model_output, latents, torch.from_numpy(guess), state.mark()))
        return (latents,)

    def drain(self) -> None:
        """Wait for the step that the device was given last, and tell of it."""
        self._host_state.finish_sent()

    def forget(self) -> None:
        """Let go of a run that has ended or was cut: a step that was sent must not be told to the next one."""
        self._host_state.start()

    def _scale_on_host(self, sample: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Every scheduler of diffusers either returns the sample or multiplies it by one number; which one is asked
        # with a sample of ones, so that the real one need not leave the device.
        method = super().scale_model_input
        arguments = [_to_host(value) for value in args]
        named = {name: _to_host(value) for name, value in kwargs.items()}
        probe = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
        scaled = self._on_host(method, probe, *arguments, **named)
        if scaled is probe:
            return sample
        zero, factor, double = scaled.tolist()
        if zero == 0.0 and abs(double - 2 * factor) <= 1e-12 * abs(factor):
            return sample * torch.tensor(factor, dtype=torch.float32).to(sample.device)
        return self._on_host(method, sample.cpu(), *arguments, **named).to(sample.device)

    def _on_host(self, method: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a scheduler's own method with a plain schedule in place."""
        for_pipeline = self.timesteps
        self.timesteps = for_pipeline.plain if isinstance(for_pipeline, HostTimesteps) else for_pipeline
        try:
            return method(*args, **{name: _to_host(value) for name, value in kwargs.items()})
        finally:
            self.timesteps = for_pipeline


class _SentStep(NamedTuple):
    """A step that the device was given. `guess` holds what became of the probes in the guess of the last latents."""

    sample: torch.Tensor
    model_output: torch.Tensor
    latents: torch.Tensor
    guess: torch.Tensor
    wait: Callable[[], None]


class _HostState:
    """What a hosted scheduler remembers between steps: the latents of the last step, on both sides."""

    def __init__(self, device: torch.device, mark: Mark, on_loop: Callable[[], None], on_step: StepListener) -> None:
        self.device = device
        self.mark = mark
        self.on_step = on_step
        self._on_loop = on_loop
        self.start()

    def start(self) -> None:
        self.steps_done = self.steps = 0
        self.host_latents: torch.Tensor | None = None
        self._device_latents: torch.Tensor | None = None
        self._sent: _SentStep | None = None

    def begin_loop(self, steps: int) -> None:
        self.steps = steps  # image to image leaves out the first of the schedule
        self._on_loop()

    def host_copy(self, sample: torch.Tensor) -> torch.Tensor:
        return self.host_latents if sample is self._device_latents and self.host_latents is not None else sample.cpu()

    def send_step(self, step: _SentStep) -> None:
        """The device has one step more to do. The one before is waited for, so that what is told has happened."""
        if self.host_latents is None:
            # At one place in every run, however many steps it has: reading what has no plain strides takes a graph
            # (FLUX.2), and another one at another place.
            self.host_latents, self._device_latents = step.sample.cpu(), step.sample
        before, self._sent = self._sent, step
        self._finish(before)
        if self.device.type != "tpu":  # a CPU has done it already, and CUDA's copies would wait for it in the stream
            self.finish_sent()

    def finish_sent(self) -> None:
        before, self._sent = self._sent, None
        self._finish(before)

    def _finish(self, step: _SentStep | None) -> None:
        if step is None:
            return
        step.wait()
        sample, output = self.host_copy(step.sample), step.model_output.cpu()
        weights = Weights.read(step.guess, torch.device("cpu"))
        self.finish_step(step.latents.cpu(), step.latents, lambda: weights.sum(sample, output.float()).numpy())

    def finish_step(
        self, host_latents: torch.Tensor, device_latents: torch.Tensor, denoised: Callable[[], numpy.ndarray]
    ) -> None:
        self.host_latents, self._device_latents = host_latents, device_latents
        self.steps_done += 1
        self.on_step(self.steps_done, self.steps, host_latents, denoised)


def keep_on_host(
    scheduler: Any, device: torch.device, mark: Mark, on_loop: Callable[[], None], on_step: StepListener
) -> Any:
    """A copy of a diffusers scheduler that keeps its schedule and its arithmetic on the host.

    Args:
        scheduler: any scheduler of diffusers.
        device: where the pipeline's tensors live.
        mark: see `runtime.Runtime.mark`.
        on_loop: called when the pipeline begins its loop over the timesteps.
        on_step: called after each step, on the device thread; it may raise to end the run. The last step of a loop may
            wait for `drain`.

    Returns:
        A scheduler of a subclass of `type(scheduler)`, of the same name and configuration.
    """
    hosted = copy.copy(scheduler)
    hosted._host_state = _HostState(device, mark, on_loop, on_step)
    hosted.__class__ = _hosted_class(type(scheduler))
    return hosted


@functools.cache
def _hosted_class(scheduler_class: type) -> type:
    members: dict[str, Any] = {}
    # Pipelines read step()'s signature to learn which arguments it takes.
    for name in ("step", "set_timesteps"):
        members[name] = _with_signature(getattr(HostScheduler, name), getattr(scheduler_class, name))
    if hasattr(scheduler_class, "scale_model_input"):  # flow matching does without
        members["scale_model_input"] = _with_signature(HostScheduler._scale_on_host, scheduler_class.scale_model_input)
    for name in _TENSOR_METHODS:
        if hasattr(scheduler_class, name):
            members[name] = _tensor_method(getattr(scheduler_class, name))
    # As an attribute it is a constant of the class; as a property it follows the schedule, that is, the step count.
    initial_sigma = getattr(scheduler_class, "init_noise_sigma", None)
    if isinstance(initial_sigma, property):
        members["init_noise_sigma"] = property(lambda self: DeviceScalar(self._on_host(initial_sigma.fget, self)))
    return type(scheduler_class.__name__, (HostScheduler, scheduler_class), members)


def _with_signature(method: Callable, original: Callable) -> Callable:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return call


def _tensor_method(original: Callable) -> Callable:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._on_host(functools.partial(original, self), *(_to_host(value) for value in args), **kwargs)
        return result.to(self._host_state.device) if isinstance(result, torch.Tensor) else result

    return call


def _denoised(
    scheduler: Any, result: Any, model_output: torch.Tensor, sample: torch.Tensor
) -> Callable[[], numpy.ndarray]:
    """The guess that a step implies of the latents without their noise, as float32 of their shape.

    Taken from the scheduler where it tells; for flow matching it is one product; else the noisy latents stand for it.
    """
    latents, *others = _tensors_of(result)
    config = scheduler.config
    if others and others[0].shape == latents.shape:  # pred_original_sample, in some schedulers called otherwise
        known = others[0]
    elif config.get("predict_x0") or str(config.get("algorithm_type")).endswith("++"):
        known = scheduler.model_outputs[-1]
    elif type(scheduler).__name__.startswith("FlowMatch"):
        sigma = scheduler.sigmas[scheduler.step_index - 1]
        return lambda: (sample.float() - sigma * model_output.float()).numpy()
    else:
        known = latents
    return lambda: known.float().numpy()


def _to_host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    host_value = getattr(value, "host_value", None)
    return value.cpu() if host_value is None else host_value


def _tensors_of(result: Any) -> list[torch.Tensor]:
    values = result if isinstance(result, tuple) else result.values()
    return [value for value in values if isinstance(value, torch.Tensor)]
