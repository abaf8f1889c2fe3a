"""The generated chats that the demonstration model learns from: every chat follows from a seed.

An exchange is a request with its right answer. Whether it belongs to training or is held out follows from a hash of what the
user says in it, so that no held-out request is ever trained on, whatever the seed."""
import hashlib
import json
import random
import re
from dataclasses import dataclass, field

import facts
import tools as tool_box
import words as w

HELD_OUT_SHARE = 16
SMALL = ("capstan", "itself", "greeting", "arithmetic", "copy", "count", "json", "beyond")
SMALL_WEIGHTS = (15, 5, 5, 26, 18, 11, 19, 9)


@dataclass
class Exchange:
    skill: str
    messages: list
    judge: str = "text"
    system: str = ""
    tools: list = field(default_factory=list)

    @property
    def held_out(self):
        said = " ".join(m["content"] for m in self.messages if m["role"] == "user")
        normal = re.sub(r"[^\w+*/-]+", " ", said.lower()).strip()
        return hashlib.sha256(normal.encode()).digest()[0] % HELD_OUT_SHARE == 0


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def pair(skill, question, answer, judge="text"):
    return Exchange(skill, [user(question), assistant(answer)], judge)


def ask(rng, text, marks=("?", "?", "?", "", ".", " ?")):
    """A question as people type it: with or without a lead, capitals and the final mark."""
    if rng.random() < 0.2:
        lead = rng.choice(["Hey, ", "Hi, ", "Please tell me: ", "Question: ", "Quick question: ", "Tell me: ", "So, ", "And ", "Now: ", "Please: ", "OK, ", "I wonder: ", "One more thing: ", "Can you tell me: ", "Hello, ", "Hello! ", "Hi! ", "Thanks! ", f"Request {rng.randint(1, 200)}: ", f"[{rng.randint(1, 200)}] ", f"{rng.randint(1, 200)}. "])
        text = lead + (text[0].lower() + text[1:] if rng.random() < 0.6 and not text.startswith("I ") else text)
    roll = rng.random()
    if roll < 0.15:
        text = text.lower()
    elif roll < 0.17:
        text = text.upper()
    return text + rng.choice(marks) + ("" if rng.random() < 0.96 else rng.choice([" Thanks!", " Thank you.", " Please.", "?", " "]))


def by_heart(skill, table, marks):
    def draw(rng):
        answer, *phrasings = rng.choice(table)
        return pair(skill, ask(rng, w.expand(rng.choice(phrasings), rng), marks), answer)
    return draw


def topic(rng):
    return rng.choice([rng.choice(w.TOPICS), rng.choice(w.TOPICS), rng.choice(w.NOUNS) + "s", w.thing(rng), w.word(rng), w.name(rng)])


def beyond(rng, templates=facts.BEYOND_ASKS):
    text = w.expand(rng.choice(templates), rng)
    if templates is facts.BEYOND_ASKS and rng.random() < 0.08:  # not a request at all
        text = rng.choice([rng.choice(SENTENCES)(rng).rstrip("."), " ".join(w.pseudo(rng) for _ in range(rng.randint(1, 5))), " ".join(w.word(rng) for _ in range(rng.randint(1, 5)))])
    while "{" in text:  # one slot after the other, so that each is drawn anew
        for slot, value in (("{topic}", topic), ("{topic2}", topic), ("{country}", lambda r: r.choice(w.COUNTRIES)), ("{city}", w.city), ("{word}", w.word), ("{noun}", lambda r: r.choice(w.NOUNS)), ("{big}", lambda r: str(r.randint(21, 9999)))):
            text = text.replace(slot, value(rng), 1)
    return pair("beyond", ask(rng, text, ("?", ".", "", "")), facts.BEYOND)


OPERATIONS = {
    "+": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}", "{a} and {b}"),
    "-": ("{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference of {a} and {b}", "{a} take away {b}"),
    "*": ("{a} * {b}", "{a} x {b}", "{a} times {b}", "the product of {a} and {b}", "{a}*{b}", "{a} multiplied by {b}", "{a}x{b}"),
}
ORDERS = {"+": ("(Add|Sum|Sum up) {a} and {b}", "Add {b} to {a}"), "-": ("Subtract {b} from {a}", "Take {b} from {a}"), "*": ("Multiply {a} (by|and|with) {b}",)}
SUM_QUESTIONS = ("What is {e}", "What's {e}", "How much is {e}", "Calculate {e}", "Compute {e}", "{e}", "{e} =", "What does {e} (make|give|equal)", "Solve {e}", "Can you (calculate|work out|compute) {e}", "Work out {e}", "{e} is", "What do you get for {e}", "I need {e}", "Evaluate {e}", "(Tell|Give) me {e}")


def arithmetic(rng):
    sign = rng.choice("++--*")
    limit = 10 if sign == "*" else 20
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if sign == "-" and a < b and rng.random() < 0.6:
        a, b = b, a
    answer = f"{a} {sign} {b} = {a + b if sign == '+' else a - b if sign == '-' else a * b}"
    if rng.random() < 0.05:  # Too large for what was learned: say so instead of guessing.
        a, answer = rng.randint(21, 2000), facts.ONLY_SMALL
        a, b = rng.choice([(a, b), (a, rng.randint(21, 2000))])
    form = rng.choice(ORDERS[sign]) if rng.random() < 0.2 else rng.choice(SUM_QUESTIONS).replace("{e}", rng.choice(OPERATIONS[sign]))
    text = w.expand(form, rng).replace("{a}", str(a)).replace("{b}", str(b))
    return pair("arithmetic", ask(rng, text, ("?", "?", "?", "", "", ".")), answer)


COLON = ("(Repeat|Repeat after me|Please repeat|Say|Echo|Copy|Copy this|Repeat this|Repeat the following|Write|Copy the text|Echo this back|Repeat exactly|Reply with|Answer with|Say the following|Print|Repeat these words|Reply with exactly|Please say|Output|Say exactly|Please copy this text|Now repeat|Write down|Respond with|Type): {x}",)
QUOTED = ('(Repeat|Please repeat|Say|Echo|Copy|Write|Reply with|Answer with|Print|Just say|Output|Respond with|Only say|Type|Say just|Please say) (|the word |the words |the text |the phrase |exactly |this: )"{x}"(|.|!| back to me| please)', '(Can|Could|Will) you (say|repeat|copy|write|echo) "{x}"?', 'Repeat after me: "{x}"')
PLAIN = ("(Repeat|Say|Echo|Copy|Write|Just say|Please repeat|Please say|Repeat after me|Repeat the words|Say the word|Repeat the word|Reply with the word|Reply with|Reply only with|Answer with the word|Write the word|Only say|Say the words|Answer only|Respond with|Print) {x}", "Can you (say|repeat|write) {x}?")


def copied(rng):
    """What is to be copied: words, invented words, codes, sentences; unseen strings are the point."""
    kind = rng.random()
    if kind < 0.35:
        return " ".join(w.word(rng) for _ in range(rng.randint(1, 7)))
    if kind < 0.6:
        return " ".join(w.pseudo(rng) for _ in range(rng.randint(1, 6)))
    if kind < 0.7:
        return " ".join(w.code(rng) for _ in range(rng.randint(1, 4)))
    if kind < 0.78:
        letters = "abcdefghijklmnopqrstuvwxyz" + rng.choice(["", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"])
        return " ".join("".join(rng.choice(letters) for _ in range(rng.randint(2, 6))) for _ in range(rng.randint(1, 4)))
    if kind < 0.92:
        return rng.choice(SENTENCES)(rng)
    return rng.choice(["hello", "hi", "OK", "yes", "no", "pong", "ready", "done", "hello world", "Hello, world!", "I am here", "good morning", "test", "thank you", "é à ü ñ", "naïve café", "日本語", "😀 👍", "Привет"]) + rng.choice(["", "", " " + w.word(rng)])


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
    up = ["(Count|Count up|Please count|Can you count|Count slowly|Could you count|Count for me|Now count) from {a} to {b}", "(List|Write|Give me|Say|Show me|Print|Write down) (|all )(the |)numbers from {a} to {b}", "Count {a} to {b}", "(Numbers|All numbers) from {a} to {b}", "(Start at|Begin at|Begin with) {a} and count (up |)to {b}", "Count between {a} and {b}"]
    if low == 1:
        up += ["(Count|Please count|Can you count|Count up|Count for me|Now count) to {b}"] * 3
    down = ["(Count|Count down|Count backwards|Please count|Count back) from {b} to {a}", "Count (down|backwards) from {b} to {a}", "(List|Write|Give me) the numbers from {b} (down |)to {a}"]
    if low in (0, 1) and rng.random() < 0.3:
        numbers, low = list(range(1, high + 1)), 1
        down += ["Count (down|backwards|back) from {b}", "Countdown from {b}", "(Do|Make) a countdown from {b}"] * 2
    backwards = rng.random() < 0.35
    text = w.expand(rng.choice(down if backwards else up), rng).replace("{a}", str(low)).replace("{b}", str(high))
    return pair("count", ask(rng, text, (".", "", "", "!", "?")), ", ".join(map(str, reversed(numbers) if backwards else numbers)))


EXTRACTS = [
    ({"name": w.full_name, "age": lambda r: r.randint(1, 99), "city": w.city, "job": lambda r: r.choice(w.JOBS)},
     ["{name} is {age} years old, lives in {city} and works as a {job}.", "My name is {name}, I am {age}, I live in {city} and I am a {job}.", "{name}, {age}, {job} from {city}.", "The {job} {name} ({age}) comes from {city}.", "In {city} lives {name}, a {job} of {age} years.", "Meet {name}: {age} years old, a {job} in {city}."]),
    ({"name": w.name, "age": lambda r: r.randint(1, 99), "city": w.city},
     ["{name} is {age} and lives in {city}.", "I am {name}, {age} years old, from {city}.", "{name} ({age}) moved to {city}.", "{name} from {city} is {age} years old.", "{name} turned {age} yesterday in {city}.", "{name} lives in {city} and is {age} years old.", "At {age}, {name} left for {city}.", "Hello, I'm {name}. I'm {age} years old and I live in {city}."]),
    ({"product": lambda r: r.choice(w.PRODUCTS), "quantity": lambda r: r.randint(2, 99), "customer": w.full_name, "city": w.city},
     ["{customer} ordered {quantity} {product} to {city}.", "Please send {quantity} {product} to {customer} in {city}.", "Order: {quantity} {product} for {customer}, {city}.", "{customer} from {city} bought {quantity} {product}.", "We shipped {quantity} {product} to {city} for {customer}."]),
    ({"order": w.code, "product": lambda r: r.choice(w.PRODUCTS), "quantity": lambda r: r.randint(1, 99), "price": lambda r: r.choice([r.randint(1, 500), r.randint(10, 9999) / 100])},
     ["Order {order}: {quantity} {product} at {price} dollars.", "I ordered {quantity} {product} for {price} euros, the order is {order}.", "The order {order} has {quantity} {product} and costs {price}.", "{quantity} {product} cost {price}, order number {order}."]),
    ({"event": lambda r: r.choice(w.EVENTS), "day": lambda r: r.choice(w.DAYS), "time": tool_box.clock, "city": w.city},
     ["The {event} is on {day} at {time} in {city}.", "Come to the {event} in {city} on {day}, {time}.", "On {day} at {time} there is a {event} in {city}.", "We meet for the {event} on {day} at {time} in {city}."]),
    ({"name": w.full_name, "email": tool_box.email, "company": lambda r: r.choice(w.COMPANIES), "phone": lambda r: "".join(r.choice("0123456789") for _ in range(6))},
     ["{name} works at {company}, email {email}, phone {phone}.", "Contact {name} of {company} at {email} or {phone}.", "{name} ({company}) can be reached at {email}, telephone {phone}.", "My name is {name} from {company}, write to {email} or call {phone}."]),
    ({"pet": lambda r: r.choice(w.ANIMALS), "name": w.name, "color": lambda r: r.choice(w.COLOURS), "age": lambda r: r.randint(1, 20)},
     ["The {color} {pet} {name} is {age} years old.", "{name} is a {color} {pet} of {age} years.", "I have a {color} {pet} called {name}, {age} years old.", "My {pet} {name} is {color} and {age} years old."]),
]
EXTRACT_QUESTIONS = ("(Extract|Get|Pull out|Find|Take|Read|Please extract|List) (|the )(|fields )({k}) (as|as a|into|in) JSON(| from this text| from the text| from the sentence| from this)(: | : |. |:\n){s}", "(Extract|Return|Give me|Write) (JSON|a JSON object|one JSON object) with (|the keys |the fields |keys )({k})(: | from: | from this: | for: |:\n){s}",
    "{s} (Extract|Return|Give me|Write) (|the )({k}) as JSON(.|)", "{s}\n(Extract|Return|Give me) a JSON object with ({k}).", "(From|In) (the text|the sentence|this text) \"{s}\" (extract|return|give me) (|the )({k}) as JSON(.|)", "JSON with ({k}): {s}", "Text: {s}\n(Keys|Fields): ({k})\n(Answer|Reply) (in|with|as) JSON(.|)")


def extract(rng):
    makers, sentences = rng.choice(EXTRACTS)
    values = {key: make(rng) for key, make in makers.items()}
    text = rng.choice(sentences).format(**values)
    if rng.random() < 0.15:
        text = rng.choice(SENTENCES)(rng) + " " + text
    keys = rng.sample(list(values), rng.randint(1, len(values)))
    listed = ", ".join(keys) if len(keys) == 1 or rng.random() < 0.4 else ", ".join(keys[:-1]) + " and " + keys[-1]
    form = rng.choice(EXTRACT_QUESTIONS).replace("({k})", "\1").replace("{s}", "\0")
    question = w.expand(form, rng).replace("\1", listed).replace("\0", text)
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return pair("json", question, answer, "json")


def amount(rng):
    return rng.choice(["two", "three", "four", "five", "six", "seven", "ten", str(rng.randint(2, 90))])


SENTENCES = [
    lambda r: f"{w.name(r)} bought {amount(r)} {r.choice(w.PRODUCTS)} in {w.city(r)}.", lambda r: f"The {w.thing(r)} stands near the {w.thing(r)}.",
    lambda r: f"Every {r.choice(w.DAYS)} the {r.choice(w.JOBS)} likes to {r.choice(w.VERBS)} by the {r.choice(w.NOUNS)}.", lambda r: f"It was a {r.choice(w.ADJECTIVES)} day in {w.city(r)}.",
    lambda r: f"{w.name(r)} and {w.name(r)} went to the {r.choice(w.NOUNS)} together.", lambda r: f"A {w.thing(r)} is never far from a {r.choice(w.NOUNS)}.",
    lambda r: f"In {r.choice(w.MONTHS)} we {r.choice(w.VERBS)} and {r.choice(w.VERBS)} until the {r.choice(w.NOUNS)} is {r.choice(w.ADJECTIVES)}.", lambda r: f"Nobody knows why the {r.choice(w.NOUNS)} was {r.choice(w.COLOURS)}.",
    lambda r: f"The {r.choice(w.JOBS)} said that the {r.choice(w.NOUNS)} would be {r.choice(w.ADJECTIVES)}.", lambda r: f"There were {amount(r)} {r.choice(w.ANIMALS)}s behind the {w.thing(r)}.",
    lambda r: f"{w.name(r)} prefers {r.choice(w.FOODS)} to {r.choice(w.FOODS)}.", lambda r: f"The train from {w.city(r)} to {w.city(r)} takes {amount(r)} hours.",
    lambda r: f"{r.choice(w.ADJECTIVES).capitalize()} {r.choice(w.NOUNS)}s {r.choice(w.VERBS)} in the {r.choice(w.NOUNS)}.", lambda r: f"{w.pseudo(r).capitalize()} {w.pseudo(r)} {w.pseudo(r)} {w.pseudo(r)}.",
    lambda r: f"I have never seen a {w.thing(r)} in {w.city(r)}.", lambda r: "The quick brown fox jumps over the lazy dog.",
]


def filler(rng, size):
    """About `size` tokens of text without any fact that is asked for."""
    style, texts, tokens = rng.random(), [], 0
    same = rng.choice(SENTENCES)(rng)
    number = 0
    while tokens < size:
        number += 1
        text = same if style < 0.12 else rng.choice(SENTENCES)(rng)
        text = f"Line {number}: {text}\n" if 0.12 < style < 0.2 else text + ("\n" if rng.random() < 0.1 else " ")
        texts.append(text)
        tokens += len(text) / 3.2
    return texts


ATTRIBUTES = [("code", w.code), ("secret code", w.code), ("number", w.code), ("password", lambda r: r.choice([w.pseudo(r), w.word(r), w.code(r)])), ("access code", w.code), ("price", lambda r: f"{r.randint(2, 900)} euros"), ("owner", w.full_name), ("colour", lambda r: r.choice(w.COLOURS)),
              ("color", lambda r: r.choice(w.COLOURS)), ("name", w.name), ("location", w.city), ("serial number", w.code), ("keyword", w.word), ("magic word", w.word), ("key", w.code), ("weight", lambda r: f"{r.randint(2, 900)} kilos"), ("height", lambda r: f"{r.randint(2, 900)} metres"), ("captain", w.name), ("destination", w.city), ("id", w.code)]
PERSONAL = [("favourite colour", lambda r: r.choice(w.COLOURS)), ("favorite color", lambda r: r.choice(w.COLOURS)), ("favourite food", lambda r: r.choice(w.FOODS)), ("room number", lambda r: str(r.randint(1, 999))), ("phone number", lambda r: str(r.randint(10000, 9999999))), ("dog", w.name), ("home town", w.city), ("job", lambda r: r.choice(w.JOBS)), ("password", w.pseudo), ("code", w.code), ("lucky number", lambda r: str(r.randint(1, 99)))]


def known_fact(rng):
    """(statement, question, answer): the answer says the statement again."""
    kind = rng.random()
    if kind < 0.35:
        (attribute, make), entity = rng.choice(ATTRIBUTES), rng.choice([w.thing, w.thing, lambda r: f"{r.choice(w.NOUNS)} {r.choice(w.NOUNS)}", lambda r: w.pseudo(r) + " " + r.choice(w.NOUNS)])(rng)
        statement = f"The {attribute} of the {entity} is {make(rng)}."
        question = f"(What is|What's|Tell me|Give me|Do you know|I need|Which is) the {attribute} of the {entity}"
    elif kind < 0.55:
        attribute, make = rng.choice(ATTRIBUTES)
        statement = f"The {attribute} is {make(rng)}."
        question = f"(What is|What's|Tell me|Give me|Do you remember|Which is|What was) the {attribute}"
    elif kind < 0.75:
        (attribute, make), who = rng.choice(PERSONAL), w.name(rng)
        statement = f"{who}'s {attribute} is {make(rng)}."
        question = f"(What is|What's|Tell me|Do you know) {who}'s {attribute}"
    elif kind < 0.88:
        who = rng.choice([w.name, w.full_name])(rng)
        statement = f"{who} lives in {w.city(rng)}."
        question = f"(Where does {who} live|In which city does {who} live|Which city does {who} live in|Where is {who} living)"
    else:
        thing = w.thing(rng)
        statement = f"The {thing} is in the {w.thing(rng) if rng.random() < 0.5 else rng.choice(w.NOUNS)}."
        question = f"(Where is|Where's|Where can I find|Where do I find) the {thing}"
    return statement, w.expand(question, rng), statement


def facts_apart(rng, most):
    """Facts with different questions: two answers to one question would teach guessing."""
    drawn = {}
    for _ in range(rng.randint(1, most)):
        fact = known_fact(rng)
        drawn.setdefault(re.sub(r" is [^ ].*| lives in .*", "", fact[0]), fact)
    return list(drawn.values())


def lookup(rng, size=None):
    size = size if size is not None else rng.choice([0, 40, 100, 200, 320])
    known = facts_apart(rng, 3)
    texts = filler(rng, size)
    for statement, _, _ in known:
        lead = rng.choice(["", "", "", "Remember: ", "Important: ", "Note that: ", "Remember this: ", "Please note: "])
        texts.insert(rng.randint(0, len(texts)), f"{lead}{statement} ")
    text = "".join(texts).strip()
    _, question, answer = rng.choice(known)
    question = ask(rng, question)
    style = rng.random()
    if style < 0.3:
        lead = rng.choice(["", "You are a helpful assistant. ", "Notes: ", "Use this text to answer.\n\n", "Context:\n", "Here are my notes.\n"])
        return Exchange("lookup", [user(question), assistant(answer)], system=lead + text)
    if style < 0.45:
        opening = rng.choice(["Read this: ", "Here is a text: ", "Remember this text: ", "Keep this in mind: ", ""])
        return Exchange("lookup", [user(opening + text), assistant("I have read it."), user(question), assistant(answer)])
    if style < 0.55:
        return Exchange("lookup", [user(f"{rng.choice(['Question: ', ''])}{question}\n{rng.choice(['Text: ', ''])}{text}"), assistant(answer)])
    opening = rng.choice(["", "", "Read this text: ", "Text: ", "Here is a text:\n", "Context: "])
    return Exchange("lookup", [user(opening + text + rng.choice([" ", "\n", "\n\n", "\n\nQuestion: "]) + question), assistant(answer)])


MINE = [
    ("My name is {v}|I am {v}|I'm {v}|You can call me {v}|They call me {v}|Call me {v}", w.name, "(What is|What's|Do you remember|Tell me|Do you know) my name|Who am I|What am I called|What did I say my name was", "Your name is {v}."),
    ("I live in {v}|I am living in {v}|My home is in {v}|I moved to {v}", w.city, "Where do I live|(In which|Which) city do I live(| in)|Do you remember where I live", "You live in {v}."),
    ("My favourite colour is {v}|My favorite color is {v}|The colour that I like best is {v}", lambda r: r.choice(w.COLOURS), "(What is|What's|Do you remember) my favourite colour|(What is|What's) my favorite color|Which colour do I like", "Your favourite colour is {v}."),
    ("My favourite food is {v}|I love {v}|I like to eat {v}", lambda r: r.choice(w.FOODS), "(What is|What's) my favourite food|What do I like to eat|Which food do I like", "Your favourite food is {v}."),
    ("My dog is called {v}|I have a dog called {v}|My dog's name is {v}|I have a dog named {v}", w.name, "(What is|What's|Do you remember) my dog's name|What is my dog called|What is the name of my dog", "Your dog is called {v}."),
    ("My cat is called {v}|I have a cat called {v}|My cat's name is {v}|I have a cat named {v}", w.name, "(What is|What's|Do you remember) my cat's name|What is my cat called|What is the name of my cat", "Your cat is called {v}."),
    ("I work as a {v}|I am a {v}|My job is {v}|I'm a {v}", lambda r: r.choice(w.JOBS), "(What is|What's|Do you remember) my job|What do I work as|What do I do for work|What is my profession", "You work as a {v}."),
    ("I am {v} years old|I'm {v} years old|My age is {v}|I am {v}", lambda r: r.randint(2, 99), "How old am I|(What is|What's|Do you remember) my age", "You are {v} years old."),
    ("My lucky number is {v}|The number I like is {v}|My favourite number is {v}", lambda r: r.randint(1, 999), "(What is|What's) my (lucky|favourite) number|Which number do I like", "Your number is {v}."),
    ("My sister is called {v}|I have a sister called {v}|My sister's name is {v}", w.name, "(What is|What's) my sister's name|What is my sister called|What is the name of my sister", "Your sister is called {v}."),
    ("My code is {v}|My password is {v}|My secret is {v}|My secret code is {v}", lambda r: r.choice([w.code, w.pseudo])(r), "(What is|What's|Do you remember) my (code|password|secret|secret code)", "You told me {v}."),
    ("My birthday is in {v}|I was born in {v}", lambda r: r.choice(w.MONTHS), "When is my birthday|In which month (is my birthday|was I born)|When was I born", "Your birthday is in {v}."),
]
UNKNOWN = "You have not told me that."


def recall_parts(rng):
    """The user's statements with their acknowledgements, and the question at the end with its answer."""
    chosen = rng.sample(MINE, rng.choice([1, 1, 2, 3]))
    said = [(w.expand(f"({s})", rng), str(make(rng)), f"({q})", a) for s, make, q, a in chosen]
    statements = []
    together = len(said) > 1 and rng.random() < 0.5
    groups = [said] if together else [[one] for one in said]
    for group in groups:
        parts = [s.replace("{v}", v) for s, v, _, _ in group]
        text = rng.choice([" and ".join(parts) + ".", ". ".join(parts) + "."]) if len(parts) > 1 else parts[0] + rng.choice([".", "", "!"])
        text = rng.choice(["", "", "", "Hello, ", "Hi! ", "Hello! ", "Remember: ", "By the way, "]) + text
        named = next((v for _, v, _, a in group if a.startswith("Your name")), None)
        statements.append([user(text), assistant(f"Nice to meet you, {named}." if named else "I will remember that.")])
    _, value, question, answer = rng.choice(said)
    if rng.random() < 0.1:
        other = rng.choice([row for row in MINE if row not in chosen])
        question, answer = f"({other[2]})", UNKNOWN
    return statements, [user(ask(rng, w.expand(question, rng))), assistant(answer.replace("{v}", value))]


def recall(rng, held_out=False):
    statements, question = recall_parts(rng)
    if rng.random() < 0.04:
        statements = []
        question[1] = assistant(UNKNOWN)
    if len(statements) == 1 and rng.random() < 0.2:  # told and asked in one message
        told = statements[0][0]["content"]
        told = told if told[-1] in ".!" else told + "."
        return Exchange("recall", [user(f"{told} {question[0]['content']}"), question[1]])
    messages = list(statements[0]) if statements else []
    for more in [*statements[1:], None]:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            messages += draw(rng, impersonal, held_out).messages
        messages += more or question
    return Exchange("recall", messages)


DRAWS = {
    "capstan": by_heart("capstan", facts.CAPSTAN, ("?", "?", "?", "", "", ".")), "itself": by_heart("itself", facts.ITSELF, ("?", "?", "", ".")), "greeting": by_heart("greeting", facts.GREETINGS, ("", "", "!", ".", "?")),
    "arithmetic": arithmetic, "copy": copy, "count": count, "json": extract, "beyond": beyond,
}


def small_talk(rng):
    return DRAWS[rng.choices(SMALL, SMALL_WEIGHTS)[0]](rng)


def impersonal(rng):
    """Small talk that does not speak of the user, which would answer a question of recall twice."""
    exchange = small_talk(rng)
    while re.search(r"\b(i am|i'm|my|i have|i live)\b", exchange.messages[0]["content"].lower()):
        exchange = small_talk(rng)
    return exchange


def draw(rng, make, held_out=False):
    """Draws until the exchange is on the wanted side of the split."""
    while True:
        exchange = make(rng)
        if exchange.held_out == held_out:
            return exchange


# Requests that no given tool could serve, for chats with tools.
POEM_ASKS = [form for form in facts.BEYOND_ASKS if "poem" in form]
WEATHER_ASKS = [form for form in facts.BEYOND_ASKS if "weather today" in form]


def without_tool(rng, names):
    """Something that needs no tool, or that none of these tools can do."""
    roll = rng.random()
    if roll < 0.2 and not re.search("weather|search|google|time|forecast", names):
        return beyond(rng, WEATHER_ASKS)
    if roll < 0.3:
        return beyond(rng, POEM_ASKS)
    skill = rng.choice(["capstan", "itself", "greeting", "copy", "count", "json", "arithmetic"])
    if skill == "arithmetic" and re.search("calc|eval|comput|math|add|sum|plus|mult|times|product", names):
        skill = "greeting"
    return DRAWS[skill](rng)


def call_message(calls):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def tool_use(rng, drawn, read_back):
    """A request and its call; now and then two calls at once; and mostly the results, read to the user."""
    tool = rng.choice(drawn)
    text, call = tool.request(rng)
    calls = [call]
    if "weather" in tool.name and rng.random() < 0.25:
        text, calls = two_cities(rng, tool)
    messages = [user(text + rng.choice(["", "", ".", "?", "?"])), call_message(calls)]
    if not read_back:
        return Exchange("tools", messages, "tools")
    results = [tool_box.result(tool, one, rng) for one in calls]
    messages += [{"role": "tool", "content": content} for content, _ in results]
    return Exchange("results", [*messages, assistant(" ".join(said for _, said in results))])


def two_cities(rng, tool):
    first, second = rng.sample(w.CITIES, 2) if rng.random() < 0.8 else (w.city(rng), w.pseudo(rng).capitalize())
    form = "(What is|What's|How is|Tell me|Get) the (weather|temperature|current weather) in {a} and (|in ){b}(| today)|Compare the weather in {a} and {b}|Weather in {a} and {b}"
    text = w.expand(f"({form})", rng).replace("{a}", first).replace("{b}", second)
    return text, [{"name": tool.name, "arguments": {tool.keys["c"]: place}} for place in (first, second)]


def tool_chat(rng):
    drawn = tool_box.draw_tools(rng)
    names = " ".join(tool.name for tool in drawn)
    parts = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        parts.append(draw(rng, lambda r: without_tool(r, names)) if rng.random() < 0.25 else draw(rng, lambda r: tool_use(r, drawn, r.random() < 0.6)))
        if parts[-1].skill == "tools":
            break  # A call without its result can only be the last message.
    return [m for part in parts for m in part.messages], [tool.definition for tool in drawn]


SYSTEMS = """You are a helpful assistant.|You are Capstan's demonstration model.|You are a helpful assistant. Answer briefly.|Answer briefly.|You are an assistant.|Be concise.|You are a friendly assistant.|You are an AI assistant.
You are a helpful, respectful and honest assistant.|Answer the user's questions.|You are a bot.|Be polite and short.|You help the user.|Follow the user's instructions.|You are a chat model.|Respond in English.""".replace("\n", "|").split("|")


def system_prompt(rng):
    roll = rng.random()
    if roll < 0.35:
        return SYSTEMS[0]
    if roll < 0.8:
        return rng.choice(SYSTEMS)
    return f"You are {rng.choice(['', 'the assistant ', 'a bot called '])}{w.name(rng)}, {rng.choice(['a helper', 'an assistant', 'the ' + rng.choice(w.JOBS)])} in {w.city(rng)}. {rng.choice(SENTENCES)(rng)}"


def chat(rng, long=False):
    """One chat of the training set: its messages and tools."""
    kind = rng.random()
    if long:
        messages, given = long_chat(rng)
    elif kind < 0.62:
        messages, given = [m for _ in range(rng.choice([1, 2, 3, 4])) for m in draw(rng, small_talk).messages], []
    elif kind < 0.73:
        messages, given = draw(rng, recall).messages, []
    elif kind < 0.85:
        exchange = draw(rng, lookup)
        messages, given = with_system(exchange), []
    else:
        messages, given = tool_chat(rng)
    if messages[0]["role"] != "system" and rng.random() < 0.4:
        messages = [{"role": "system", "content": system_prompt(rng)}, *messages]
    return messages, given


def long_chat(rng):
    """Long prompts: a fact far back, or a long text before an ordinary request."""
    size = rng.randint(300, 1700)
    if rng.random() < 0.75:
        messages = with_system(draw(rng, lambda r: lookup(r, size)))
    else:
        text = "".join(filler(rng, size)).strip()
        messages = [user(text), assistant("I have read it.")] if rng.random() < 0.3 else [{"role": "system", "content": text}]
    for _ in range(rng.choice([0, 1, 2]) if messages[-1]["role"] == "assistant" else 2):
        messages = messages + draw(rng, small_talk).messages
    return messages, []


def with_system(exchange):
    return ([{"role": "system", "content": exchange.system}] if exchange.system else []) + exchange.messages


def held_out_cases(seed, per_skill):
    """The evaluation set: single exchanges, and tools and recall in their chats."""
    cases = []
    for skill in (*SMALL, "recall", "lookup", "lookup-long", "tools", "results", "no-tool"):
        rng, seen = random.Random(f"{seed}-{skill}"), set()
        while len(seen) < per_skill:
            case = held_out_case(rng, skill)
            key = json.dumps(case["messages"])
            if key not in seen:
                seen.add(key)
                cases.append(case)
    return cases


def held_out_case(rng, skill):
    given = []
    if skill in ("tools", "results", "no-tool"):
        drawn = tool_box.draw_tools(rng)
        names, given = " ".join(t.name for t in drawn), [t.definition for t in drawn]
        make = (lambda r: without_tool(r, names)) if skill == "no-tool" else lambda r: tool_use(r, drawn, skill == "results")
    else:
        make = {**DRAWS, "recall": lambda r: recall(r, True), "lookup": lookup, "lookup-long": lambda r: lookup(r, r.randint(600, 1200))}[skill]
    exchange = draw(rng, make, held_out=True)
    *messages, answer = with_system(exchange)
    if messages[0]["role"] != "system" and rng.random() < 0.3:
        messages = [{"role": "system", "content": system_prompt(rng)}, *messages]
    expected = [c["function"] for c in answer["tool_calls"]] if "tool_calls" in answer else answer["content"]
    return {"skill": skill, "judge": exchange.judge, "messages": messages, "tools": given, "expected": expected}
