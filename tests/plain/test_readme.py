"""The command lines of the README are what the programs understand."""

import json
import re
import shlex
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.readme import README, blocks, inline
from tpu_ui.cli.main import build_parser
from tpu_ui.cli.values import request_values
from tpu_ui.page.options import build_parser as build_app_parser
from tpu_ui.page.options import parse_options
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import parse_bytes
from tpu_ui.shapes import parse_size

ROOT = Path(__file__).resolve().parents[2]


def command_lines() -> list[list[str]]:
    """Words of each command in the shell blocks and in the text, pipes and && taken apart."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    commands = []
    for line in re.sub(r"\|\s*\n\s*", "| ", text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in lexer:
            if set(word) <= set("|&"):
                commands.append(command)
                command = []
            else:
                command.append(word)
        commands.append(command)
    return commands + [shlex.split(code) for code in inline() if code.startswith(("python ", "generate "))]


def arguments_of(*program: str) -> list[list[str]]:
    """Arguments of each command line that calls a program."""
    found = []
    for words in command_lines():
        for start in range(len(words)):
            called = [words[start].rsplit("/", 1)[-1], *words[start + 1 : start + len(program)]]
            if called == list(program):
                found.append(words[start + len(program) :])
    return found


TPU_UI = arguments_of("python", "-m", "tpu_ui") + [words for words in command_lines() if words[:1] == ["generate"]]


def test_commands_are_found():
    assert {words[0] for words in TPU_UI} >= {"generate", "warmup", "devices", "models", "cache", "bench"}
    assert len(TPU_UI) >= 9
    assert [] in arguments_of("python", "app.py")


@pytest.mark.parametrize("words", TPU_UI, ids=" ".join)
def test_a_command_line_is_understood(words: list[str]):
    options = build_parser().parse_args(words)
    match words[0]:
        case "generate":
            GenerationRequest.from_mapping(request_values(options))
        case "warmup":
            assert [parse_size(size) for size in options.size.split(",")] == [(1024, 1024), (768, 1344)]
        case "cache" if options.to is not None:
            assert parse_bytes("--to", options.to) == 5_000_000_000


@pytest.mark.parametrize("words", arguments_of("python", "app.py"), ids=" ".join)
def test_a_start_of_the_page_is_understood(words: list[str]):
    if words == ["--help"]:
        assert "--port" in build_app_parser({}).format_help()
    else:
        assert parse_options(words, {}).port == 7860


def test_options_in_the_text_exist():
    known = build_app_parser({}).format_help() + "".join(
        command.format_help() for command in build_parser()._subparsers._group_actions[0].choices.values()
    )
    options = [word for code in inline() if code.startswith("--") for word in code.split() if word.startswith("--")]
    assert options
    assert [option for option in options if option not in known] == []


def test_requests_of_the_example_are_requests():
    (piped,) = [words for words in command_lines() if words[:1] == ["printf"]]
    requests = [GenerationRequest.from_mapping(json.loads(line)) for line in piped[2:]]
    assert [(request.mode, request.steps) for request in requests] == [("compile", 4), ("compile", 9)]


def test_fields_of_a_request_file_are_those_of_a_request():
    (named,) = [code for code in inline() if code.startswith("prompt, negative_prompt")]
    assert set(named.split(", ")) == {field.name for field in fields(GenerationRequest)} - {"notices"} | {"out"}


def test_the_space_has_the_version_of_gradio_that_is_required_and_installed():
    head = dict(line.split(": ", 1) for line in README.split("---")[1].strip().splitlines())
    required = re.search(r"^gradio==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[1]
    assert head["sdk"] == "gradio"
    assert head["sdk_version"] == required == version("gradio")
    assert (ROOT / head["app_file"]).is_file()
