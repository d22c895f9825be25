"""Equal requests give equal pictures, whatever ran between; test_catalogue_classes.py holds them to plain diffusers."""

import numpy


def test_switching_the_mode_leaves_no_trace(generate):
    def pixels(mode):
        return numpy.asarray(generate(mode=mode, seed=3).images[0])

    first = {mode: pixels(mode) for mode in ("strict", "compile", "fused")}
    for mode in ("fused", "strict", "compile", "strict", "fused"):
        assert (pixels(mode) == first[mode]).all(), mode


def test_seeds_and_prompts_matter(generate):
    one = numpy.asarray(generate(seed=1).images[0])
    assert (one == numpy.asarray(generate(seed=1).images[0])).all()
    assert (one != numpy.asarray(generate(seed=2).images[0])).any()
    assert (one != numpy.asarray(generate(seed=1, prompt="something else").images[0])).any()
    assert (one != numpy.asarray(generate(seed=1, negative_prompt="red").images[0])).any()


def test_no_compiled_block_stays_when_placement_and_mode_change(generate, manager):
    """Under CPU offload the blocks are compiled, on one chip the whole transformer."""
    generate(mode="compile", placement="cpu_offload")
    (loaded,) = [p for identity, p in manager._residency._pipelines.items() if identity[0] == "sd3"]
    blocks = loaded.pipeline.transformer.transformer_blocks
    assert all(block._compiled_call_impl for block in blocks)
    for mode in ("strict", "compile"):
        generate(mode=mode, placement="single")
        assert not any(block._compiled_call_impl for block in blocks)
