"""Reads a prompt of the demo language, and writes plain ones. Used by the checker; the model never sees this."""

import re
from dataclasses import dataclass

from tpu_ui.demo.scenes import Scene
from tpu_ui.demo.vocabulary import COLOURS, PLURALS, RELATIONS, SHAPES, SIZES, canonical


@dataclass(frozen=True)
class WantedObject:
    """What a prompt says of one object; None where it says nothing."""

    colour: str | None = None
    shape: str | None = None
    size: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What a prompt says. `relation` is that of the first object to the second."""

    objects: tuple[WantedObject, ...]
    background: str | None = None
    place: str | None = None
    relation: str | None = None


def wanted_of(scene: Scene) -> Wanted:
    """Everything that a scene shows."""
    objects = tuple(WantedObject(item.colour, item.shape, item.size) for item in scene.objects)
    return Wanted(objects, scene.background, scene.place, scene.relation)


def write_prompt(wanted: Wanted) -> str:
    """The plainest sentence for it: "a small red star left of a large blue circle on a yellow background"."""
    nouns = []
    for item in wanted.objects:
        noun = " ".join(word for word in (item.size, item.colour, item.shape or "shape") if word)
        nouns.append(("an " if noun[0] in "aeiou" else "a ") + noun)
    text = f" {wanted.relation or 'and'} ".join(nouns)
    if wanted.place:
        text += {"centre": " in the centre", "left": " on the left", "right": " on the right"}.get(
            wanted.place, f" in the {wanted.place} corner" if " " in wanted.place else f" at the {wanted.place}"
        )
    if wanted.background:
        article = "an" if wanted.background[0] in "aeiou" else "a"
        text += f" on {article} {wanted.background} background"
    return text


def read_prompt(text: str) -> Wanted:
    """Understands what write_prompt writes and its near kin: synonyms, other articles, unknown words in between."""
    raw = re.findall(r"[a-z]+", text.lower())
    words = [canonical(word) for word in raw]
    background, used = None, set()
    for i, word in enumerate(words[:-1]):
        if word in COLOURS and words[i + 1] in ("background", "backdrop"):
            background, used = word, {i, i + 1}
    if background is None:
        for i, word in enumerate(words):
            after = words[i + 1 : i + 2]
            if word in COLOURS and i and words[i - 1] == "on" and not (after and after[0] in (*SHAPES, *COLOURS)):
                background, used = word, {i}
    objects, spans, start, last = [], [], 0, {}
    for i, word in enumerate(words):
        if i in used:
            continue
        if word in COLOURS:
            last["colour"] = word
        elif word in SIZES:
            last["size"] = word
        elif word in SHAPES or word in ("shape", "object"):
            item = WantedObject(last.get("colour"), word if word in SHAPES else None, last.get("size"))
            twice = "two" in words[start:i] and (raw[i] in PLURALS or raw[i] in ("shapes", "objects"))
            objects += [item, item] if twice else [item]
            spans.append((start, i))
            start, last = i + 1, {}
    if len(spans) >= 2:
        between = " ".join(words[spans[0][1] + 1 : spans[1][1]])
        relation = next((r for r in RELATIONS if re.search(rf"\b{r}\b", between)), None)
        return Wanted(tuple(objects[:2]), background, relation=relation)
    place = None
    if len(objects) == 1:
        rest = [word for i, word in enumerate(words) if i not in used]
        parts = [next((w for w in rest if w in pair), "") for pair in (("top", "bottom"), ("left", "right"))]
        place = " ".join(part for part in parts if part) or ("centre" if "centre" in rest else None)
    return Wanted(tuple(objects), background, place=place)
