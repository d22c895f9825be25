"""The words that the demo model knows, and the colours they stand for. Plain data that all other modules read."""

BACKGROUND_RGB: dict[str, tuple[int, int, int]] = {
    "red": (239, 105, 98),
    "orange": (255, 181, 107),
    "yellow": (255, 228, 122),
    "green": (137, 207, 143),
    "teal": (110, 208, 204),
    "blue": (125, 174, 250),
    "purple": (178, 150, 232),
    "pink": (252, 190, 214),
    "white": (247, 248, 251),
    "black": (40, 43, 54),
}
"""Backgrounds are softer than the objects, so that the pictures stay calm. sRGB, 0 to 255."""

OBJECT_RGB: dict[str, tuple[int, int, int]] = {
    "red": (222, 45, 50),
    "orange": (250, 130, 12),
    "yellow": (252, 204, 10),
    "green": (40, 156, 72),
    "teal": (0, 150, 152),
    "blue": (35, 94, 228),
    "purple": (120, 62, 196),
    "pink": (240, 92, 158),
    "white": (252, 252, 253),
    "black": (28, 30, 38),
}
"""sRGB, 0 to 255."""

COLOURS: tuple[str, ...] = tuple(OBJECT_RGB)
SHAPES: tuple[str, ...] = (
    "circle",
    "square",
    "triangle",
    "star",
    "heart",
    "ring",
    "cross",
    "diamond",
    "moon",
    "hexagon",
)
PROMISED_SHAPES: tuple[str, ...] = tuple(shape for shape in SHAPES if shape not in ("ring", "hexagon"))
"""The shapes that the model is measured on. Training ends with these alone: at this size a ring and a hexagon are too
near to a circle."""
SIZES: tuple[str, ...] = ("small", "medium", "large")
PLACES: tuple[str, ...] = (
    "centre",
    "left",
    "right",
    "top",
    "bottom",
    "top left",
    "top right",
    "bottom left",
    "bottom right",
)
RELATIONS: tuple[str, ...] = ("left of", "right of", "above", "below")
OPPOSITE: dict[str, str] = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

SYNONYMS: dict[str, tuple[str, ...]] = {
    "purple": ("violet",),
    "teal": ("turquoise", "cyan"),
    "circle": ("disc", "disk", "dot", "ball"),
    "square": ("box",),
    "ring": ("donut",),
    "cross": ("plus",),
    "diamond": ("rhombus",),
    "moon": ("crescent",),
    "small": ("tiny", "little"),
    "medium": ("mid-sized",),
    "large": ("big", "huge"),
    "centre": ("center", "middle"),
    "bottom": ("lower",),
    "top": ("upper",),
    "below": ("under", "beneath"),
    "above": ("over",),
}
"""Other words that the model was taught for the same thing."""

PLURALS: dict[str, str] = {
    **{shape + "s": shape for shape in SHAPES if shape != "cross"},
    "crosses": "cross",
    "discs": "circle",
    "boxes": "square",
    "crescents": "moon",
}

FUNCTION_WORDS: tuple[str, ...] = (
    *("a", "an", "the", "one", "two", "and", "with", "on", "in", "at", "of", "to", "is", "there", "next", "beside"),
    *("background", "backdrop", "corner", "side", "photo", "picture", "image", "drawing", "illustration", "flat"),
    *("left", "right", "scene", "simple", "near", "it", "shape", "object", "shapes", "objects", ","),
)

_CANONICAL: dict[str, str] = {other: word for word, others in SYNONYMS.items() for other in others} | PLURALS


def canonical(word: str) -> str:
    """The first name of a synonym or plural; any other word comes back as it is, in lower case."""
    word = word.lower()
    return _CANONICAL.get(word, word)


def words() -> list[str]:
    """Every word that has a token of its own, in a fixed order (the order gives the token ids)."""
    known = [*COLOURS, *SHAPES, *SIZES]
    known += [part for place in PLACES for part in place.split()]
    known += [part for relation in RELATIONS for part in relation.split()]
    known += [part for others in SYNONYMS.values() for other in others for part in other.split("-")]
    known += [*PLURALS, *FUNCTION_WORDS]
    return list(dict.fromkeys(known))
