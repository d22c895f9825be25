"""Image to image by API and page: what was uploaded is taken, and nothing else."""

import hashlib
from pathlib import Path

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image, ImageChops

from tests.page.driver import GeneratePage
from tests.page.posts import functions, post
from tests.page.server import Server
from tests.page.test_api import wait_for
from tpu_ui.page.form import FIELDS
from tpu_ui.recipe import read_recipe


@pytest.fixture
def picture(tmp_path: Path) -> str:
    Image.linear_gradient("L").resize((96, 64)).convert("RGB").save(tmp_path / "start.png")
    return str(tmp_path / "start.png")


def test_by_api(server: Server, picture: str):
    client = Client(server.url, verbose=False)
    asked = {"prompt": "a red square", "steps": 4, "seed": 7}
    (without,), _ = client.predict(**asked, api_name="/generate")
    job = client.predict(image=handle_file(picture), api_name="/warmup")
    wait_for(client, job["job"], "done", seconds=90)
    (made,), report = client.predict(**asked, image=handle_file(picture), strength=0.5, api_name="/generate")
    assert (report["was_warm"], report["new_compiles"]) == (True, 0)
    digest = hashlib.sha256(Path(picture).read_bytes()).hexdigest()
    assert (report["strength"], report["image_sha256"]) == (0.5, digest)
    assert ImageChops.difference(Image.open(without), Image.open(made)).getbbox()
    fields = read_recipe(Path(made)).fields
    assert (fields["strength"], fields["image_sha256"], "image" in fields) == (0.5, digest, False)
    assert client.predict(image=handle_file(picture), strength=0.8, api_name="/verdict")["state"] == "warm"
    with pytest.raises(AppError, match=r"Give at least 0\.25"):
        client.predict(**asked, image=handle_file(picture), strength=0.2, api_name="/generate")
    assert {card["id"]: card["takes_picture"] for card in client.predict(api_name="/models")}["sana"] is False


def test_no_path_of_a_client_is_opened(server: Server, picture: str):
    known = functions(server)

    def answers(image: object) -> list[dict]:
        given = {"prompt": "x", "placement": "auto", "width": 64, "height": 64, "steps": 4, "batch": 1}
        form = [(given | {"image": image, "strength": 0.5}).get(name) for name in FIELDS]
        verdict = [None, None, "auto", None, None, None, None, 1, "", "", None, None, image, None]
        warmup = [None, None, "auto", 64, 64, 1, image]
        posts = {"press_generate": ["a" * 32, None, *form], "verdict": verdict, "warmup": warmup}
        return [post(server, known[name], data) for name, data in posts.items()]

    assert all(answer["success"] for answer in answers(None))
    for path in (picture, "/etc/passwd", str(server.cache / "ledger.sqlite3"), "start.png"):
        for value in ({"path": path}, {"path": path, "meta": {"_type": "gradio.FileData"}}, path):
            for answer in answers(value):
                assert not answer["success"], (value, answer)
                assert path not in str(answer["output"])


def test_on_the_page(page: GeneratePage, picture: str):
    page.tab.click("#from-picture button")
    page.tab.set_input_files("#image input[type=file]", picture)
    page._wait(lambda: "from 96×64 to 64×64" in page.verdict, 20)
    page.generate(prompt="a red square", seed="3", steps="4")
    assert "Done" in page.wait_for_end()
    page.tab.click("#report-box button")
    page._wait(lambda: "96×64" in page.tab.inner_text("#report-box"), 20)
    page.tab.click("#image button[aria-label='Remove Image']")
    page._wait(lambda: "96×64" not in page.verdict, 20)
    page.tab.click("#use-settings")
    page._wait(lambda: "96×64" in page.verdict, 20)
    page.tab.click("button[role=tab]:has-text('History')")
    page.tab.locator("#history img").first.click()
    page.tab.click("#history-restore")
    page._wait(lambda: "has to be given again" in page.tab.inner_text("body"), 20)
    page._wait(lambda: "96×64" not in page.verdict, 20)
    page.tab.set_input_files("#image input[type=file]", picture)
    page._wait(lambda: "96×64" in page.verdict, 20)
    page.tab.locator("#model input").click()
    page.tab.get_by_role("option", name="Sana").click()
    page.tab.locator("#from-picture").wait_for(state="hidden")
    page._wait(lambda: "Sana 1.6B is not on this machine" in page.verdict, 20)  # not that it takes no picture
    assert page.faults == []
