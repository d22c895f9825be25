"""Looks into a model folder in diffusers' format and says what is in it, or in one sentence what is wrong with it.

Neither torch nor diffusers is imported, no pickle is ever opened, and of the weights only the headers are read.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_ui.errors import UnusableModel
from tpu_ui.pipeline_kinds import check_text_to_image
from tpu_ui.safetensors_header import SafetensorsHeader, read_header, update_digest
from tpu_ui.weight_files import (
    PICKLE_SUFFIXES,
    config_names,
    is_component,
    leading_weight_file,
    listed,
    why_no_weights,
)

_MAX_CONFIG_BYTES = 16_000_000
_MAX_INDEX_BYTES = 100_000_000
_HASHED_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_BLOCK = re.compile(r"(transformer_blocks|single_transformer_blocks)\.(\d{1,9})\.")
_BLOCK_COUNTS = {"transformer_blocks": "num_layers", "single_transformer_blocks": "num_single_layers"}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file. `name` is relative to the component's folder."""

    name: str
    header: SafetensorsHeader = field(repr=False)

    @property
    def file_bytes(self) -> int:
        return self.header.file_bytes


@dataclass(frozen=True)
class Component:
    """One part of a pipeline; `library` and `class_name` as in model_index.json.

    `config` is its JSON configuration. Schedulers and tokenizers are no models and have no weight files.
    """

    name: str
    library: str
    class_name: str
    config: Mapping[str, Any] = field(repr=False)
    weight_files: tuple[WeightFile, ...] = ()
    is_model: bool = True

    @property
    def weight_bytes(self) -> int:
        return sum(file.file_bytes for file in self.weight_files)

    @property
    def parameters(self) -> int:
        return sum(file.header.parameters for file in self.weight_files)

    @property
    def dtypes(self) -> Mapping[str, int]:
        """Bytes of tensors by dtype, named as in safetensors ("BF16", "F32")."""
        total: Counter[str] = Counter()
        for file in self.weight_files:
            total.update(file.header.dtype_bytes)
        return dict(total)


@dataclass(frozen=True)
class ModelFolder:
    """A complete text-to-image pipeline on disk.

    Attributes:
        components: by name; parts that model_index.json gives as null are absent.
        settings: the other entries of model_index.json, which are arguments of the pipeline.
        fingerprint: 16 hex digits that depend on the content alone, not on the path or the machine.
    """

    path: Path
    pipeline_class: str
    components: Mapping[str, Component]
    settings: Mapping[str, Any]
    fingerprint: str

    @property
    def weight_bytes(self) -> int:
        return sum(component.weight_bytes for component in self.components.values())

    @property
    def dtype(self) -> str:
        """The float type of most bytes of the weights, in torch's words; bfloat16 if it is none of the three."""
        total: Counter[str] = Counter()
        for component in self.components.values():
            for name, count in component.dtypes.items():
                if name in _DTYPES:
                    total[_DTYPES[name]] += count
        return max(total, key=total.__getitem__) if total else "bfloat16"


def inspect_folder(path: str | Path, *, with_weights: bool = True) -> ModelFolder:
    """Look into a folder in diffusers' format; `with_weights=False` reads its configurations only.

    Raises:
        UnusableModel: it is not one, or not complete, not safe, or makes no pictures from text.
    """
    root = Path(path)
    try:
        return _inspect(root, with_weights)
    except OSError as error:
        place = error.filename or root
        raise UnusableModel(
            f"{place!s:.300} cannot be read: {error.strerror}.", "Check the path and its rights."
        ) from error


def _inspect(root: Path, with_weights: bool) -> ModelFolder:
    index = _read_model_index(root)
    pipeline_class = index.get("_class_name")
    if not isinstance(pipeline_class, str) or not pipeline_class:
        raise UnusableModel(
            f"{root}: model_index.json names no pipeline (_class_name is {pipeline_class!r:.60}).",
            "Fetch the folder again, or save it with a pipeline's save_pretrained().",
        )
    check_text_to_image(pipeline_class)
    components = {}
    for name, value in index.items():
        if is_component(value):
            if not name.isidentifier():
                raise UnusableModel(f"{root}: model_index.json has a component named {name!r:.60}.", "Check the file.")
            components[name] = _read_component(root, name, *value, with_weights)
    if not components:
        raise UnusableModel(f"{root}: model_index.json lists no components.", "Fetch the folder again.")
    settings = {
        name: value
        for name, value in index.items()
        if name not in components and not name.startswith("_") and value != [None, None]
    }
    return ModelFolder(root, pipeline_class, components, settings, _fingerprint(root, components))


def _read_model_index(root: Path) -> dict[str, Any]:
    if not root.is_dir():
        _refuse_what_is_no_folder(root)
    found = sorted(entry.name for entry in root.iterdir())
    if not found:
        raise UnusableModel(f"{root} is empty.", "Choose a folder that holds model_index.json.")
    if "model_index.json" in found:
        return _read_json(root / "model_index.json", f"{root}: model_index.json", _MAX_CONFIG_BYTES)
    loras = {name for name in found if name.endswith(".safetensors") and _is_lora(root / name)}
    listed = ", ".join(f"{name} (a LoRA file)" if name in loras else name for name in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    remedy = "Choose a folder that holds model_index.json."
    if "snapshots" in found:
        remedy = "This is a cache of the Hub: choose the folder below its snapshots folder."
    elif loras:
        remedy = "A LoRA is applied to a model: choose the folder of the model that it was made for."
    elif (root.parent / "model_index.json").is_file():
        remedy = f"This is one component of a pipeline: choose {root.parent}."
    raise UnusableModel(f"{root} is not a diffusers folder: no model_index.json. Found: {listed}{more}.", remedy)


def _refuse_what_is_no_folder(path: Path) -> None:
    if not path.exists():
        raise UnusableModel(f"{path}: there is no such folder.", "Check the path.")
    remedy = "Choose a folder in diffusers' format: one that holds model_index.json."
    if path.suffix == ".safetensors":
        kind = "a LoRA file" if _is_lora(path) else "a single safetensors file"
    elif path.suffix.lower() in PICKLE_SUFFIXES:
        kind = "a pickle checkpoint, which can run any code when it is opened; it was not opened"
    else:
        kind = "a file"
    raise UnusableModel(f"{path} is {kind}, not a folder in diffusers' format.", remedy)


def _is_lora(path: Path) -> bool:
    if "lora" in path.name.lower():
        return True
    try:
        names = read_header(path, path.name).tensor_names
    except UnusableModel:
        return False
    return any("lora_" in name or ".lora." in name for name in names)


def _read_component(root: Path, name: str, library: str, class_name: str, with_weights: bool) -> Component:
    folder = root / name
    if not folder.is_dir():
        raise UnusableModel(
            f"{root}: the folder of component {name} ({class_name:.80}) is missing{_unfinished(root)}.",
            "Fetch the model again.",
        )
    code = next((p for p in (folder / f"{library}.py", root / f"{library}.py") if p.exists()), None)
    if code is not None:
        raise UnusableModel(
            f"{root}: component {name} brings its own code ({code.name}), which is not run.",
            "Choose a model that is made of the classes of diffusers and transformers.",
        )
    names, is_model = config_names(class_name)
    config_name = next((each for each in names if (folder / each).exists()), None)
    if config_name is None:
        raise UnusableModel(f"{root}: {name}/{names[0]} is missing{_unfinished(root)}.", "Fetch the model again.")
    config = _read_json(folder / config_name, f"{root}: {name}/{config_name}", _MAX_CONFIG_BYTES)
    files = _read_weights(root, name, library) if is_model and with_weights else ()
    _check_block_counts(f"{root}: {name}", config, files)
    return Component(name, library, class_name, config, files, is_model)


def _read_weights(root: Path, name: str, library: str) -> tuple[WeightFile, ...]:
    folder = root / name
    found = {entry.name for entry in folder.iterdir()}
    leading = leading_weight_file(found, library)
    if leading is None:
        raise why_no_weights(str(root), name, library, found, _unfinished(root))
    shards = _shards(root, name, leading) if leading.endswith(".json") else (leading,)
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise UnusableModel(
            f"{root}: half a download: {len(missing)} of {len(shards)} weight files of {name} are missing: "
            f"{listed(missing)}{_unfinished(root)}.",
            "Fetch the model again; what is there already is kept.",
        )
    files = tuple(WeightFile(shard, read_header(folder / shard, f"{root}: {name}/{shard}")) for shard in shards)
    if not any(file.header.tensor_names for file in files):
        raise UnusableModel(f"{root}: the weights of {name} hold no tensors.", "Fetch the model again.")
    return files


def _shards(root: Path, name: str, index: str) -> tuple[str, ...]:
    shown_as = f"{root}: {name}/{index}"
    weight_map = _read_json(root / name / index, shown_as, _MAX_INDEX_BYTES).get("weight_map")
    shards = set(weight_map.values()) if isinstance(weight_map, dict) and _all_text(weight_map) else set()
    # A shard outside of the component's folder would be a way out of the model's folder.
    if not shards or any(Path(shard).name != shard or not shard.endswith(".safetensors") for shard in shards):
        raise UnusableModel(f"{shown_as} does not say in which files the weights are.", "Fetch this file again.")
    return tuple(sorted(shards))


def _all_text(mapping: dict[str, Any]) -> bool:
    return all(isinstance(value, str) for value in mapping.values())


def _check_block_counts(shown_as: str, config: Mapping[str, Any], files: tuple[WeightFile, ...]) -> None:
    blocks: dict[str, set[int]] = {}
    for file in files:
        for tensor in file.header.tensor_names:
            if match := _BLOCK.match(tensor):
                blocks.setdefault(match[1], set()).add(int(match[2]))
    for kind, indices in blocks.items():
        expected = config.get(_BLOCK_COUNTS[kind])
        if isinstance(expected, int) and expected != len(indices):
            raise UnusableModel(
                f"{shown_as}: the weights have {len(indices)} {kind}, but config.json says {_BLOCK_COUNTS[kind]} = "
                f"{expected}.",
                "Fetch config.json and the weights again: they belong to different models.",
            )


def _read_json(path: Path, shown_as: str, limit_bytes: int) -> dict[str, Any]:
    if not path.is_file():
        raise UnusableModel(f"{shown_as} is not a file.", "Fetch this file again.")
    with path.open("rb") as file:
        text = file.read(limit_bytes + 1)
    if len(text) > limit_bytes:
        raise UnusableModel(f"{shown_as} is larger than {limit_bytes:,} bytes.", "Fetch this file again.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableModel(f"{shown_as} is not valid JSON ({len(text):,} bytes).", "Fetch this file again.") from error
    if not isinstance(value, dict):
        raise UnusableModel(f"{shown_as} is not a JSON object.", "Fetch this file again.")
    return value


def _unfinished(root: Path) -> str:
    """Half a sentence about unfinished downloads, in the folder or in the Hub's cache around it."""
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    count = sum(1 for _ in root.rglob("*.incomplete")) + (sum(1 for _ in blobs.glob("*.incomplete")) if blobs else 0)
    return f" (and {count} unfinished .incomplete download(s) are there)" if count else ""


def _fingerprint(root: Path, components: Mapping[str, Component]) -> str:
    digest = hashlib.sha256()
    paths = [root / "model_index.json"]
    for component in components.values():
        paths += [p for p in (root / component.name).iterdir() if p.suffix in _HASHED_SUFFIXES and p.is_file()]
    for path in sorted(paths, key=lambda p: p.relative_to(root).as_posix()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(os.fsencode(path.relative_to(root).as_posix()) + b"\0" + content)
    for component in sorted(components.values(), key=lambda c: c.name):
        for file in component.weight_files:
            digest.update(f"{component.name}/{file.name}\0".encode())
            update_digest(digest, root / component.name / file.name, file.header)
    return digest.hexdigest()[:16]
