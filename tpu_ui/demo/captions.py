"""Says in many ways what a scene shows, wholly or in part, and what each saying has told (its slots)."""

from dataclasses import dataclass

import numpy as np

from tpu_ui.demo.scenes import Scene, SceneObject, swapped
from tpu_ui.demo.vocabulary import COLOURS, PLACES, SHAPES, SIZES, SYNONYMS

MOST_WORDS = 30

SLOTS: dict[str, tuple[str, ...]] = {
    "count": ("one", "two"),
    "background": COLOURS,
    "place": PLACES,
    "layout": ("first left", "first above", "side by side"),
    "first colour": COLOURS,
    "first shape": SHAPES,
    "first size": SIZES,
    "second colour": COLOURS,
    "second shape": SHAPES,
    "second size": SIZES,
}
"""What a caption can tell. A slot's value is 0 when it was not said, else 1 + the index in its tuple.
With a relation, "first" is the object further left or further up, however the sentence puts it; without one it is the
object named first.
"""


@dataclass(frozen=True)
class Caption:
    """A text and the slots that it tells, in the order of SLOTS."""

    text: str
    slots: tuple[int, ...]


class _Teller:
    """Builds one caption and keeps book of what it says."""

    def __init__(self, scene: Scene, rng: np.random.Generator):
        self.scene, self.rng = scene, rng
        self.told = dict.fromkeys(SLOTS, 0)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, *options: str) -> str:
        return options[int(self.rng.integers(len(options)))]

    def tell(self, slot: str, value: str) -> str:
        self.told[slot] = 1 + SLOTS[slot].index(value)
        return value

    def noun(self, item: SceneObject, rank: str, plural: bool = False) -> str:
        """The object with its attributes, each said or left out."""
        size = self.tell(f"{rank} size", item.size) if self.chance(0.9) else ""
        colour = self.tell(f"{rank} colour", item.colour) if self.chance(0.95) else ""
        named = self.chance(0.98)
        shape = self.tell(f"{rank} shape", item.shape) if named else self.pick("shape", "object")
        if plural:
            shape = {"cross": "crosses"}.get(shape, shape + "s")
        order = [colour, size, shape] if self.chance(0.1) else [size, colour, shape]
        if plural:
            return " ".join(["two", *order])
        if colour and self.chance(0.05):
            order = [size, shape, "in", colour]
        article = self.pick("a", "a", "a", "a", "the", "one", "", "")
        text = " ".join([article, *order])
        return "an " + text[2:] if text.startswith("a o") and self.chance(0.7) else text

    def ground(self) -> str:
        colour = self.tell("background", self.scene.background)
        if self.chance(0.15):
            return f"on {colour}"
        return self.pick("on a", "on a", "on a", "with a", "on", "on the", "", "and a") + (
            f" {colour} " + self.pick("background", "background", "background", "backdrop")
        )

    def place(self) -> str:
        place = self.tell("place", self.scene.place)
        if place == "centre":
            return self.pick("in the centre", "in the middle", "at the centre", "centre", "centre of the picture")
        if " " in place:
            return self.pick("in the {} corner", "in the {}", "at the {}", "{}", "{} corner").format(place)
        return self.pick("on the {}", "at the {}", "on the {} side", "{}", "in the {}").format(place)

    def one(self) -> str:
        noun = self.noun(self.scene.objects[0], "first")
        self.tell("count", "one")
        if self.scene.place == "centre" and not self.chance(0.3):
            return noun
        return f"{self.place()} {noun}" if self.chance(0.1) else f"{noun} {self.place()}"

    def two(self) -> str:
        if self.chance(0.5):
            self.scene = swapped(self.scene)
        a, b = self.scene.objects
        self.tell("count", "two")
        if (a.colour, a.shape, a.size) == (b.colour, b.shape, b.size) and self.chance(0.7):
            text = self.noun(a, "first", plural=True)
            for attribute in ("colour", "shape", "size"):
                self.told[f"second {attribute}"] = self.told[f"first {attribute}"]
            return text
        relation = self.scene.relation
        related = self.chance(0.85)
        a_first = relation in ("left of", "above") or not related
        ranks = ("first", "second") if a_first else ("second", "first")
        first, second = (self.noun(item, rank) for item, rank in zip((a, b), ranks, strict=True))
        if not related:
            if relation in ("left of", "right of") and self.chance(0.3):
                self.tell("layout", "side by side")
                return f"{first} {self.pick('next to', 'beside')} {second}"
            return f"{first} {self.pick('and', 'and', 'and', 'with', ',')} {second}"
        self.tell("layout", "first left" if relation in ("left of", "right of") else "first above")
        if self.chance(0.15):
            here, there = {
                "left of": ("on the left", "on the right"),
                "right of": ("on the right", "on the left"),
                "above": ("at the top", "at the bottom"),
                "below": ("at the bottom", "at the top"),
            }[relation]
            return f"{first} {here} {self.pick('and', ',')} {second} {there}"
        words = relation
        if " " in relation:
            words = self.pick("{} of", "{} of", "to the {} of", "on the {} of").format(relation.split()[0])
        return f"{first} {self.pick('', '', '', 'is')} {words} {second}"

    def whole(self) -> str:
        body = self.one() if len(self.scene.objects) == 1 else self.two()
        if self.chance(0.7):
            ground = self.ground()
            body = f"{ground} {self.pick('', ',', 'with')} {body}" if self.chance(0.12) else f"{body} {ground}"
        opening = self.pick("{} of", "a {} of", "{} with", "simple {} of", "a flat {} of").format(
            self.pick("photo", "picture", "image", "drawing", "illustration")
        )
        if self.chance(0.05):
            opening = "there is"
        return f"{opening} {body}" if self.chance(0.2) else body

    def part(self) -> str:
        """One or two facts and nothing else, as people write negative prompts."""
        item = self.scene.objects[int(self.rng.integers(len(self.scene.objects)))]
        kind = int(self.rng.integers(6))
        if kind == 0:
            return self.tell("first colour", item.colour)
        if kind == 1:
            return self.tell("first shape", item.shape)
        if kind == 2:
            return self.tell("first colour", item.colour) + " " + self.tell("first shape", item.shape)
        if kind == 3:
            return self.tell("background", self.scene.background) + " background"
        if kind == 4:
            return self.tell("first size", item.size) + self.pick("", " shape", " object")
        return self.tell("count", "one" if len(self.scene.objects) == 1 else "two") + (
            self.pick(" shapes", " objects") if len(self.scene.objects) == 2 else " object"
        )


def _other_words(words: list[str], rng: np.random.Generator) -> list[str]:
    return [
        str(rng.choice(SYNONYMS[word])).replace("-", " ") if word in SYNONYMS and rng.random() < 0.2 else word
        for word in words
    ]


def _noise(words: list[str], rng: np.random.Generator) -> list[str]:
    """The words with unknown ones strewn in, at the end or anywhere, and small ones now and then lost."""
    if rng.random() < 0.1:
        words = [word for word in words if word not in ("a", "the", "on") or rng.random() < 0.6]
    room = MOST_WORDS - len(words)
    if rng.random() < 0.15:
        for _ in range(min(room // 2, int(rng.integers(1, 7)))):
            words = words + ([","] if rng.random() < 0.4 else []) + ["unheard"]
    elif rng.random() < 0.15:
        for _ in range(min(room, int(rng.integers(1, 5)))):
            words.insert(int(rng.integers(len(words) + 1)), "unheard")
    return words


def caption(scene: Scene, rng: np.random.Generator, empty: float = 0.08, partial: float = 0.08) -> Caption:
    """One of the many captions of this scene: nothing at all, a part, or the whole, with the given chances."""
    teller = _Teller(scene, rng)
    draw = rng.random()
    if draw < empty:
        return Caption("", tuple(teller.told.values()))
    words = (teller.part() if draw < empty + partial else teller.whole()).split()
    words = _noise(_other_words(words, rng), rng)[:MOST_WORDS]
    return Caption(" ".join(words), tuple(teller.told.values()))
