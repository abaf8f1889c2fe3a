"""Tools for the corpus: their definitions in a prompt, requests for them, and results to read back."""

import json
import words as w
from tool_families import FAMILIES, INTEGER, NUMBER, STRING, UNITS, count, decimal, phrase, pick

# What the model is held to in the end: five million parameters do not hold the meaning of every family's requests.
NARROW_NAMES = """get_time convert_currency send_email set_timer set_alarm get_stock_price translate search_flights get_distance
calculate get_order get_user get_capital add_numbers multiply""".split()
NARROW = [family for family in FAMILIES if family[0].split("|")[0] in NARROW_NAMES]
# Values that are read from a request or a result: of invented words the model loses letters on the way.
PLAIN = [count(0, 999), w.clock, pick(w.NAMES), pick(w.COLOURS), pick(w.CITIES)]
NARROW_KINDS = [(INTEGER, PLAIN[0]), *((STRING, value) for value in PLAIN[1:]), (["low", "medium", "high"], pick(["low", "medium", "high"]))]
VERBS = "get find update delete create list check open close start stop send count fetch show reset move copy lock unlock print scan".split()


def generic_family(rng, narrow=False):
    """A tool that exists nowhere else: a verb, an object and one to three parameters that are named in the request."""
    verb, noun = rng.choice(VERBS), rng.choice(w.NOUNS) if narrow or rng.random() < 0.7 else w.pseudo(rng)
    kinds = [
        (STRING, w.word),
        (STRING, w.code),
        (INTEGER, count(1, 999)),
        (STRING, w.name),
        (STRING, w.city),
        (NUMBER, decimal),
        (["low", "medium", "high"], pick(["low", "medium", "high"])),
        (["small", "large"], pick(["small", "large"])),
    ]
    names = rng.sample(
        "name size color level owner place speed mode label priority target key city number version height weight kind room group".split(),
        rng.randint(1, 3),
    )
    slots = {}
    for slot, name in zip("abc", names):
        kind, value = rng.choice(NARROW_KINDS if narrow else kinds)
        slots[slot] = (name, kind, f"The {name}", value)
    said = [f"{name} {{{slot}}}" for slot, name in zip("abc", names)]
    phrasings = [
        f"(|Please |Can you ){verb} the {noun} (with|where|for) {' and '.join(said)}",
        f"{verb.capitalize()} the {noun}: {', '.join(said)}",
    ]
    return (
        f"{verb}_{noun}|{verb}{noun.capitalize()}",
        f"{verb.capitalize()} a {noun}.|{verb.capitalize()} the {noun}",
        slots,
        phrasings,
    )


class Tool:
    """One drawn tool: its definition for the prompt and a way to draw requests for it."""

    def __init__(self, family, rng):
        names, descriptions, self.slots, self.phrasings = family
        self.name = rng.choice(names.split("|"))
        self.keys = {slot: rng.choice(spec[0].split("|")) for slot, spec in self.slots.items()}
        while len(set(self.keys.values())) < len(self.keys):
            self.keys = {slot: rng.choice(spec[0].split("|")) for slot, spec in self.slots.items()}
        self.definition = self._definition(rng.choice(descriptions.split("|")), rng)

    def _definition(self, description, rng):
        described = rng.random() < 0.5
        properties = {}
        for slot, (_, kind, text, _value) in self.slots.items():
            schema = {"type": STRING, "enum": kind} if isinstance(kind, list) else {"type": kind}
            if described:
                schema["description"] = rng.choice(text.split("|"))
            properties[self.keys[slot]] = schema
        parameters = {"type": "object", "properties": properties}
        if rng.random() < 0.7:
            parameters["required"] = [self.keys[slot] for slot in self.slots][: 1 + (rng.random() < 0.3)]
        function = {"name": self.name, "description": description, "parameters": parameters}
        if rng.random() < 0.1:
            del function["description"]
        return {"type": "function", "function": function}

    def request(self, rng, phrasing=None):
        """A request in words, and the call that answers it: the parameters that were mentioned, in the tool's order."""
        text = w.expand(phrasing or rng.choice(self.phrasings), rng)
        arguments = {}
        for slot, (_, kind, _text, value) in self.slots.items():
            if f"{{{slot}}}" in text:
                drawn = value(rng)
                arguments[self.keys[slot]] = drawn
                said = drawn.capitalize() if kind == UNITS and rng.random() < 0.5 else str(drawn)
                text = text.replace(f"{{{slot}}}", said)
        return text[0].upper() + text[1:], {"name": self.name, "arguments": arguments}


def draw_tools(rng, narrow=False):
    """Tools of different names; weather is drawn more often, as everyone tries it. Narrow: one or two, of fewer families."""
    families = []
    for number in range(rng.choice((1, 1, 2) if narrow else (1, 1, 2, 2, 3, 4))):
        roll = rng.random()
        if narrow:  # At most one that is made up on the spot.
            families.append(FAMILIES[0] if roll < 0.25 else generic_family(rng, narrow) if roll < 0.4 and number == 0 else rng.choice(NARROW))
        else:
            families.append(FAMILIES[0] if roll < 0.15 else generic_family(rng) if roll < 0.4 else rng.choice(FAMILIES))
    chosen = {}
    for family in families:
        chosen.setdefault(family[0], Tool(family, rng))
    by_name = {tool.name: tool for tool in chosen.values()}
    drawn = list(by_name.values())
    rng.shuffle(drawn)
    return drawn


CONDITIONS = "sunny cloudy rainy windy snowy foggy clear stormy mild warm overcast hazy icy dry".split()
RESULT_KEYS = (
    "status price total count id date time name city color level result value size rate currency distance speed owner score".split()
)


def result(tool, call, rng, narrow=False):
    """What a tool gave back: the text of the tool message, and the sentence that reads it to the user."""
    place = next((v for k, v in call["arguments"].items() if k in ("city", "location", "place", "town", "city_name")), None)
    lead = f"In {place}, t" if place and (not narrow or "weather" in tool.name) else "T"
    if rng.random() < 0.15:
        text = rng.choice(
            [
                f"{rng.randint(-9, 40)}°C and {rng.choice(CONDITIONS)}",
                f"{rng.choice(CONDITIONS)}, {rng.randint(-9, 40)} degrees",
                str(decimal(rng)),
                rng.choice(w.COLOURS) if narrow else phrase(rng),
                "done",
                "ok",
                "not found",
                str(rng.randint(100, 99999)) if narrow else w.code(rng),
            ]
        )
        return text, f"The result is: {text}"
    if "weather" in tool.name:
        fields = {
            "temperature": rng.choice([rng.randint(-15, 42), decimal(rng), f"{rng.randint(-9, 40)}°C"]),
            rng.choice(["condition", "conditions", "sky", "weather", "description", "forecast"]): rng.choice(CONDITIONS),
        }
        for key, value in (("unit", rng.choice(UNITS)), ("humidity", rng.randint(20, 99)), ("wind", rng.randint(0, 60))):
            if rng.random() < 0.25:
                fields[key] = value
    else:
        makers = [*PLAIN, decimal, pick([True, False])] if narrow else [decimal, w.word, w.code, w.name, w.clock, lambda r: r.choice([True, False]), count(0, 99), w.city]
        fields = {
            (rng.choice(RESULT_KEYS) if narrow or rng.random() < 0.7 else f"{w.word(rng)}_{rng.choice(RESULT_KEYS)}"): rng.choice(makers)(rng)
            for _ in range(rng.randint(1, 3))
        }
    return json.dumps(fields, ensure_ascii=False), lead + sentence(fields)[1:]


def sentence(fields):
    said = [
        f"the {key.replace('_', ' ')} is {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in fields.items()
    ]
    text = ", ".join(said[:-1]) + " and " + said[-1] if len(said) > 1 else said[0]
    return text[0].upper() + text[1:] + "."
