"""The parameters inside a picture: written into our PNGs; read back from ours, A1111's and ComfyUI's simple ones.

Everything read here comes from strangers: texts are capped, values pass the request's own checks, nothing is fetched,
and no path that stands in a file is opened or even handed on.
"""

import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tpu_ui import __version__, public_names
from tpu_ui.catalogue import CATALOGUE
from tpu_ui.errors import InvalidRequest
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest
from tpu_ui.source_picture import DAMAGED

SCHEMA_VERSION = 1
MAX_FILE_BYTES = 64 * 2**20  # the largest picture we make has 48 MiB of pixels before compression
MAX_TEXT_CHARACTERS = 2**20  # also Pillow's limit for a compressed text

_OURS, _A1111, _COMFYUI = "tpu_ui", "parameters", "prompt"
_REQUEST_FIELDS = tuple(f.name for f in fields(GenerationRequest) if f.name not in ("image", "notices"))

_PUBLIC_WORD = re.compile(r"[\w.+\-]{1,80}")  # a revision, device or version
_LATEST_MS = 32_503_680_000_000  # the year 3000


@dataclass(frozen=True)
class Recipe:
    """How one picture was made. Holds no path, user or token, whatever it is built from.

    Attributes:
        request: the request as it ran, with the seed of this picture alone: it makes this picture again.
        revision: commit of the model, or fingerprint of its folder.
        device: kind of the device.
        sampler: name of the scheduler, where it is known.
        created_ms: milliseconds since 1970, UTC.
    """

    request: GenerationRequest
    revision: str | None = None
    device: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    sampler: str | None = None
    created_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def __post_init__(self) -> None:
        public = replace(
            self.request,
            model=public_names.public_model_name(self.request.model),
            loras=public_names.public_loras(self.request.loras),
            image=None,
            batch=1,
        )
        object.__setattr__(self, "request", public)
        for name in ("revision", "device"):
            object.__setattr__(self, name, _public_word(getattr(self, name)))
        versions = {name: word for name, text in self.versions.items() if (word := _public_word(text))}
        object.__setattr__(self, "versions", versions)

    @classmethod
    def of(cls, request: GenerationRequest, report: Report, index: int = 0, created_ms: int | None = None) -> "Recipe":
        """The recipe of picture `index` of a finished request."""
        seed = report.seeds[index] if report.seeds else request.seeds[index]
        alone = replace(request, model=report.model or request.model, seed=seed, batch=1)
        stamp = {} if created_ms is None else {"created_ms": created_ms}
        return cls(alone, report.revision, report.device, dict(report.versions), **stamp)

    def to_json(self) -> str:
        """Our own format; `schema` is its version."""
        request = {name: getattr(self.request, name) for name in _REQUEST_FIELDS}
        request["loras"] = list(map(str, self.request.loras))
        return json.dumps({"schema": SCHEMA_VERSION} | vars(self) | {"request": request}, ensure_ascii=False)

    def to_a1111(self) -> str:
        """The text that A1111 writes and most other programs read: prompts as they are, then one line of settings."""
        request = self.request
        size = f"{request.width}x{request.height}" if request.width and request.height else None
        guidance = None if request.guidance is None else f"{request.guidance!r}".removesuffix(".0")
        settings = {
            "Steps": request.steps,
            "Sampler": self.sampler,
            "CFG scale": guidance,
            "Seed": request.seed,
            "Size": size,
            "Model": request.model,
            "Denoising strength": request.strength,
            "Version": f"tpu_ui {__version__}",
        }
        line = ", ".join(f"{key}: {_quoted(str(value))}" for key, value in settings.items() if value is not None)
        prompt = public_names.with_tags(request.prompt, request.loras)
        negative = [f"Negative prompt: {request.negative_prompt}"] if request.negative_prompt else []
        return "\n".join([*([prompt] if prompt else []), *negative, line])

    def to_png_info(self) -> PngInfo:
        """Both texts, for `Image.save(..., pnginfo=...)`."""
        info = PngInfo()
        info.add_text(_A1111, self.to_a1111())
        info.add_text(_OURS, self.to_json())
        return info


@dataclass(frozen=True)
class RecipeRead:
    """What was found in a picture.

    Attributes:
        source: who wrote it; None where no settings were found.
        fields: values for `GenerationRequest.from_mapping`, each one valid.
        raw_text: the text that was read, as it stands in the file: a stranger's, to be escaped before it is shown.
        notices: what could not be taken over, in plain sentences.
        created_ms: when the picture was made, if we made it; milliseconds since 1970, UTC.
    """

    source: Literal["tpu_ui", "A1111", "ComfyUI"] | None
    fields: dict[str, Any] = field(default_factory=dict)
    raw_text: str = ""
    notices: tuple[str, ...] = ()
    created_ms: int | None = None


def read_recipe(picture: Path | str | bytes) -> RecipeRead:
    """Find the parameters in a PNG (or in the EXIF comment of a JPEG or WebP), given as a path or as its bytes.

    Raises:
        InvalidRequest: not a readable picture of these formats, or larger than MAX_FILE_BYTES or MAX_TEXT_CHARACTERS.
    """
    texts = _texts_of(picture)
    content = _decoded(texts.get(_OURS, ""))
    if isinstance(content, dict) and isinstance(content.get("request"), dict):
        notices = []
        if content.get("schema") != SCHEMA_VERSION:
            notices.append("The picture was written by another version of this app; what is known of it was read.")
        made = content.get("created_ms")
        known = isinstance(made, int) and not isinstance(made, bool) and 0 <= made <= _LATEST_MS
        return _checked("tpu_ui", content["request"], texts[_OURS], notices, made if known else None)
    if text := texts.get(_A1111):
        found, notices = _from_a1111(text)
        if not found.keys() - {"prompt", "loras"} and text.lstrip().startswith("{"):
            return RecipeRead(None, {}, text, ("The settings in this picture are of a kind that cannot be read here.",))
        return _checked("A1111", found, text, notices)
    if (text := texts.get(_COMFYUI)) and (nodes := _nodes(_decoded(text))):
        found, notices = _from_comfyui(nodes)
        return _checked("ComfyUI", found, text, notices)
    return RecipeRead(None)


def _public_word(text: str | None) -> str | None:
    return text if isinstance(text, str) and _PUBLIC_WORD.fullmatch(text) else None


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if any(c in value for c in ',:\n\r"') else value


def _checked(source: Any, found: dict, text: str, notices: list[str], created_ms: int | None = None) -> RecipeRead:
    """Keep the known fields whose values the request's own checks accept."""
    usable: dict[str, Any] = {}
    for name in _REQUEST_FIELDS:
        if (value := found.get(name)) in (None, []):
            continue
        well_formed = isinstance(value, str | int | float) or (name == "loras" and public_names.are_public(value))
        if not well_formed or (name == "model" and not public_names.is_public_model(str(value))):
            notices.append(f"{name}: what stands in the picture is of no use here. It was left out.")
            continue
        try:
            request = GenerationRequest.from_mapping({name: value})
        except InvalidRequest as error:
            notices.append(f"{error.message[:200]} It was left out.")
            continue
        value = list(map(str, request.loras)) if name == "loras" else getattr(request, name)
        usable[name] = value.value if isinstance(value, StrEnum) else value
        notices.extend(request.notices)
    try:
        GenerationRequest.from_mapping(usable)
    except InvalidRequest:  # the limits across fields all have the number of pictures in them
        notices.append("batch: too many pictures for this size or seed. It was left out.")
        usable.pop("batch", None)
    return RecipeRead(source, usable, text, tuple(notices), created_ms)


def _texts_of(picture: Path | str | bytes) -> dict[str, str]:
    unreadable = InvalidRequest(
        "picture", "cannot be read.", "Give a whole PNG, JPEG or WebP file with less than 1 MiB of text in it."
    )
    try:
        if not isinstance(picture, bytes) and not Path(picture).is_file():
            raise unreadable
        size = len(picture) if isinstance(picture, bytes) else Path(picture).stat().st_size
        if size > MAX_FILE_BYTES:
            raise InvalidRequest("picture", f"{size:,} bytes is above the limit of {MAX_FILE_BYTES:,}.")
        # Opening reads headers and texts; no pixel is decoded, so a decompression bomb stays folded up.
        with Image.open(
            io.BytesIO(picture) if isinstance(picture, bytes) else picture, formats=("PNG", "JPEG", "WEBP")
        ) as opened:
            texts = {key: opened.info.get(key) for key in (_OURS, _A1111, _COMFYUI)}
            if opened.format != "PNG":
                texts[_A1111] = _user_comment(opened)
    except (OSError, Image.DecompressionBombError, *DAMAGED) as error:
        raise unreadable from error
    found = {key: str(text) for key, text in texts.items() if isinstance(text, str) and text.strip()}
    if any(len(text) > MAX_TEXT_CHARACTERS for text in found.values()):
        raise unreadable
    return found


def _user_comment(opened: Image.Image) -> str | None:
    comment = opened.getexif().get_ifd(0x8769).get(0x9286)
    if not isinstance(comment, bytes):
        return comment
    code, body = comment[:8], comment[8:]
    if code == b"UNICODE\0":  # the standard leaves the byte order open, and programs differ
        readings = [body.decode(encoding, "replace") for encoding in ("utf-16-be", "utf-16-le")]
        return next((reading for reading in readings if "Steps:" in reading), readings[0])
    return (body if code in (b"ASCII\0\0\0", bytes(8)) else comment).decode("utf-8", "replace").strip("\0")


def _decoded(text: str) -> Any:
    """The JSON value that `text` is, else the text itself."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


_SETTING = re.compile(r'(\w[\w \-/]{0,60}):\s*("(?:\\.|[^\\"])*"|[^,\n]*)(?:[,\n]|$)')
_SETTINGS_LINE = re.compile(r"\s*Steps:\s*\d+\s*(?:,|$)")
_MAX_SETTINGS_CHARACTERS = 8192  # what we read stands first; this bounds the expression's work on hostile lines
_FEWEST_SETTINGS = 3  # fewer than this, and the line belongs to the prompt: A1111's own rule


def _from_a1111(text: str) -> tuple[dict[str, Any], list[str]]:
    lines = text.replace("\r\n", "\n").strip("\n\0").split("\n")
    last = len(lines) - 1
    start = next((i for i in range(last, -1, -1) if _SETTINGS_LINE.match(lines[i])), last)
    settings = {
        key.strip(): _decoded(value.strip())
        for key, value in _SETTING.findall("\n".join(lines[start:])[:_MAX_SETTINGS_CHARACTERS])
    }
    if len(settings) < _FEWEST_SETTINGS:
        settings, start = {}, len(lines)
    cut = next((i for i in range(start) if lines[i].lstrip().startswith("Negative prompt:")), start)
    prompt, loras = public_names.without_tags("\n".join(lines[:cut]))
    found: dict[str, Any] = {"prompt": prompt, "loras": loras or None}
    if cut < start:
        found["negative_prompt"] = "\n".join(lines[cut:start]).lstrip().removeprefix("Negative prompt:").lstrip(" ")
    names = {"Steps": "steps", "Seed": "seed", "CFG scale": "guidance", "Distilled CFG Scale": "guidance"}
    found |= {name: settings[key] for key, name in names.items() if key in settings}
    if size := re.fullmatch(r"(\d{1,9})\s*[x×]\s*(\d{1,9})", str(settings.get("Size"))):
        found |= {"width": int(size[1]), "height": int(size[2])}
    notices = []
    if model := settings.get("Model"):
        found["model"] = _model_of_catalogue(str(model), notices)
    if others := sorted(settings.keys() - names.keys() - {"Size", "Model", "Version"}):
        notices.append(f"Not taken over: {', '.join(others)[:300]}.")
    return found, notices


def _model_of_catalogue(name: str, notices: list[str]) -> str | None:
    for card in CATALOGUE:
        if name.casefold() in (card.id.casefold(), (card.repo_id or "").casefold()):
            return card.id
    notices.append(f"model: the picture was made with {public_names.public_model_name(name)!r}; choose one here.")
    return None


_TEXT_INPUTS = ("text", "t5xxl", "text_g", "clip_g", "text_l", "clip_l")
_VALUE_INPUTS = ("value", "int", "float", "seed", "noise_seed", "text", "string")  # of nodes that only hold a value
_LONGEST_CHAIN = 20


def _nodes(graph: Any) -> dict[str, Any]:
    return {
        key: node
        for key, node in (graph.items() if isinstance(graph, dict) else ())
        if isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
    }


def _chain(nodes: dict[str, Any], link: Any, *onward: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Class and inputs of the node that `link` leads to, then of those behind its inputs named `onward`."""
    for _ in range(_LONGEST_CHAIN):
        node = nodes.get(str(link[0])) if isinstance(link, list) and link and isinstance(link[0], str | int) else None
        if node is None:
            return
        yield node["class_type"], node["inputs"]
        link = next((node["inputs"][name] for name in onward if name in node["inputs"]), None)


def _value(nodes: dict[str, Any], value: Any) -> Any:
    for _, inputs in _chain(nodes, value, *_VALUE_INPUTS):
        value = next((inputs[name] for name in _VALUE_INPUTS if name in inputs), None)
    return None if isinstance(value, list) else value


def _from_comfyui(nodes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    samplers = [n["inputs"] for n in nodes.values() if n["class_type"] in ("KSampler", "KSamplerAdvanced")]
    if not samplers:
        return {}, ["This ComfyUI graph has no KSampler; its settings cannot be read here."]
    sampler, latent = samplers[0], {}
    for inputs in reversed(samplers):  # one that starts from an empty latent makes the picture, others refine it
        for kind, behind in _chain(nodes, inputs.get("latent_image")):
            if re.fullmatch("Empty.*Latent.*", kind):
                sampler, latent = inputs, behind
    found = {
        "seed": _value(nodes, sampler.get("seed", sampler.get("noise_seed"))),
        "steps": _value(nodes, sampler.get("steps")),
        "guidance": _value(nodes, sampler.get("cfg")),
        "width": _value(nodes, latent.get("width")),
        "height": _value(nodes, latent.get("height")),
    }
    for name, link in (("prompt", "positive"), ("negative_prompt", "negative")):
        for kind, inputs in _chain(nodes, sampler.get(link), "conditioning"):
            if link == "positive" and "guidance" in inputs:
                found["guidance"] = _value(nodes, inputs["guidance"])  # FLUX's, which the model was distilled to take
            if kind == "ConditioningZeroOut":
                break
            if kind.startswith("CLIPTextEncode"):
                texts = (_value(nodes, inputs[key]) for key in _TEXT_INPUTS if key in inputs)
                found[name] = next((text for text in texts if text), None)
                break
    notices: list[str] = []
    for _, inputs in _chain(nodes, sampler.get("model"), "model"):
        if isinstance(file := inputs.get("ckpt_name", inputs.get("unet_name")), str):
            found["model"] = _model_of_catalogue(file, notices)
    missing = [name for name in ("prompt", "width") if found.get(name) is None]
    notices += [f"{name}: not found in this ComfyUI graph." for name in missing]
    return found, notices
