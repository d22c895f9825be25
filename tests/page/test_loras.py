"""LoRAs by API and page: checked while they are typed, applied, told in the report, and brought back into the form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image, ImageChops

from tests.page.driver import GeneratePage
from tests.page.server import ROOT, Server
from tpu_ui.recipe import read_recipe


@pytest.fixture(scope="module")
def star(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LoRA in the server's folder, by its name."""
    folder = server.cache / "loras"
    folder.mkdir(exist_ok=True)
    made = tmp_path_factory.mktemp("lora")
    code = "import sys, pathlib; from tests import tiny_loras as t; t.save('sd3', pathlib.Path(sys.argv[1]), 1)"
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", code, str(made)], check=True, cwd=ROOT, env=environ, capture_output=True)
    next(made.iterdir()).rename(folder / "star.safetensors")
    return "star"


def test_by_api(server: Server, star: str):
    client = Client(server.url, verbose=False)
    asked = {"prompt": "a red square", "steps": 3, "seed": 7}
    (without,), _ = client.predict(**asked, api_name="/generate")
    (with_star,), report = client.predict(**asked, loras=[f"{star}:2"], api_name="/generate")
    assert (report["loras"], report["was_warm"], report["new_compiles"]) == (["star:2"], True, 0)
    assert ImageChops.difference(Image.open(without), Image.open(with_star)).getbbox()
    assert read_recipe(Path(with_star)).fields["loras"] == ["star:2"]
    (again,), _ = client.predict(**asked, api_name="/generate")
    assert not ImageChops.difference(Image.open(without), Image.open(again)).getbbox()
    assert client.predict(loras=["star"], api_name="/verdict")["state"] == "warm"
    word = client.predict(loras=["moon:2"], api_name="/verdict")
    assert (word["state"], word["reason"].partition(".")[0]) == ("refused", "loras: there is no LoRA 'moon'")
    assert str(server.cache) not in str(word)
    assert client.predict(loras=["😀" * 90], api_name="/verdict")["state"] == "refused"
    for wrong, sentence in ((["star:9"], "out of range"), ("star", "must be a list"), ([["star"]], "is not a LoRA")):
        with pytest.raises(AppError, match=sentence):
            client.predict(**asked, loras=wrong, api_name="/generate")


def test_on_the_page(page: GeneratePage, star: str):
    page.tab.click("#advanced button")
    box = page.tab.locator("#loras textarea")
    box.fill("moon:0.5")
    page.wait_for_verdict("refused")
    assert "there is no LoRA 'moon'" in page.verdict
    box.fill(f"{star}:1.5\n")
    page.wait_for_verdict("warm", "cold", "on_disk")
    page.generate(prompt="a red square", seed="3")
    assert "Done" in page.wait_for_end()
    box.fill("")
    page.tab.click("#use-settings")
    page._wait(lambda: box.input_value() == "star:1.5", 20)
    assert page.faults == []
