"""A schedule on the host gives what the scheduler itself gives, for every scheduler of diffusers that can be asked."""

import inspect

import diffusers
import numpy
import pytest
import torch

from tpu_ui.device_scalar import DeviceScalar
from tpu_ui.schedule import HostScheduler, HostTimesteps, keep_on_host

# Those that run without extra packages and follow the usual contract, step(model_output, timestep, sample).
SCHEDULERS = """
    CMStochasticIterative CogVideoXDDIM DDIM DDIMInverse DDIMParallel DDPM DDPMParallel DEISMultistep
    DPMSolverMultistep DPMSolverMultistepInverse DPMSolverSinglestep EDMDPMSolverMultistep EDMEuler
    EulerAncestralDiscrete EulerDiscrete FlowMatchEulerDiscrete FlowMatchHeunDiscrete FlowMatchLCM HeunDiscrete IPNDM
    KDPM2AncestralDiscrete KDPM2Discrete LCM LMSDiscrete LTXEulerAncestralRF PNDM SASolver TCD UnCLIP UniPCMultistep
""".split()  # noqa: SIM905 - a list of words reads better so


def on_cpu(scheduler, on_step):
    return keep_on_host(scheduler, torch.device("cpu"), lambda: lambda: None, lambda: None, on_step)


def denoise(scheduler, steps: int = 5) -> torch.Tensor:
    """What a pipeline does with a scheduler, with a stand-in for the model."""
    scheduler.set_timesteps(steps, device="cpu")
    sample = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    sample = sample * getattr(scheduler, "init_noise_sigma", 1.0)
    extra = {}
    if "generator" in inspect.signature(scheduler.step).parameters:
        extra["generator"] = torch.Generator().manual_seed(1)
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, timestep) if hasattr(scheduler, "scale_model_input") else sample
        output = torch.tanh(scaled * 1.3 + timestep.float() * 1e-3)
        sample = scheduler.step(output, timestep, sample, **extra, return_dict=False)[0]
    if isinstance(scheduler, HostScheduler):
        scheduler.drain()
    return sample


@pytest.mark.parametrize("name", SCHEDULERS)
def test_same_result_as_the_plain_scheduler(name):
    scheduler_class = getattr(diffusers, f"{name}Scheduler")
    plain = denoise(scheduler_class())
    seen = []
    guesses = []

    def on_step(step, steps, latents, denoised):
        seen.append((step, steps))
        guesses.append((latents, denoised))

    hosted = on_cpu(scheduler_class(), on_step)
    result = denoise(hosted)
    assert torch.allclose(result, plain, rtol=1e-5, atol=1e-5 * plain.abs().max())
    assert seen == [(i + 1, len(hosted.timesteps)) for i in range(len(hosted.timesteps))]
    for latents, denoised in guesses:  # asked for after all steps: what a guess needs, it holds
        assert denoised().dtype == numpy.float32
        assert denoised().shape == latents.shape
        assert numpy.isfinite(denoised()).all()
    assert isinstance(hosted, scheduler_class)
    assert type(hosted).__name__ == scheduler_class.__name__


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscrete", "FlowMatchHeunDiscrete", "EulerDiscrete", "DDIM", "UniPC"])
def test_each_step_guesses_the_picture_without_its_noise(name):
    """With a model that knows the answer, every guess is the answer, however noisy the latents still are."""
    answer = torch.full((1, 4, 8, 8), 0.5)
    guesses, noise_left = [], []

    def on_step(_step, _steps, latents, denoised):
        guesses.append(denoised())
        noise_left.append(float((latents - answer).abs().mean()))

    scheduler_class = getattr(diffusers, {"UniPC": "UniPCMultistepScheduler"}.get(name, f"{name}Scheduler"))
    hosted = on_cpu(scheduler_class(), on_step)
    hosted.set_timesteps(6, device="cpu")
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    sample = noise * getattr(hosted, "init_noise_sigma", 1.0)
    for i, timestep in enumerate(hosted.timesteps):
        if name in ("DDIM", "UniPC"):  # their latents are answer and noise by shares whose squares sum to 1
            share = hosted.alphas_cumprod[timestep.long()]
            output = (sample - share.sqrt() * answer) / (1 - share).sqrt()
        else:
            output = (sample - answer) / hosted.sigmas[i]
        sample = hosted.step(output, timestep, sample, return_dict=False)[0]
    hosted.drain()
    assert len(guesses) == len(hosted.timesteps)
    assert max(noise_left) > 0.2
    assert max(abs(guess - 0.5).max() for guess in guesses) < 0.05


def test_a_hosted_scheduler_can_run_again_with_other_steps():
    hosted = keep_on_host(
        diffusers.EulerDiscreteScheduler(), torch.device("cpu"), lambda: lambda: None, lambda: None, lambda *_: None
    )
    first = denoise(hosted, 4)
    denoise(hosted, 9)
    assert torch.equal(denoise(hosted, 4), first)


def test_elements_of_the_schedule_are_device_scalars(runtime):
    loops = []
    timesteps = HostTimesteps.on(torch.tensor([3.0, 2.0, 1.0]), runtime.torch_device, loops.append)
    elements = list(timesteps)
    assert loops == [3], "told once, before the first element"
    assert [element.device.type for element in elements] == ["tpu"] * 3
    assert [float(element.cpu()) for element in elements] == [3.0, 2.0, 1.0]
    assert timesteps[1].device.type == "tpu"
    assert timesteps[1:].tolist() == [2.0, 1.0]
    assert (timesteps * 2).device.type == "cpu"
    assert len(timesteps) == 3


@pytest.mark.parametrize("operation", [lambda g, t: g * t, lambda g, t: t * g, lambda g, t: t + g, lambda g, t: g - t])
def test_a_device_scalar_computes_like_a_number_and_compiles_once(runtime, operation):
    tensor = torch.arange(4.0).to(runtime.torch_device)
    operation(DeviceScalar(1.25), tensor).cpu()
    before = runtime.counters().compiles
    for value in (2.0, 3.5, 7.0):
        assert torch.allclose(operation(DeviceScalar(value), tensor).cpu(), operation(value, tensor.cpu()))
    assert runtime.counters().compiles == before


def test_a_device_scalar_fills_without_compiling(runtime):
    before = runtime.counters().compiles
    for value in (1.0, 2.5, 4.0):
        filled = torch.full([2], DeviceScalar(value), device=runtime.torch_device, dtype=torch.float32)
        assert filled.device.type == "tpu"
        assert filled.cpu().tolist() == [value, value]
    assert runtime.counters().compiles == before


def test_a_device_scalar_is_a_number_among_numbers():
    scalar = DeviceScalar(2.5)
    assert (scalar > 1, scalar < 2, scalar == 2.5, scalar != 3) == (True, False, True, True)
    assert (scalar - 1, 1 - scalar, scalar * 2, scalar / 2, -scalar, float(scalar)) == (1.5, -1.5, 5.0, 1.25, -2.5, 2.5)
    assert f"{scalar:.1f}" == "2.5"
    assert torch.tensor(scalar - 1).item() == 1.5
