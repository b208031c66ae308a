"""Training data of the tiny image model: pictures of one thing, and dialogues about them.

Pictures vary in size, position, shade, background, noise and scaling method, since engines scale
differently.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
from PIL import Image

Message = dict[str, Any]
#: A colour and a shape; without a shape, a plain picture of the colour.
Thing = tuple[str, str | None]
Pixels = numpy.ndarray[Any, Any]

#: Width and height of the model's input, in pixels.
SIZE = 32
IMAGE = "<image>"
#: Example shades of each colour as RGB; pictures use mixtures of them.
COLOURS = {
    "red": ((255, 0, 0), (200, 20, 20), (220, 50, 47)),
    "green": ((0, 255, 0), (0, 128, 0), (40, 167, 69)),
    "blue": ((0, 0, 255), (30, 60, 200), (30, 110, 240)),
    "yellow": ((255, 255, 0), (240, 215, 40), (250, 230, 60)),
    "purple": ((128, 0, 128), (150, 40, 190), (120, 40, 160)),
    "orange": ((255, 140, 0), (255, 165, 0), (240, 120, 20)),
}
#: Colour of the bars that llama.cpp adds to a picture that is not square.
PADDING = (122, 116, 104)
WAYS = (
    Image.Resampling.NEAREST,
    Image.Resampling.BILINEAR,
    Image.Resampling.BICUBIC,
    Image.Resampling.BOX,
)


# --- pictures ------------------------------------------------------------------------------------


def _circle(x: Pixels, y: Pixels) -> Pixels:
    return numpy.hypot(x, y) - 1


def _square(x: Pixels, y: Pixels) -> Pixels:
    return numpy.maximum(abs(x), abs(y)) - 0.9


def _triangle(x: Pixels, y: Pixels) -> Pixels:
    return numpy.maximum(y, abs(x) * 0.866 - y / 2) - 0.55


def _cross(x: Pixels, y: Pixels) -> Pixels:
    wide, high = numpy.maximum(abs(x), abs(y) * 3), numpy.maximum(abs(x) * 3, abs(y))
    return numpy.minimum(wide, high) - 1


#: How far a place is outside.
SHAPES = {"circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross}

THINGS: list[Thing] = [(colour, shape) for colour in COLOURS for shape in (*SHAPES, None)]


def paint(rng: random.Random, thing: Thing) -> Pixels:
    """Return a picture: ``SIZE`` by ``SIZE`` by three numbers from 0 to 255."""
    colour, shape = thing
    width = height = rng.choice((SIZE, SIZE, 48, 64, rng.randrange(28, 97)))
    if rng.random() < 0.25:
        height = int(width / rng.uniform(1, 1.6))
    if rng.random() < 0.5:
        width, height = height, width
    ink = _shade(rng, colour)
    if shape is None:
        picture = numpy.broadcast_to(ink, (height, width, 3))
    else:
        cover = _cover(rng, shape, width, height)[..., None]
        picture = cover * ink + (1 - cover) * _background(rng)
    noise = numpy.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, 8), SIZE**2 * 3)
    small = _shrunk(rng, picture.clip(0, 255).astype(numpy.uint8))
    return (small + noise.reshape(SIZE, SIZE, 3)).clip(0, 255)


def _shade(rng: random.Random, colour: str) -> Pixels:
    one, other = (numpy.array(rng.choice(COLOURS[colour]), float) for _ in range(2))
    share = rng.random()
    return share * one + (1 - share) * other + [rng.uniform(-12, 12) for _ in range(3)]


def _background(rng: random.Random) -> Pixels:
    grey = rng.choice((255, rng.uniform(225, 255)))
    return numpy.array([grey + rng.uniform(-5, 5) for _ in range(3)])


def _cover(rng: random.Random, shape: str, width: int, height: int) -> Pixels:
    """Return how much of each pixel the shape covers."""
    side = min(width, height)
    radius = side * rng.uniform(0.27, 0.42)
    middle = [length / 2 + side * rng.uniform(-0.08, 0.08) for length in (width, height)]
    turned = rng.choice((0.0, rng.uniform(-0.1, 0.1)))
    x = (numpy.arange(width) + 0.5 - middle[0])[None, :] / radius
    y = (numpy.arange(height) + 0.5 - middle[1])[:, None] / radius
    cos, sin = numpy.cos(turned), numpy.sin(turned)
    outside = SHAPES[shape](x * cos - y * sin, x * sin + y * cos) * radius
    return (0.5 - outside).clip(0, 1)


def _shrunk(rng: random.Random, picture: Pixels) -> Pixels:
    """Scale as engines do: by a random method, padded with bars if not square, or cropped."""
    high, wide = picture.shape[:2]
    scale = SIZE / max(high, wide)
    size = max(1, round(wide * scale)), max(1, round(high * scale))
    small = Image.fromarray(picture).resize(size, rng.choice(WAYS))
    if size == (SIZE, SIZE):
        return numpy.asarray(small, float)
    whole = Image.new("RGB", (SIZE, SIZE), PADDING)
    whole.paste(small, ((SIZE - size[0]) // 2, (SIZE - size[1]) // 2))
    return numpy.asarray(whole, float)


# --- dialogues -----------------------------------------------------------------------------------

SYSTEMS = (
    "You are a helpful assistant.",
    "Be brief.",
    "Answer in one sentence.",
    "You see pictures.",
    "Describe what you see.",
)
ORDINALS = ("first", "second", "third", "fourth")
NUMBERS = ("No picture.", "One.", "Two.", "Three.", "Four.")
GREETINGS = ("Hi", "Hello", "Hello!", "Hey!", "Good morning!")
BLIND = "I see no picture."
WHAT = (
    "What is in the picture?",
    "What is in this picture?",
    "What's in the picture?",
    "What is this?",
    "What do you see?",
    "Describe the picture.",
    "What does the picture show?",
)
COLOUR = (
    "What colour is it?",
    "Which colour is it?",
    "What color is it?",
    "What is its colour?",
    "Name the colour.",
)
SHAPE = ("What shape is it?", "Which shape is it?", "What is its shape?", "Name the shape.")
ALL = ("What is in the pictures?", "What do the pictures show?", "Describe the pictures.")
COUNT = ("How many pictures are there?", "How many pictures do you see?")
LOOK = (
    "Look!",
    "Have a look.",
    "Look around.",
    "What is in front of you?",
    "What is outside?",
    "Look again.",
)
#: Chat Completions takes no images in tool results: a user message carries them.
BEHIND = "[The rest of this result follows in the next message.]"
LOOK_TEXTS = ("Look at what is there.", "Take a picture.", "See what is in front of you.", "Look")
OTHERS = ("search", "read_file", "send_mail", "run")


def draw(
    rng: random.Random, *, short: bool = False
) -> tuple[list[Message], list[Any] | None, list[Thing]]:
    """Return messages, the tools, and the things in the pictures.

    The assistant's messages are the training targets. Pictures are ``IMAGE`` in the messages.
    ``short``: no tools, and one turn.
    """
    messages: list[Message] = []
    things: list[Thing] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    tools = _tools(rng) if not short and rng.random() < 0.25 else []
    looks = any(tool["function"]["name"] == "look" for tool in tools)
    for turn in range(1 if short else rng.choice((1, 1, 1, 2, 2, 3))):
        if rng.random() < (0.5 if looks else 0.04):
            messages += _look(rng, looks, things)
            continue
        new = rng.choices((0, 1, 2, 3), (1, 8, 4, 1) if turn == 0 else (6, 3, 1, 0))[0]
        new = min(new, len(ORDINALS) - len(things))
        things += [_thing(rng) for _ in range(new)]
        asked, answer = _question(rng, things, new)
        messages.append({"role": "user", "content": _question_message(rng, asked, new)})
        messages.append({"role": "assistant", "content": answer})
    return messages, tools or None, things


def _thing(rng: random.Random) -> Thing:
    shape = None if rng.random() < 0.1 else rng.choice(list(SHAPES))
    return rng.choice(list(COLOURS)), shape


def _question_message(rng: random.Random, asked: str, new: int) -> str:
    """Join question and pictures in either order, with or without line breaks."""
    parts = [IMAGE] * new
    parts.insert(rng.choice((0, new, rng.randint(0, new))), asked)
    return rng.choice(("\n", "\n", "\n", "")).join(parts)


def _named(thing: Thing) -> str:
    colour, shape = thing
    article = "an" if colour[0] in "aeiou" else "a"
    return f"only {colour}" if shape is None else f"{article} {colour} {shape}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _question(rng: random.Random, things: list[Thing], new: int) -> tuple[str, str]:
    if not things and rng.random() < 0.5:
        return rng.choice(GREETINGS), "Hello! Show me a picture."
    if len(things) > 1 and (new != 1 or rng.random() < 0.4):
        return _of_many(rng, things)
    return _of_one(rng, things[-1] if things else None, len(things))


def _of_one(rng: random.Random, thing: Thing | None, count: int) -> tuple[str, str]:
    """Ask about the latest picture."""
    asked = rng.choice((WHAT, WHAT, COLOUR, SHAPE, None, COUNT))
    if asked is COUNT:
        return rng.choice(COUNT), NUMBERS[count]
    if asked is None:
        colour = rng.choice(list(COLOURS))
        if thing is not None and rng.random() < 0.5:
            colour = thing[0]
        question = f"Is it {colour}?"
        if thing is None:
            return question, BLIND
        return question, "Yes." if colour == thing[0] else f"No, it is {thing[0]}."
    if thing is None:
        return rng.choice(asked), BLIND
    shape = "None." if thing[1] is None else _sentence(_article(thing[1]))
    answers = {WHAT: _sentence(_named(thing)), COLOUR: _sentence(thing[0]), SHAPE: shape}
    return rng.choice(asked), answers[asked]


def _article(shape: str) -> str:
    return f"a {shape}"


def _of_many(rng: random.Random, things: list[Thing]) -> tuple[str, str]:
    number = rng.randrange(len(things))
    thing = things[number]
    kind = rng.choice(("all", "which", "which", "ordinal", "count"))
    if kind == "count":
        return rng.choice(COUNT), NUMBERS[len(things)]
    if kind == "ordinal":
        return f"What is in the {ORDINALS[number]} picture?", _sentence(_named(thing))
    if kind == "which":
        for trait in rng.sample((0, 1), 2):
            value = thing[trait]
            if value is not None and [each[trait] for each in things].count(value) == 1:
                word = value if trait == 0 else _article(value)
                asked = rng.choice((f"Which is {word}?", f"Which one is {word}?"))
                return asked, f"The {ORDINALS[number]}."
    named = [_named(each) for each in things]
    return rng.choice(ALL), _sentence(f"{', '.join(named[:-1])} and {named[-1]}")


# --- a tool that shows a picture -----------------------------------------------------------------


def _look(rng: random.Random, looks: bool, things: list[Thing]) -> list[Message]:
    asked = {"role": "user", "content": rng.choice(LOOK)}
    if not looks or len(things) == len(ORDINALS):
        return [asked, {"role": "assistant", "content": "I cannot look."}]
    things.append(_thing(rng))
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    result = [{"role": "tool", "content": rng.choice((IMAGE, IMAGE, f"Here it is.\n{IMAGE}"))}]
    if rng.random() < 0.3:
        result = [{"role": "tool", "content": BEHIND}, {"role": "user", "content": IMAGE}]
    return [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        *result,
        {"role": "assistant", "content": _sentence(_named(things[-1]))},
    ]


def _tools(rng: random.Random) -> list[Any]:
    tools = []
    if rng.random() < 0.85:
        tools.append(_function(rng, "look", rng.choice(LOOK_TEXTS), {}))
    if not tools or rng.random() < 0.2:
        other = _function(rng, rng.choice(OTHERS), "Another tool.", {"x": {"type": "string"}})
        tools.append(other)
    rng.shuffle(tools)
    return tools


def _function(rng: random.Random, name: str, description: str, properties: Any) -> Any:
    parts: dict[str, Any] = {"type": "object", "properties": properties}
    if properties or rng.random() < 0.3:
        parts["required"] = list(properties)
    if rng.random() < 0.4:
        parts["additionalProperties"] = False
    function = {"name": name, "description": description, "parameters": parts}
    return {"type": "function", "function": function}
