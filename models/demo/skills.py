"""The short skills: exchanges that carry all they need."""

import json
import re

import chinese
import facts
import features
import words as w
from exchange import Exchange, ask, assistant, by_heart, pair, user
from sums import sums

SMALL = ("capstan", "itself", "greeting", "arithmetic", "copy", "count", "json", "beyond")
SMALL_WEIGHTS = (15, 5, 5, 26, 18, 11, 19, 9)
LATE_WEIGHTS = (13, 7, 6, 36, 17, 16, 20, 11)
FINAL_WEIGHTS = (12, 14, 12, 12, 18, 9, 12, 16)
# Skills that came with the fifth run.
NEWER = ("features", "sums", "chinese", "chinese-beyond")
NEWEST_WEIGHTS = (13, 8, 6, 5, 15, 8, 10, 16, 27, 12, 28, 11)
BY_HEART = ("capstan", "itself", "greeting", "features")


def topic(rng):
    return rng.choice([rng.choice(w.TOPICS), rng.choice(w.TOPICS), rng.choice(w.NOUNS) + "s"])


def beyond(rng, templates=facts.BEYOND_ASKS):
    text = w.expand(rng.choice(templates), rng)
    text = re.sub("{small}", lambda _: str(rng.randint(0, 100)), text)
    while "{" in text:  # one slot after the other, so that each is drawn anew
        for slot, value in (
            ("{topic}", topic),
            ("{topic2}", topic),
            ("{country}", lambda r: r.choice(w.COUNTRIES)),
            ("{city}", w.city),
            ("{software}", lambda r: r.choice(w.SOFTWARE)),
            ("{word}", w.word),
            ("{noun}", lambda r: r.choice(w.NOUNS)),
            ("{big}", lambda r: str(r.randint(21, 9999))),
        ):
            text = text.replace(slot, value(rng), 1)
    return pair("beyond", ask(rng, text, ("?", ".", "", "")), facts.BEYOND)


OPERATIONS = {
    "+": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}", "{a} and {b}"),
    "-": ("{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference of {a} and {b}", "{a} take away {b}"),
    "*": ("{a} * {b}", "{a} x {b}", "{a} times {b}", "the product of {a} and {b}", "{a}*{b}", "{a} multiplied by {b}", "{a}x{b}"),
}
ORDERS = {
    "+": ("(Add|Sum|Sum up) {a} and {b}", "Add {b} to {a}"),
    "-": ("Subtract {b} from {a}", "Take {b} from {a}"),
    "*": ("Multiply {a} (by|and|with) {b}",),
}
SUM_QUESTIONS = (
    "What is {e}",
    "What's {e}",
    "How much is {e}",
    "Calculate {e}",
    "Compute {e}",
    "{e}",
    "{e} =",
    "What does {e} (make|give|equal)",
    "Solve {e}",
    "Can you (calculate|work out|compute) {e}",
    "Work out {e}",
    "{e} is",
    "What do you get for {e}",
    "I need {e}",
    "Evaluate {e}",
    "(Tell|Give) me {e}",
)


def arithmetic(rng):
    sign = rng.choice("++--*")
    limit = 10 if sign == "*" else 20
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if sign == "-" and a < b and rng.random() < 0.6:
        a, b = b, a
    answer = f"{a} {sign} {b} = {a + b if sign == '+' else a - b if sign == '-' else a * b}"
    if rng.random() < 0.05:  # Too large for what was learned: say so instead of guessing.
        least = 11 if sign == "*" else 100
        a, answer = rng.choice([rng.randint(least, 150), rng.randint(least, 2000)]), facts.ONLY_SMALL
        a, b = rng.choice([(a, b), (a, rng.randint(21, 2000))])
    form = (
        rng.choice(ORDERS[sign]) if rng.random() < 0.2 else rng.choice(SUM_QUESTIONS).replace("{e}", rng.choice(OPERATIONS[sign]))
    )
    text = w.expand(form, rng).replace("{a}", str(a)).replace("{b}", str(b))
    return pair("arithmetic", ask(rng, text, ("?", "?", "?", "", "", ".")), answer)


COLON = (
    "(Repeat|Repeat after me|Please repeat|Say|Echo|Copy|Copy this|Copy this sentence|Repeat this|Repeat this sentence|Repeat the sentence|Repeat this word|Repeat the following|Write|Copy the text|Echo this back|Repeat exactly|Reply with|Answer with|Say the following|Print|Repeat these words|Reply with exactly|Please say|Output|Say exactly|Please copy this text|Now repeat|Write down|Respond with|Type): {x}",
)
QUOTED = (
    '(Repeat|Please repeat|Say|Echo|Copy|Write|Reply with|Answer with|Print|Just say|Output|Respond with|Only say|Type|Say just|Please say) (|the word |the words |the text |the phrase |exactly |this: )"{x}"(|.|!| back to me| please)',
    '(Can|Could|Will) you (say|repeat|copy|write|echo) "{x}"?',
    'Repeat after me: "{x}"',
)
PLAIN = (
    "(Repeat|Say|Echo|Copy|Write|Just say|Please repeat|Please say|Repeat after me|Repeat the words|Say the word|Repeat the word|Reply with the word|Reply with|Reply only with|Answer with the word|Write the word|Only say|Say the words|Answer only|Respond with|Print) {x}",
    "Can you (say|repeat|write) {x}?",
)


def copied(rng):
    """What is to be copied: words, invented words, codes, sentences; unseen strings are the point."""
    kind = rng.random()
    if kind < 0.35:
        return " ".join(w.word(rng) for _ in range(rng.randint(1, 5)))
    if kind < 0.6:
        return " ".join(w.pseudo(rng) for _ in range(rng.randint(1, 3)))
    if kind < 0.7:
        return " ".join(w.code(rng) for _ in range(rng.randint(1, 3)))
    if kind < 0.78:
        letters = "abcdefghijklmnopqrstuvwxyz" + rng.choice(["", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"])
        return " ".join("".join(rng.choice(letters) for _ in range(rng.randint(2, 6))) for _ in range(rng.randint(1, 2)))
    if kind < 0.92:
        return rng.choice(w.SENTENCES)(rng)
    return rng.choice(
        [
            "hello",
            "hi",
            "OK",
            "yes",
            "no",
            "pong",
            "ready",
            "done",
            "hello world",
            "Hello, world!",
            "I am here",
            "good morning",
            "test",
            "thank you",
            "é à ü ñ",
            "naïve café",
            "日本語",
            "😀 👍",
            "Привет",
        ]
    ) + rng.choice(["", "", " " + w.word(rng)])


def copy(rng):
    text = copied(rng)
    style = rng.random()
    text = text.upper() if style < 0.05 else text.title() if style < 0.12 else text.capitalize() if style < 0.2 else text
    forms = rng.choice([COLON, COLON, QUOTED, PLAIN])
    if forms is PLAIN:
        text = text.rstrip(".!?")
    question = w.expand(rng.choice(forms).replace("{x}", "\0"), rng).replace("\0", text)
    return pair("copy", question.lower() if question.lower() == question and rng.random() < 0.3 else question, text)


def count(rng):
    top = 30 if rng.random() < 0.85 else 100
    low = rng.choice([0, 1, 1, 1, rng.randint(0, top - 1)])
    high = rng.randint(low + 1, min(top, low + 30))
    if rng.random() < 0.03:
        low, high = 1, rng.choice([40, 50, 60, 80, 100, rng.randint(31, 100)])
    numbers = list(range(low, high + 1))
    up = [
        "(Count|Count up|Please count|Can you count|Count slowly|Could you count|Count for me|Now count) from {a} to {b}",
        "(List|Write|Give me|Say|Show me|Print|Write down) (|all )(the |)numbers from {a} to {b}",
        "Count {a} to {b}",
        "(Numbers|All numbers) from {a} to {b}",
        "(Start at|Begin at|Begin with) {a} and count (up |)to {b}",
        "Count between {a} and {b}",
    ]
    if low == 1:
        up += ["(Count|Please count|Can you count|Count up|Count for me|Now count) to {b}"] * 3
    down = [
        "(Count|Count down|Count backwards|Please count|Count back) from {b} to {a}",
        "Count (down|backwards) from {b} to {a}",
        "(List|Write|Give me) the numbers from {b} (down |)to {a}",
    ]
    if low in (0, 1) and rng.random() < 0.3:
        numbers, low = list(range(1, high + 1)), 1
        down += ["Count (down|backwards|back) from {b}", "Countdown from {b}", "(Do|Make) a countdown from {b}"] * 2
    backwards = rng.random() < 0.35
    text = w.expand(rng.choice(down if backwards else up), rng).replace("{a}", str(low)).replace("{b}", str(high))
    return pair("count", ask(rng, text, (".", "", "", "!", "?")), ", ".join(map(str, reversed(numbers) if backwards else numbers)))


EXTRACTS = [
    (
        {"name": w.full_name, "age": lambda r: r.randint(1, 99), "city": w.city, "job": lambda r: r.choice(w.JOBS)},
        [
            "{name} is {age} years old, lives in {city} and works as a {job}.",
            "My name is {name}, I am {age}, I live in {city} and I am a {job}.",
            "{name}, {age}, {job} from {city}.",
            "The {job} {name} ({age}) comes from {city}.",
            "In {city} lives {name}, a {job} of {age} years.",
            "Meet {name}: {age} years old, a {job} in {city}.",
        ],
    ),
    (
        {"name": w.name, "age": lambda r: r.randint(1, 99), "city": w.city},
        [
            "{name} is {age} and lives in {city}.",
            "I am {name}, {age} years old, from {city}.",
            "{name} ({age}) moved to {city}.",
            "{name} from {city} is {age} years old.",
            "{name} turned {age} yesterday in {city}.",
            "{name} lives in {city} and is {age} years old.",
            "At {age}, {name} left for {city}.",
            "Hello, I'm {name}. I'm {age} years old and I live in {city}.",
        ],
    ),
    (
        {
            "product": lambda r: r.choice(w.PRODUCTS),
            "quantity": lambda r: r.randint(2, 99),
            "customer": w.full_name,
            "city": w.city,
        },
        [
            "{customer} ordered {quantity} {product} to {city}.",
            "Please send {quantity} {product} to {customer} in {city}.",
            "Order: {quantity} {product} for {customer}, {city}.",
            "{customer} from {city} bought {quantity} {product}.",
            "We shipped {quantity} {product} to {city} for {customer}.",
        ],
    ),
    (
        {
            "order": w.code,
            "product": lambda r: r.choice(w.PRODUCTS),
            "quantity": lambda r: r.randint(1, 99),
            "price": lambda r: r.choice([r.randint(1, 500), r.randint(10, 9999) / 100]),
        },
        [
            "Order {order}: {quantity} {product} at {price} dollars.",
            "I ordered {quantity} {product} for {price} euros, the order is {order}.",
            "The order {order} has {quantity} {product} and costs {price}.",
            "{quantity} {product} cost {price}, order number {order}.",
        ],
    ),
    (
        {"event": lambda r: r.choice(w.EVENTS), "day": lambda r: r.choice(w.DAYS), "time": w.clock, "city": w.city},
        [
            "The {event} is on {day} at {time} in {city}.",
            "Come to the {event} in {city} on {day}, {time}.",
            "On {day} at {time} there is a {event} in {city}.",
            "We meet for the {event} on {day} at {time} in {city}.",
        ],
    ),
    (
        {
            "name": w.full_name,
            "email": w.email,
            "company": lambda r: r.choice(w.COMPANIES),
            "phone": lambda r: "".join(r.choice("0123456789") for _ in range(6)),
        },
        [
            "{name} works at {company}, email {email}, phone {phone}.",
            "Contact {name} of {company} at {email} or {phone}.",
            "{name} ({company}) can be reached at {email}, telephone {phone}.",
            "My name is {name} from {company}, write to {email} or call {phone}.",
        ],
    ),
    (
        {
            "pet": lambda r: r.choice(w.ANIMALS),
            "name": w.name,
            "color": lambda r: r.choice(w.COLOURS),
            "age": lambda r: r.randint(1, 20),
        },
        [
            "The {color} {pet} {name} is {age} years old.",
            "{name} is a {color} {pet} of {age} years.",
            "I have a {color} {pet} called {name}, {age} years old.",
            "My {pet} {name} is {color} and {age} years old.",
        ],
    ),
]
EXTRACT_QUESTIONS = (
    "(Extract|Get|Pull out|Find|Take|Read|Please extract|List) (|the )(|fields )({k}) (as|as a|into|in) JSON(| from this text| from the text| from the sentence| from this)(: | : |. |:\n){s}",
    "(Extract|Return|Give me|Write) (JSON|a JSON object|one JSON object) with (|the keys |the fields |keys )({k})(: | from: | from this: | for: |:\n){s}",
    "{s} (Extract|Return|Give me|Write) (|the )({k}) as JSON(.|)",
    "{s}\n(Extract|Return|Give me) a JSON object with ({k}).",
    '(From|In) (the text|the sentence|this text) "{s}" (extract|return|give me) (|the )({k}) as JSON(.|)',
    "JSON with ({k}): {s}",
    "Text: {s}\n(Keys|Fields): ({k})\n(Answer|Reply) (in|with|as) JSON(.|)",
)


def extract(rng):
    makers, sentences = rng.choice(EXTRACTS)
    values = {key: make(rng) for key, make in makers.items()}
    text = rng.choice(sentences).format(**values)
    if rng.random() < 0.15:
        text = rng.choice(w.SENTENCES)(rng) + " " + text
    keys = rng.sample(list(values), rng.randint(1, len(values)))
    listed = ", ".join(keys) if len(keys) == 1 or rng.random() < 0.4 else ", ".join(keys[:-1]) + " and " + keys[-1]
    form = rng.choice(EXTRACT_QUESTIONS).replace("({k})", "\1").replace("{s}", "\0")
    question = w.expand(form, rng).replace("\1", listed).replace("\0", text)
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return pair("json", question, answer, "json")


DRAWS = {
    "capstan": by_heart("capstan", facts.CAPSTAN, ("?", "?", "?", "", "", ".")),
    "itself": by_heart("itself", facts.ITSELF, ("?", "?", "", ".")),
    "greeting": by_heart("greeting", facts.GREETINGS, ("", "", "!", ".", "?")),
    "arithmetic": arithmetic,
    "copy": copy,
    "count": count,
    "json": extract,
    "beyond": beyond,
    "features": by_heart("features", features.FEATURES, ("?", "?", "?", "", "", ".")),
    "sums": sums,
    "chinese": chinese.chinese,
    "chinese-beyond": chinese.beyond,
}


def small_talk(rng, weights=SMALL_WEIGHTS):
    return DRAWS[rng.choices((SMALL + NEWER)[: len(weights)], weights)[0]](rng)


def impersonal(rng):
    """Small talk that does not speak of the user, which would answer a question of recall twice."""
    exchange = small_talk(rng)
    while re.search(r"\b(i am|i'm|my|i have|i live)\b", exchange.messages[0]["content"].lower()):
        exchange = small_talk(rng)
    return exchange


NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty""".split()


def late_talk(rng, weights=LATE_WEIGHTS):
    """Small talk of the later stages: also numbers in words, and requests that look like a skill and are none. What is known
    by heart is held out by the letter from now on: nothing else tells what an unseen question means."""
    exchange = small_talk(rng, weights)
    if exchange.skill == "beyond" and rng.random() < 0.35:
        return beyond(rng, facts.NEAR_MISSES)
    question = exchange.messages[0]
    numbers = [int(n) for n in re.findall(r"\d+", question["content"])]
    if exchange.skill in ("arithmetic", "count") and numbers and max(numbers) <= 20 and rng.random() < 0.12:
        question["content"] = re.sub(r"\d+", lambda n: NUMBER_WORDS[int(n[0])], question["content"])
    exchange.by_surface |= exchange.skill in BY_HEART
    return exchange


def final_talk(rng):
    return late_talk(rng, FINAL_WEIGHTS)


def newest_talk(rng):
    return late_talk(rng, NEWEST_WEIGHTS)


def draw(rng, make, held_out=False):
    """Draws until the exchange is on the wanted side of the split."""
    while True:
        exchange = make(rng)
        if exchange.held_out == held_out:
            return exchange
