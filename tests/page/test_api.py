"""Every named endpoint, as other programs call it."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image

from tests.page.driver import GeneratePage
from tests.page.posts import arguments, functions, join, post, send
from tests.page.server import Server
from tpu_ui.recipe import read_recipe

MAX_SEED = 2**63 - 1


@pytest.fixture(scope="module")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(server.url, verbose=False, download_files=str(tmp_path_factory.mktemp("downloads")))


@pytest.fixture
def stranger(server: Server) -> Client:
    return Client(server.url, verbose=False)


def recipe_of(picture: str) -> dict:
    """The settings that stand in a downloaded PNG."""
    return read_recipe(Path(picture).read_bytes()).fields


def wait_for(client: Client, job: str, *states: str, seconds: float = 60) -> dict:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        status = client.predict(job=job, api_name="/status")
        if status["state"] in states:
            return status
        time.sleep(0.1)
    raise AssertionError(status)


def test_schema_has_the_names_of_a_request(client: Client):
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert set(endpoints) == {"/generate", "/verdict", "/warmup", "/status", "/cancel", "/models"}
    names = [parameter["parameter_name"] for parameter in endpoints["/generate"]["parameters"]]
    assert names == [
        "prompt", "negative_prompt", "model", "mode", "placement", "width", "height", "steps", "guidance", "seed",
        "batch", "loras", "image", "strength", "wait",
    ]  # fmt: skip
    assert all(parameter["parameter_has_default"] for parameter in endpoints["/generate"]["parameters"])


def test_generate_in_five_lines(server: Server):
    client = Client(server.url, verbose=False)
    pictures, report = client.predict("a red square", steps=3, seed=7, api_name="/generate")
    assert Image.open(pictures[0]).size == (64, 64)
    assert report["seeds"] == [7]
    assert report["ok"]
    assert recipe_of(pictures[0])["seed"] == 7


def test_verdict_and_report_agree(client: Client):
    client.predict(steps=2, api_name="/generate")
    verdict = client.predict(width=64, height=64, api_name="/verdict")
    assert verdict["state"] == "warm"
    assert verdict["compiles_expected"] == 0
    assert verdict["seconds_expected"] > 0
    assert verdict["runs"] >= 1
    assert verdict["fits"] is True
    _, report = client.predict(steps=5, api_name="/generate")
    assert report["state_before"] == "warm"
    assert report["was_warm"]
    assert report["new_compiles"] == 0


def test_verdict_of_a_cold_and_of_a_refused_size(client: Client):
    client.predict(steps=2, api_name="/generate")
    cold = client.predict(width=84, height=48, api_name="/verdict")
    assert cold["state"] == "cold"
    assert cold["nearest_warm"] == "64x64"
    refused = client.predict(width=63, height=64, api_name="/verdict")
    assert refused["state"] == "refused"
    assert "63 is not a multiple of 4" in refused["reason"]
    absent = client.predict(model="sdxl", api_name="/verdict")
    assert absent["state"] == "refused"
    assert "not on this machine" in absent["reason"]


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**53 + 1, MAX_SEED])
def test_seeds_are_used_as_given(client: Client, seed: int):
    pictures, report = client.predict(steps=1, seed=seed, api_name="/generate")
    assert report["seeds"] == [seed]
    assert recipe_of(pictures[0])["seed"] == seed


@pytest.mark.parametrize("seed", [-1, -5, None])
def test_seed_is_drawn(client: Client, seed: int | None):
    pictures, report = client.predict(steps=1, seed=seed, api_name="/generate")
    assert 0 <= report["seeds"][0] < 2**53
    assert recipe_of(pictures[0])["seed"] == report["seeds"][0]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"seed": 1.9}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**64 - 1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"width": 16384, "height": 16384}, "width"),
        ({"width": -64}, "width"),
        ({"width": 0, "height": 64}, "width"),
        ({"width": 1023, "height": 1025}, "width"),
        ({"width": "64"}, "width"),
        ({"batch": 100}, "batch"),
        ({"batch": 0}, "batch"),
        ({"steps": 100000}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"guidance": -1}, "guidance"),
        ({"guidance": "7"}, "guidance"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"mode": "quick"}, "mode"),
        ({"placement": "moon"}, "placement"),
        ({"model": 5}, "model"),
        ({"model": "no such model"}, "model"),
    ],
)
def test_wrong_values_are_refused_at_once(client: Client, server: Server, wrong: dict, field: str):
    compiled = server.metric("tpu_ui_graphs_compiled_total")
    started = time.monotonic()
    with pytest.raises(AppError) as refusal:
        client.predict(**wrong, api_name="/generate")
    assert time.monotonic() - started < 2
    assert field in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    assert server.metric("tpu_ui_graphs_compiled_total") == compiled


def test_long_prompt_says_what_is_cut(client: Client):
    prompt = "a plain grey wall, " * 400 + "and one red bicycle"
    client.predict("a wall", steps=1, api_name="/generate")
    pictures, report = client.predict(prompt, steps=1, api_name="/generate")
    assert recipe_of(pictures[0])["prompt"] == prompt
    assert any("cut off" in notice and "bicycle" in notice for notice in report["notices"]), report["notices"]
    assert report["new_compiles"] == 0


def test_a_job_has_an_id_and_can_be_read_again(client: Client):
    nothing, started = client.predict("later", steps=2, seed=1, wait=False, api_name="/generate")
    assert nothing == []
    status = wait_for(client, started["job"], "done")
    assert status["report"]["seeds"] == [1]
    assert Image.open(status["pictures"][0]).size == (64, 64)
    assert started["job"] in client.predict(api_name="/status")["jobs"]


def test_cancel_by_its_owner_only(client: Client, stranger: Client):
    _, slow = client.predict(width=192, height=192, batch=4, steps=200, wait=False, api_name="/generate")
    _, queued = client.predict(steps=2, wait=False, api_name="/generate")
    for endpoint in ("/cancel", "/status"):
        with pytest.raises(AppError, match="no such job"):
            stranger.predict(job=slow["job"], api_name=endpoint)
    assert client.predict(job=queued["job"], api_name="/cancel")["state"] == "cancelled"
    client.predict(job=slow["job"], api_name="/cancel")
    client.predict(job=slow["job"], api_name="/cancel")
    assert wait_for(client, slow["job"], "cancelled", "done")["state"] == "cancelled"
    assert stranger.predict(api_name="/status")["jobs"] == []
    assert client.predict(steps=2, api_name="/generate")[1]["ok"]


def test_warmup_in_the_background(client: Client):
    job = client.predict(width=52, height=80, api_name="/warmup")
    assert job["kind"] == "warm_up"
    done = wait_for(client, job["job"], "done", seconds=90)
    assert done["report"]["new_compiles"] > 0
    assert done["pictures"] == []
    assert client.predict(width=52, height=80, api_name="/verdict")["state"] == "warm"


def test_models(client: Client):
    models = client.predict(api_name="/models")
    assert models[0]["is_default"]
    assert models[0]["is_local"]
    assert "64x64" in models[0]["sizes"]
    assert {"demo", "flux.1-schnell", "sd3.5-medium", "sdxl"} <= {model["id"] for model in models}


def test_status_of_the_server(client: Client):
    status = client.predict(api_name="/status")
    assert status["device"] == "tpu-emulated"
    assert status["device_state"] == "ready"


def test_three_clients_at_once_get_their_own(page: GeneratePage, server: Server):
    """One uses the form, two the API: four pictures for each, with its own prompt and seed."""

    def by_api(name: str) -> list[tuple[str, int]]:
        client = Client(server.url, verbose=False)
        made = []
        for i in range(1, 5):
            pictures, report = client.predict(f"{name}{i}", seed=ord(name) + i, steps=2, api_name="/generate")
            made.append((recipe_of(pictures[0])["prompt"], report["seeds"][0]))
        return made

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(by_api, name) for name in "BC"]
        for i in range(1, 5):
            page.generate(prompt=f"A{i}", seed=ord("A") + i, steps=2)
            page.wait_for_end()
            assert page.shown_seed() == str(ord("A") + i)
        for name, made in zip("BC", others, strict=True):
            assert made.result() == [(f"{name}{i}", ord(name) + i) for i in range(1, 5)]
    page.tab.get_by_role("tab", name="History").click()
    page.tab.locator("#history").get_by_text("A4").first.wait_for()
    listed = page.tab.locator("#history").inner_text().split()
    assert [word for word in listed if word[0] in "ABC"] == ["A4", "A3", "A2", "A1"]


def test_two_clients_with_the_same_request_twenty_times(server: Server):
    """Forty jobs at once give forty files under short names, each of its client."""
    folder = server.cache / "outputs"
    before = set(folder.iterdir()) if folder.exists() else set()

    def twenty() -> list[str]:
        client = Client(server.url, verbose=False)
        with ThreadPoolExecutor(20) as pool:
            given = {"prompt": "the same", "seed": 77, "steps": 1, "api_name": "/generate"}
            answers = list(pool.map(lambda _: client.predict(**given), range(20)))
        assert all(recipe_of(pictures[0])["seed"] == 77 for pictures, _ in answers)
        return [report["images"][0] for _, report in answers]

    with ThreadPoolExecutor(2) as pool:
        names = [name for made in pool.map(lambda _: twenty(), range(2)) for name in made]
    assert len(set(names)) == 40
    assert {path.name for path in set(folder.iterdir()) - before if path.suffix == ".png"} == set(names)
    assert all(len(name.encode()) <= 120 for name in names)


@pytest.mark.parametrize("prompt", ["🦊" * 300, "../../tmp/x", "CON", "a/b\\c:d"])
def test_no_prompt_gets_into_a_file_name(client: Client, server: Server, prompt: str):
    pictures, report = client.predict(prompt, seed=3, steps=1, api_name="/generate")
    assert recipe_of(pictures[0])["prompt"] == prompt
    (name,) = report["images"]
    assert re.fullmatch(r"[0-9A-Za-z._-]{1,120}", name)
    assert (server.cache / "outputs" / name).is_file()


def test_negative_prompt_is_used_or_said_to_be_ignored(client: Client):
    def ask(negative: str, guidance: float) -> tuple[bytes, dict, list[str]]:
        pictures, report = client.predict(
            "a red square", negative, steps=2, seed=4, guidance=guidance, api_name="/generate"
        )
        with Image.open(pictures[0]) as picture:
            return picture.tobytes(), recipe_of(pictures[0]), report["notices"]

    for guidance in (0, 1):
        pixels, recipe, notices = ask("blurry, text", guidance)
        assert recipe.get("negative_prompt", "") == ""
        assert any("negative_prompt: ignored" in notice for notice in notices)
        assert pixels == ask("", guidance)[0]
    pixels, recipe, notices = ask("blurry, text", 4.5)
    assert (recipe["negative_prompt"], notices) == ("blurry, text", [])
    assert pixels != ask("", 4.5)[0]


def wait_for_posted(server: Server, session: str, *states: str, seconds: float = 90) -> dict:
    """Until the one job that a session has posted is in one of the states."""
    status, jobs, limit = functions(server)["status"], [], time.monotonic() + seconds
    while time.monotonic() < limit:
        jobs = post(server, status, [None], session)["output"]["data"][0]["jobs"]
        if jobs:
            (job,) = jobs
            told = post(server, status, [job], session)["output"]["data"][0]
            if told["state"] in states:
                return told
        time.sleep(0.2)
    raise AssertionError(jobs)


def test_a_job_whose_caller_has_gone_ends_and_is_kept(server: Server):
    """Posted and left: the picture is made, and the session that asked finds it."""
    given = arguments(server, "generate", prompt="left alone", width=64, height=64, steps=3, seed=9)
    join(server, functions(server)["generate"], given, "whoposts")
    told = wait_for_posted(server, "whoposts", "done")
    assert told["report"]["seeds"] == [9]
    assert len(told["pictures"]) == 1


def test_gradios_own_cancel_stops_no_job(client: Client, server: Server):
    """Neither with a wrong session nor with the right one: a job is ended by /cancel alone."""
    generate, session = functions(server)["generate"], "whowaits"
    given = arguments(server, "generate", prompt="kept", width=96, height=96, steps=100, seed=5)
    event = join(server, generate, given, session)
    job = wait_for_posted(server, session, "running")["job"]
    for caller in ("somebodyelse", session):
        send(server, "/gradio_api/cancel", {"session_hash": caller, "fn_index": generate, "event_id": event})
    assert wait_for_posted(server, session, "done", "cancelled", "failed")["state"] == "done"
    assert job not in client.predict(api_name="/status")["jobs"]
