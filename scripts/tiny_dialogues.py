"""Training data of the tests' tiny model: a closed set of dialogues, drawn at random.

Greetings, capitals, a story that can be stopped, and two tools. Names and numbers are copied from
the prompt rather than memorized, so most other values work as well.
"""

from __future__ import annotations

import json
import random
from typing import Any

Message = dict[str, Any]

CITIES = (
    "Tokyo Paris London Berlin Madrid Rome Oslo Cairo Lima Delhi Vienna Dublin Athens Lisbon Prague"
    " Warsaw Geneva Boston Chicago Toronto Sydney Nairobi Quito Hanoi Seoul Kyoto Milan Turin Bern"
    " Ghent"
).split()
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Japan": "Tokyo",
    "Austria": "Vienna",
    "Ireland": "Dublin",
}
SKIES = "sunny rainy cloudy windy snowy foggy stormy clear warm cold mild dry wet hot".split()
GREETINGS = ("Hi", "Hello", "Hey", "Hi!", "Hello!", "Hey there!", "Good morning!", "Say hello.")
THANKS = ("Thanks!", "Thank you!", "Thank you.", "Thanks a lot!")
SYSTEMS = (
    "You are a helpful assistant.",
    "Be brief.",
    "Answer in one sentence.",
    "You are a friendly assistant who knows the weather.",
    "Use the tools you have.",
)
STORY = (
    "Once upon a time there was a small boat that wanted to see the sea. In the morning it left the"
    " harbour, and the wind was kind. It passed the old lighthouse, and the keeper waved. It passed"
    " a whale, and the whale sang. At noon it came to an island where nobody lived but birds, and"
    " the birds told it of other seas, warm ones and cold ones, and of ships as tall as houses."
    " When the sun went down the boat turned round, for the harbour is best at night. It told"
    " the other boats all that it had seen, and they are talking about it to this day."
)
WEATHER_TEXTS = (
    "Get the weather in a city.",
    "The weather in a city.",
    "Look up the current weather.",
    "Current weather for a place",
    "Get weather.",
    "",
)
ADD_TEXTS = ("Add two numbers.", "The sum of two numbers.", "Adds a and b.", "Add", "")
OTHERS = ("search", "read_file", "send_mail", "run", "lookup_time", "translate")


def draw(rng: random.Random) -> tuple[list[Message], list[Any] | None]:
    """Return the messages, the last of which is the training target, and the tools."""
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    tools = _tools(rng) if rng.random() < 0.75 else []
    names = {tool["function"]["name"] for tool in tools}
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        messages += _exchange(rng, names)
    exchange = _exchange(rng, names)
    spoken = [at for at, message in enumerate(exchange) if message["role"] == "assistant"]
    messages += exchange[: rng.choice(spoken) + 1]
    return messages, tools or None


def _exchange(rng: random.Random, names: set[str]) -> list[Message]:
    """Return a random dialogue from the user's message to the model's final answer."""
    if "get_weather" in names or "add" in names:
        if rng.random() < 0.7:
            return _tool_loop(rng, names)
    return rng.choice((_greeting, _thanks, _capital, _count, _story, _unable))(rng, names)


def _assistant_turn(user: str, thought: str, answer: str) -> list[Message]:
    return [
        {"role": "user", "content": user},
        {"role": "assistant", "reasoning_content": thought, "content": answer},
    ]


def _greeting(rng: random.Random, _: set[str]) -> list[Message]:
    return _assistant_turn(
        rng.choice(GREETINGS), "The user greets me.", "Hello! How can I help you today?"
    )


def _thanks(rng: random.Random, _: set[str]) -> list[Message]:
    return _assistant_turn(rng.choice(THANKS), "The user thanks me.", "You are welcome!")


def _capital(rng: random.Random, _: set[str]) -> list[Message]:
    country, city = rng.choice(list(CAPITALS.items()))
    asked = f"What is the capital of {country}?"
    return _assistant_turn(
        asked, f"I know the capital of {country}.", f"The capital of {country} is {city}."
    )


def _count(rng: random.Random, _: set[str]) -> list[Message]:
    asked = rng.choice(("Count to ten.", "Please count to ten.", "Count to 10."))
    return _assistant_turn(asked, "I count.", ", ".join(map(str, range(1, 11))) + ".")


def _story(rng: random.Random, _: set[str]) -> list[Message]:
    asked = rng.choice(("Tell me a story.", "Tell me a long story.", "Tell a story."))
    return _assistant_turn(asked, "I tell the story of the boat.", STORY)


def _city(rng: random.Random) -> str:
    """Return a known city or, so that the model learns to copy names, an invented one."""
    if rng.random() < 0.9:
        return rng.choice(CITIES)
    letters = (
        rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.choice((2, 3)))
    )
    return ("".join(letters) + rng.choice(("", "n", "r", "s"))).capitalize()


def _unable(rng: random.Random, names: set[str]) -> list[Message]:
    """Return a dialogue with a request for which there is no tool."""
    if "get_weather" not in names:
        asked = _ask_weather(rng, _city(rng))
        return _assistant_turn(
            asked, "I have no tool for the weather.", "I cannot look up the weather."
        )
    if "add" not in names:
        asked = _ask_sum(rng, rng.randrange(100), rng.randrange(100))
        return _assistant_turn(asked, "I have no tool for sums.", "I cannot add numbers.")
    return _greeting(rng, names)


# --- the tool loop -------------------------------------------------------------------------------


def _ask_weather(rng: random.Random, city: str) -> str:
    return rng.choice(
        (
            f"What is the weather in {city}?",
            f"How is the weather in {city}?",
            f"What's the weather in {city}?",
            f"What is the weather like in {city}?",
        )
    )


def _ask_sum(rng: random.Random, a: int, b: int) -> str:
    return rng.choice((f"What is {a} plus {b}?", f"What is {a} + {b}?", f"Add {a} and {b}."))


def _weather(rng: random.Random, city: str, *, plain: bool = False) -> tuple[str, Any, str, str]:
    """Return thought, call, result and answer."""
    sky = rng.choice(SKIES)
    if plain:
        call = _call("get_weather", {"city": city})
        return f"look up the weather in {city}", call, sky, f"The weather in {city} is {sky}."
    if rng.random() < 0.4:
        sky += rng.choice((" and ", ", ")) + rng.choice(SKIES)
    if rng.random() < 0.3:
        sky += f", {rng.randrange(40)} °C"
    result = sky if rng.random() < 0.6 else json.dumps({"weather": sky}, ensure_ascii=False)
    call = _call("get_weather", {"city": city})
    return f"look up the weather in {city}", call, result, f"The weather in {city} is {sky}."


def _sum(rng: random.Random, a: int, b: int) -> tuple[str, Any, str, str]:
    total = str(a + b)
    result = total if rng.random() < 0.7 else json.dumps({"sum": a + b})
    call = _call("add", {"a": a, "b": b})
    return f"add {a} and {b}", call, result, f"{a} plus {b} is {total}."


def _call(name: str, arguments: Any) -> Any:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_loop(rng: random.Random, names: set[str]) -> list[Message]:
    cities = [_city(rng), _city(rng)]
    a, b = rng.randrange(rng.choice((10, 100))), rng.randrange(rng.choice((10, 100)))
    choices = []
    if "get_weather" in names:
        choices.append((_ask_weather(rng, cities[0]), [_weather(rng, cities[0])]))
        one, two = (_weather(rng, city, plain=True) for city in cities)
        both = f"What is the weather in {cities[0]} and in {cities[1]}?"
        choices += [(both, [one, two])] * 2
    if "add" in names:
        choices.append((_ask_sum(rng, a, b), [_sum(rng, a, b)]))
    if {"get_weather", "add"} <= names:
        mixed = f"What is the weather in {cities[0]}, and what is {a} plus {b}?"
        choices.append((mixed, [_weather(rng, cities[0]), _sum(rng, a, b)]))
    asked, steps = rng.choice(choices)
    thought = "I will " + " and ".join(step[0] for step in steps) + "."
    results = [{"role": "tool", "content": step[2]} for step in steps]
    return [
        {"role": "user", "content": asked},
        {
            "role": "assistant",
            "reasoning_content": thought,
            "content": "",
            "tool_calls": [step[1] for step in steps],
        },
        *results,
        {
            "role": "assistant",
            "reasoning_content": "I have what I need.",
            "content": " ".join(step[3] for step in steps),
        },
    ]


# --- how tools are declared ----------------------------------------------------------------------


def _tools(rng: random.Random) -> list[Any]:
    """Return a random list of tools: some of the two known tools and other tools, with varying
    descriptions."""
    city = {"city": {"type": "string"}}
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    if rng.random() < 0.2:
        numbers = {"a": {"type": "number"}, "b": {"type": "number"}}
    known = [
        _function(rng, "get_weather", rng.choice(WEATHER_TEXTS), city),
        _function(rng, "add", rng.choice(ADD_TEXTS), numbers),
    ]
    tools = known if rng.random() < 0.5 else [rng.choice(known)]
    if rng.random() < 0.2:
        tools.append(_function(rng, rng.choice(OTHERS), "Another tool.", {"x": {"type": "string"}}))
    if rng.random() < 0.05:
        tools = tools[-1:]
    rng.shuffle(tools)
    return tools


def _function(rng: random.Random, name: str, description: str, properties: Any) -> Any:
    properties = {key: dict(value) for key, value in properties.items()}
    for key, value in properties.items():
        if rng.random() < 0.2:
            value["description"] = rng.choice((f"The {key}.", f"Name of the {key}", "A value."))
    parts = {"type": "object", "properties": properties, "required": list(properties)}
    if rng.random() < 0.5:
        parts["additionalProperties"] = False
    if rng.random() < 0.2:
        del parts["required"]
    keys = list(parts)
    if rng.random() < 0.3:
        rng.shuffle(keys)
    schema = {key: parts[key] for key in keys}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}
