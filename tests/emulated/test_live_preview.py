"""A picture can be seen while it forms; that costs no graph and changes nothing."""

import numpy
import pytest

from tpu_ui.events import Phase
from tpu_ui.request import GenerationRequest


@pytest.fixture
def watched(manager, tiny_models):
    """Run a request, and look at the preview after each step, as a page might; `look` makes nothing of it if False."""

    def run(model: str, look: bool = True, **fields: object):
        values = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 4, "seed": 3, **fields}
        request = GenerationRequest.from_mapping(values | {"model": str(tiny_models / model)})
        seen = []

        def emit(event):
            assert (event.preview is not None) == (event.step is not None and event.phase is not Phase.VERIFYING)
            if event.preview is not None and look:
                seen.append(event.preview.image)

        return manager.generate(request, emit, lambda: False), seen

    return run


def learning_anew(manager, model, monkeypatch, tmp_path):
    """From here on the loaded model's previews know nothing, whatever the kept cache of the tests has."""
    from tpu_ui.preview import LatentColours

    (loaded,) = [pipeline for identity, pipeline in manager._residency._pipelines.items() if identity[0] == model]
    monkeypatch.setattr(loaded, "_colours", LatentColours(tmp_path / "colours.npz"))


@pytest.mark.parametrize(
    ("model", "mode", "width"),
    [
        ("sd3", "strict", 64),
        ("sd3", "fused", 64),
        ("sd3", "compile", 64),
        ("flux", "compile", 96),
        ("sdxl", "compile", 64),
    ],
)
def test_previews_of_a_warm_shape_cost_no_graph_and_no_pixel(
    watched, manager, model, mode, width, monkeypatch, tmp_path
):
    shape = {"mode": mode, "width": width}
    watched(model, **shape)
    learning_anew(manager, model, monkeypatch, tmp_path)
    before = manager.runtime.counters().compiles
    first, seen = watched(model, **shape)
    assert seen == [None] * 4, "nothing was learnt before the first picture"
    result, seen = watched(model, **shape)
    unwatched, _ = watched(model, look=False, **shape)
    assert manager.runtime.counters().compiles == before
    assert result.report.was_warm
    assert result.images[0].tobytes() == first.images[0].tobytes() == unwatched.images[0].tobytes()

    assert len(seen) == 4
    sizes = {image.size for image in seen}
    assert len(sizes) == 1
    size = sizes.pop()
    assert size[0] * 64 == size[1] * width
    picture = numpy.asarray(result.images[0].resize(size), dtype=float)
    errors = [abs(numpy.asarray(image, dtype=float) - picture).mean() for image in seen]
    # Random weights map latents to colours in no linear way; still the last guess is nearer than the plain mean colour.
    assert errors[-1] < abs(picture - picture.mean(axis=(0, 1))).mean()
    assert errors[-1] < errors[0]


def test_a_batch_is_seen_side_by_side(watched):
    watched("sd3", mode="compile")
    _, alone = watched("sd3", mode="compile")
    _, seen = watched("sd3", mode="compile", batch=3)
    width, height = alone[-1].size
    assert seen[-1].size == (2 * width, 2 * height)
    first = numpy.asarray(seen[-1].crop((0, 0, width, height)), dtype=int)
    assert abs(first - numpy.asarray(alone[-1])).max() <= 3


def test_what_was_learnt_is_found_again_by_model_and_revision(watched, manager):
    from tpu_ui.preview import LatentColours, colours_path

    result, _ = watched("sd3", mode="compile")
    resolved, _ = manager.foresee(result.request)
    kept = LatentColours(colours_path(manager.settings.previews_dir, resolved.card.id, resolved.revision))
    assert kept.paint(numpy.zeros((1, 4, 32, 32), numpy.float32), 64, 64) is not None
