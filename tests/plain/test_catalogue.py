"""The list of models, the ways to name one, and what is derived from a folder that nobody has described."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.plain.folders import safetensors_bytes, write_folder
from tpu_ui.catalogue import CATALOGUE, GuidanceKind, card_from_folder, complete_card, find_card
from tpu_ui.errors import InvalidRequest, UnknownModel, UnusableModel
from tpu_ui.model_card import card_of_unseen_repository
from tpu_ui.model_folder import inspect_folder
from tpu_ui.pipeline_kinds import PIPELINE_KINDS, TEXT_TO_IMAGE_CLASSES

FOLDER_OF_CARD = {
    "flux.1-schnell": ("flux", {"guidance_embeds": False}),
    "flux.1-dev": ("flux", {"guidance_embeds": True}),
    "flux.2-dev": ("flux2", {}),
    "flux.2-klein-4b": ("flux2-klein", {}),
    "flux.2-klein-9b": ("flux2-klein", {}),
    "sdxl": ("sdxl", {}),
    "sd3.5-medium": ("sd3", {}),
    "sd3.5-large": ("sd3", {}),
    "sd3.5-large-turbo": ("sd3", {}),
    "z-image-turbo": ("z-image", {}),
    "qwen-image": ("qwen-image", {}),
    "sana": ("sana", {}),
}
# Distilled to run without guidance, which no file of their folders says.
DISTILLED_IN_SILENCE = ("sd3.5-large-turbo", "z-image-turbo")
WITH_T5 = {"text_encoder_3": ["transformers", "T5EncoderModel"]}


def derived(root: Path, kind: str = "sd3", configs=None, index=None):
    return card_from_folder(inspect_folder(write_folder(root, kind, configs, index)))


# --- The list


def test_ids_and_repositories_are_there_once():
    assert len({card.id.casefold() for card in CATALOGUE}) == len(CATALOGUE)
    repositories = [card.repo_id for card in CATALOGUE if card.repo_id]
    assert len(set(repositories)) == len(repositories)
    assert {"demo", "flux.1-schnell", "flux.1-dev", "sd3.5-medium", "sdxl"} <= {card.id for card in CATALOGUE}


@pytest.mark.parametrize("card", CATALOGUE, ids=lambda card: card.id)
def test_cards_agree_with_their_pipeline_class(card):
    kind = PIPELINE_KINDS[card.pipeline_class]
    assert card.pipeline_class in TEXT_TO_IMAGE_CLASSES
    assert card.takes_negative_prompt == (kind.takes_negative_prompt and card.guidance_kind is not GuidanceKind.NONE)
    assert card.denoiser_sees_only_token_count == kind.denoiser_sees_only_token_count
    assert (card.ladder.sizes[0].width, card.ladder.sizes[0].height) == (card.default_width, card.default_height)
    assert card.link
    assert card.licence
    assert card.tested


@pytest.mark.parametrize("card_id", FOLDER_OF_CARD)
def test_the_list_agrees_with_what_a_folder_of_that_model_says(tmp_path, card_id):
    kind, config = FOLDER_OF_CARD[card_id]
    index = WITH_T5 if kind == "sd3" else {}
    card = find_card(card_id)
    found = derived(tmp_path, kind, {"unet" if kind == "sdxl" else "transformer": config}, index)
    names = ["pipeline_class", "dtype", "default_width", "default_height", "text_length"]
    if card_id not in DISTILLED_IN_SILENCE:
        names += ["guidance_kind", "takes_negative_prompt"]
    for name in names:
        assert getattr(found, name) == getattr(card, name), name
    assert found.size_rule.multiple == card.size_rule.multiple


@pytest.mark.parametrize("card", CATALOGUE, ids=lambda card: card.id)
def test_the_readmes_table_agrees_with_the_list(card):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| [`{card.id}`]({card.link}) |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    guidance = card.guidance_kind.value.replace("_", "-")
    if card.guidance_kind is not GuidanceKind.NONE:
        guidance += f", {card.default_guidance:g}"
    assert cells[1:] == [
        card.pipeline_class.removesuffix("Pipeline"),
        str(card.default_steps),
        guidance,
        str(card.text_length),
        str(card.size_rule.multiple),
        card.licence + ", gated" * card.gated,
        "small" if card.tested.startswith("small") else card.tested,
    ]


def test_every_card_of_the_hub_is_compared_with_a_folder():
    assert {card.id for card in CATALOGUE if card.repo_id} == set(FOLDER_OF_CARD)


@pytest.mark.parametrize("card", CATALOGUE, ids=lambda card: card.id)
@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1000, 1000), (1023, 1025), (0, 1024), (1024, -64)])
def test_sizes_off_the_grid_are_refused_with_their_neighbours(card, width, height):
    rule = card.size_rule
    if rule.allows(width, height):
        assert (width % rule.multiple, height % rule.multiple) == (0, 0)
        return
    with pytest.raises(InvalidRequest, match=r"^(width|height): ") as caught:
        rule.check(width, height)
    for side in (width, height):
        if rule.min_side < side < rule.max_side and side % rule.multiple:
            for neighbour in rule.neighbours(side):
                assert str(neighbour) in str(caught.value)


def test_the_demos_card_agrees_with_its_folder():
    card = find_card("demo")
    found = card_from_folder(inspect_folder(card.folder))
    for name in ("pipeline_class", "size_rule", "default_width", "default_height", "guidance_kind", "text_length"):
        assert getattr(found, name) == getattr(card, name), name


# --- Naming a model


@pytest.mark.parametrize(
    ("name", "card_id"),
    [
        ("demo", "demo"),
        ("DEMO", "demo"),
        (" flux.1-Schnell ", "flux.1-schnell"),
        ("black-forest-labs/FLUX.1-dev", "flux.1-dev"),
        ("stabilityai/Stable-Diffusion-3.5-Medium", "sd3.5-medium"),
    ],
)
def test_catalogued_models_are_found_by_id_and_repository(name, card_id):
    assert find_card(name).id == card_id


def test_a_folder_is_found_by_any_path_to_it(tmp_path, monkeypatch):
    write_folder(tmp_path / "sub" / "my_model", "flux")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "sub" / "my_model"), "my_model", "./my_model", "../sub/my_model", "~/sub/my_model"):
        card = find_card(name)
        assert (card.id, card.repo_id, card.pipeline_class) == ("my_model", None, "FluxPipeline")
    monkeypatch.chdir(tmp_path)
    assert find_card("sub/my_model").folder is not None  # looks like org/name, but it is there
    assert find_card("sub/other").repo_id == "sub/other"


def test_two_folders_with_the_same_content_have_the_same_revision(tmp_path):
    first, second = derived(tmp_path / "a"), derived(tmp_path / "b")
    assert first.revision == second.revision
    assert len(first.revision) == 16


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "~nobody-at-all/x"])
def test_a_path_without_a_folder_is_said_to_be_missing(name):
    with pytest.raises(UnusableModel, match="no such folder"):
        find_card(name)


def test_a_repository_outside_the_list_is_incomplete_until_its_folder_is_there(tmp_path):
    card = find_card("org/name")
    assert not card.is_complete
    assert (card.repo_id, card.pipeline_class, card.link) == ("org/name", None, "https://huggingface.co/org/name")
    complete = complete_card(card, inspect_folder(write_folder(tmp_path, "flux")), revision="c0ffee")
    assert complete.is_complete
    assert (complete.id, complete.repo_id, complete.revision) == ("org/name", "org/name", "c0ffee")
    assert (complete.pipeline_class, complete.default_steps, complete.folder) == ("FluxPipeline", 4, tmp_path)


def test_a_catalogued_model_keeps_its_own_figures(tmp_path):
    folder = inspect_folder(write_folder(tmp_path, "flux", {"transformer": {"guidance_embeds": True}}))
    card = find_card("flux.1-dev")
    assert complete_card(card, folder) == replace(card, folder=tmp_path, revision=folder.fingerprint)
    with pytest.raises(UnusableModel, match=r"should be a StableDiffusionXLPipeline, but .* holds a FluxPipeline"):
        complete_card(find_card("sdxl"), folder)


@pytest.mark.parametrize("name", ["flux2-dev", "FLUX 2 dev", "flux.2_dev", "black-forest-labs/flux.2-DEV"])
def test_dots_and_dashes_may_be_left_out(name):
    assert find_card(name).id == "flux.2-dev"
    assert find_card(f"{name}@main").id == "flux.2-dev@main"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flux", ["There is no model 'flux'", "flux.1-schnell", "flux.1-dev", "org/name"]),
        ("flux.1-schnel", ["Did you mean flux.1-schnell"]),
        ("sd3", ["Did you mean sd3.5-medium"]),
        ("dmeo", ["Did you mean demo"]),
        ("", ["There is no model ''"]),
        ("a/b/c", ["There is no model 'a/b/c'"]),
        ("org/na--me", ["There is no model"]),
        ("org/..", ["There is no model"]),
        ("org/name.git", ["There is no model"]),
        ("-org/name", ["There is no model"]),
        ("org/" + "n" * 97, ["There is no model"]),
        ("org/naïve", ["There is no model"]),
        ("org/name\n", []),
        ("\0", ["There is no model"]),
        ("x" * 100_000, ["There is no model"]),
        ("https://huggingface.co/org/name", ["not fetched from addresses", "Give org/name instead"]),
        ("https://huggingface.co/org/name/tree/main?x=1", ["Give org/name instead"]),
        ("http://10.0.0.1/model", ["not fetched from addresses"]),
        ("file:///etc/passwd", ["not fetched from addresses"]),
        ("s3://bucket/model", ["not fetched from addresses"]),
    ],
)
def test_other_names_are_refused_with_the_ways_to_name_a_model(name, said):
    if not said:
        assert find_card(name).repo_id == name.strip()
        return
    with pytest.raises(UnknownModel) as caught:
        find_card(name)
    for words in said:
        assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=40))
@example("~\0")
@example("./\0")
@example("./\ud800")
@example(".")
def test_any_name_gives_a_card_or_a_sentence(name):
    try:
        card = find_card(name)
    except (UnknownModel, UnusableModel):
        return
    assert card.is_complete or card.repo_id == name.strip()


# --- Derived from a folder


def test_sizes_of_stable_diffusion_3_follow_its_patches_and_position_table(tmp_path):
    card = derived(tmp_path / "real")
    assert (card.size_rule.multiple, card.size_rule.max_side) == (16, 4096)
    small = {"transformer": {"pos_embed_max_size": 64, "sample_size": 32}, "vae": {"block_out_channels": [8, 16]}}
    card = derived(tmp_path / "small", configs=small)
    assert (card.size_rule.multiple, card.size_rule.max_side) == (4, 64 * 2 * 2)
    assert (card.default_width, card.default_height) == (64, 64)
    with pytest.raises(InvalidRequest, match="limit of 256"):
        card.size_rule.check(260, 64)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        *((kind, ("1072 or 1088", "992 or 1008")) for kind in ("flux", "sd3", "flux2", "z-image", "qwen-image")),
        ("sana", ("1056 or 1088", "992 or 1024")),
        ("sdxl", (None, None)),
    ],
)
def test_a_folder_has_its_own_grid(tmp_path, kind, said):
    rule = derived(tmp_path, kind).size_rule
    for (width, height), neighbours in zip([(1920, 1080), (1000, 1000)], said, strict=True):
        if neighbours is None:
            rule.check(width, height)
            continue
        with pytest.raises(InvalidRequest, match=neighbours):
            rule.check(width, height)


def test_without_t5_the_text_is_as_long_as_clips_tokenizer_says(tmp_path):
    assert derived(tmp_path / "t5", index=WITH_T5).text_length == 256
    assert derived(tmp_path / "clip").text_length == 77
    assert derived(tmp_path / "short", configs={"tokenizer": {"model_max_length": 32}}).text_length == 32
    for i, odd in enumerate((10**30, 0, -1, "77", None, True, 1e30)):
        assert derived(tmp_path / str(i), configs={"tokenizer": {"model_max_length": odd}}).text_length == 77


def test_guidance_of_flux_follows_its_configuration(tmp_path):
    schnell = derived(tmp_path / "schnell", "flux")
    dev = derived(tmp_path / "dev", "flux", {"transformer": {"guidance_embeds": True}})
    assert (schnell.guidance_kind, schnell.default_steps, schnell.text_length) == (GuidanceKind.NONE, 4, 256)
    assert (dev.guidance_kind, dev.default_guidance, dev.text_length) == (GuidanceKind.DISTILLED, 3.5, 512)
    assert not schnell.takes_negative_prompt
    assert schnell.denoiser_sees_only_token_count


def test_an_unet_with_guidance_built_in_takes_no_negative_prompt(tmp_path):
    assert derived(tmp_path / "usual", "sdxl").guidance_kind is GuidanceKind.CLASSIFIER_FREE
    card = derived(tmp_path / "lcm", "sdxl", {"unet": {"time_cond_proj_dim": 256}})
    assert card.guidance_kind is GuidanceKind.DISTILLED
    assert not card.takes_negative_prompt


@pytest.mark.parametrize(
    ("vae", "index", "multiple"),
    [
        ({"block_out_channels": [8, 16, 32, 64]}, {}, 8),
        ({"block_out_channels": [8, 16]}, {}, 8),  # the pipeline asks for 8 all the same
        ({"block_out_channels": [8] * 5}, {}, 16),
        ({"block_out_channels": "broken"}, {}, 8),
        ({"encoder_block_out_channels": [8] * 6}, {"vae": ["diffusers", "AutoencoderDC"]}, 32),
        ({"temperal_downsample": [False, True, True]}, {"vae": ["diffusers", "AutoencoderKLQwenImage"]}, 8),
    ],
)
def test_the_grid_of_an_unet_pipeline_is_never_finer_than_its_autoencoder(tmp_path, vae, index, multiple):
    assert derived(tmp_path, "sdxl", {"vae": vae}, index).size_rule.multiple == multiple


@pytest.mark.parametrize(
    ("sample_size", "size"),
    [(64, (512, 512)), ([64, 96], (768, 512)), (None, (1024, 1024)), (10**9, (1024, 1024)), ([1], (1024, 1024))],
)
def test_the_default_size_is_that_of_the_denoiser(tmp_path, sample_size, size):
    card = derived(tmp_path, "sdxl", {"unet": {"sample_size": sample_size}})
    assert (card.default_width, card.default_height) == size
    assert (card.ladder.sizes[0].width, card.ladder.sizes[0].height) == size


@pytest.mark.parametrize("vae", [{"block_out_channels": [8] * 9}, {"block_out_channels": [8] * 10_000}])
def test_a_grid_that_no_model_has_is_refused(tmp_path, vae):
    with pytest.raises(UnusableModel, match="multiples of"):
        derived(tmp_path, configs={"vae": vae})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    patch=st.integers(-2, 200) | st.none() | st.text(max_size=2),
    sample=st.integers(-2, 10**6) | st.lists(st.integers(-1, 300), max_size=3) | st.none(),
    table=st.integers(-2, 10**6) | st.none() | st.floats(),
    blocks=st.integers(0, 9),
)
def test_any_figures_give_a_sound_card_or_a_sentence(tmp_path, patch, sample, table, blocks):
    transformer = {"patch_size": patch, "sample_size": sample, "pos_embed_max_size": table}
    configs = {"transformer": transformer, "vae": {"block_out_channels": [8] * blocks}}
    try:
        card = derived(tmp_path, "sd3", configs)
    except UnusableModel as error:
        assert str(error).count("multiples of") == 1  # noqa: PT017 - a card is as right an outcome
        return
    card.size_rule.check(card.default_width, card.default_height)


@pytest.mark.parametrize("pipeline_class", sorted(TEXT_TO_IMAGE_CLASSES))
def test_every_text_to_image_class_gives_a_card(tmp_path, pipeline_class):
    card = derived(tmp_path, "flux", index={"_class_name": pipeline_class})
    assert card.pipeline_class == pipeline_class
    assert card.ladder.sizes


def test_the_most_common_float_type_is_reported(tmp_path):
    root = write_folder(tmp_path)
    (root / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(safetensors_bytes({"w": ("F16", (999,))}))
    assert card_from_folder(inspect_folder(root)).dtype == "float16"


def test_a_card_that_contradicts_itself_is_no_card():
    card = card_of_unseen_repository("org/name")
    for wrong in ({"default_width": 1001}, {"repo_id": None}, {"default_steps": 0}, {"text_length": 0}):
        with pytest.raises(ValueError, match="org/name"):
            replace(card, **wrong)
