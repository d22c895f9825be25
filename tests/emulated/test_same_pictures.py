"""Equal requests give equal pictures, whatever ran between; test_catalogue_classes.py holds them to plain diffusers."""

import numpy


def test_switching_the_mode_leaves_no_trace(generate):
    def pixels(mode):
        return numpy.asarray(generate(mode=mode, seed=3).images[0])

    first = {mode: pixels(mode) for mode in ("strict", "compile", "fused")}
    for mode in ("fused", "strict", "compile", "strict", "fused"):
        assert (pixels(mode) == first[mode]).all(), mode


def test_no_block_stays_compiled_under_another_mode_or_placement(generate, manager):
    """Under CPU offload blocks are compiled, on one chip the whole denoiser: neither may stay for the other."""

    def compiled_parts() -> int:
        (loaded,) = [p for (model, _), p in manager._residency._pipelines.items() if model == "flux"]
        return sum(part._compiled_call_impl is not None for part in loaded.pipeline.transformer.modules())

    generate(model="flux", mode="compile", placement="cpu_offload")
    assert compiled_parts() > 1
    for mode, placement in (("strict", "single"), ("compile", "single"), ("fused", "cpu_offload")):
        generate(model="flux", mode=mode, placement=placement)
        assert compiled_parts() == 1, "the denoiser alone, which tells of its calls"


def test_seeds_and_prompts_matter(generate):
    one = numpy.asarray(generate(seed=1).images[0])
    assert (one == numpy.asarray(generate(seed=1).images[0])).all()
    assert (one != numpy.asarray(generate(seed=2).images[0])).any()
    assert (one != numpy.asarray(generate(seed=1, prompt="something else").images[0])).any()
    assert (one != numpy.asarray(generate(seed=1, negative_prompt="red").images[0])).any()
