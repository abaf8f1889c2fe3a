"""The skills of memory: a fact given far earlier in a text, and what the user said of himself."""

import re

import words as w
from exchange import Exchange, ask, assistant, user
from skills import draw, impersonal


def filler(rng, size):
    """About `size` tokens of text without any fact that is asked for."""
    style, texts, tokens = rng.random(), [], 0
    same = rng.choice(w.SENTENCES)(rng)
    number = 0
    while tokens < size:
        number += 1
        text = same if style < 0.12 else rng.choice(w.SENTENCES)(rng)
        text = f"Line {number}: {text}\n" if 0.12 < style < 0.2 else text + ("\n" if rng.random() < 0.1 else " ")
        texts.append(text)
        tokens += len(text) / 3.2
    return texts


ATTRIBUTES = [
    ("code", w.code),
    ("secret code", w.code),
    ("number", w.code),
    ("password", lambda r: r.choice([w.pseudo(r), w.word(r), w.code(r)])),
    ("access code", w.code),
    ("price", lambda r: f"{r.randint(2, 900)} euros"),
    ("owner", w.full_name),
    ("colour", lambda r: r.choice(w.COLOURS)),
    ("color", lambda r: r.choice(w.COLOURS)),
    ("name", w.name),
    ("location", w.city),
    ("serial number", w.code),
    ("keyword", w.word),
    ("magic word", w.word),
    ("key", w.code),
    ("weight", lambda r: f"{r.randint(2, 900)} kilos"),
    ("height", lambda r: f"{r.randint(2, 900)} metres"),
    ("captain", w.name),
    ("destination", w.city),
    ("id", w.code),
]
PERSONAL = [
    ("favourite colour", lambda r: r.choice(w.COLOURS)),
    ("favorite color", lambda r: r.choice(w.COLOURS)),
    ("favourite food", lambda r: r.choice(w.FOODS)),
    ("room number", lambda r: str(r.randint(1, 999))),
    ("phone number", lambda r: str(r.randint(10000, 9999999))),
    ("dog", w.name),
    ("home town", w.city),
    ("job", lambda r: r.choice(w.JOBS)),
    ("password", w.pseudo),
    ("code", w.code),
    ("lucky number", lambda r: str(r.randint(1, 99))),
]


def known_fact(rng):
    """(statement, question, answer): the answer says the statement again."""
    kind = rng.random()
    if kind < 0.35:
        (attribute, make), entity = (
            rng.choice(ATTRIBUTES),
            rng.choice(
                [
                    w.thing,
                    w.thing,
                    lambda r: f"{r.choice(w.NOUNS)} {r.choice(w.NOUNS)}",
                    lambda r: w.pseudo(r) + " " + r.choice(w.NOUNS),
                ]
            )(rng),
        )
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


COMMON = "the of is lives in euros kilos metres".split()
KNOWN = {word for words in (w.NAMES, w.SURNAMES, w.CITIES, w.COLOURS, w.ADJECTIVES, w.NOUNS, w.VERBS, w.JOBS, w.FOODS, *([a] for a, _ in ATTRIBUTES + PERSONAL), COMMON) for text in words for word in text.lower().split()}


def plain_fact(rng):
    """A fact without invented words: in a long text the model loses their letters."""
    while True:
        fact = known_fact(rng)
        if all(word in KNOWN for word in re.findall(r"[^\W\d_]+", fact[0].replace("'s", "").lower())):
            return fact


def facts_apart(rng, most, make=known_fact):
    """Facts with different questions: two answers to one question would teach guessing."""
    drawn = {}
    for _ in range(rng.randint(1, most)):
        fact = make(rng)
        drawn.setdefault(re.sub(r" is [^ ].*| lives in .*", "", fact[0]), fact)
    return list(drawn.values())


def lookup(rng, size=None, most=3, questions=1, make=known_fact):
    """A text of about `size` tokens that holds up to `most` facts, and one or more questions for them."""
    size = size if size is not None else rng.choice([0, 40, 100, 200, 320])
    known = facts_apart(rng, most, make)
    texts = filler(rng, size)
    for statement, _, _ in known:
        lead = rng.choice(["", "", "", "Remember: ", "Important: ", "Note that: ", "Remember this: ", "Please note: "])
        texts.insert(rng.randint(0, len(texts)), f"{lead}{statement} ")
    asked = rng.choice(known)
    exchange = first_question("".join(texts).strip(), asked, rng)
    if questions > 1:  # A long text is dear: more questions for it teach more per token.
        others = [fact for fact in known if fact is not asked]
        for _, question, answer in rng.sample(others, min(len(others), questions - 1)):
            exchange.messages += [user(ask(rng, question)), assistant(answer)]
    return exchange


def first_question(text, fact, rng):
    """The text in the system's turn or the user's, before the question or behind it."""
    _, question, answer = fact
    question, answer = ask(rng, question), assistant(answer)
    style = rng.random()
    if style < 0.3:
        lead = rng.choice(
            ["", "You are a helpful assistant. ", "Notes: ", "Use this text to answer.\n\n", "Context:\n", "Here are my notes.\n"]
        )
        return Exchange("lookup", [user(question), answer], system=lead + text)
    if style < 0.45:
        opening = rng.choice(["Read this: ", "Here is a text: ", "Remember this text: ", "Keep this in mind: ", ""])
        return Exchange("lookup", [user(opening + text), assistant("I have read it."), user(question), answer])
    if style < 0.55:
        return Exchange("lookup", [user(f"{rng.choice(['Question: ', ''])}{question}\n{rng.choice(['Text: ', ''])}{text}"), answer])
    opening = rng.choice(["", "", "Read this text: ", "Text: ", "Here is a text:\n", "Context: "])
    return Exchange("lookup", [user(opening + text + rng.choice([" ", "\n", "\n\n", "\n\nQuestion: "]) + question), answer])


MINE = [
    (
        "My name is {v}|I am {v}|I'm {v}|You can call me {v}|They call me {v}|Call me {v}",
        w.name,
        "(What is|What's|Do you remember|Tell me|Do you know) my name|Who am I|What am I called|What did I say my name was",
        "Your name is {v}.",
    ),
    (
        "I live in {v}|I am living in {v}|My home is in {v}|I moved to {v}",
        w.city,
        "Where do I live|(In which|Which) city do I live(| in)|Do you remember where I live",
        "You live in {v}.",
    ),
    (
        "My favourite colour is {v}|My favorite color is {v}|The colour that I like best is {v}",
        lambda r: r.choice(w.COLOURS),
        "(What is|What's|Do you remember) my favourite colour|(What is|What's) my favorite color|Which colour do I like",
        "Your favourite colour is {v}.",
    ),
    (
        "My favourite food is {v}|I love {v}|I like to eat {v}",
        lambda r: r.choice(w.FOODS),
        "(What is|What's) my favourite food|What do I like to eat|Which food do I like",
        "Your favourite food is {v}.",
    ),
    (
        "My dog is called {v}|I have a dog called {v}|My dog's name is {v}|I have a dog named {v}",
        w.name,
        "(What is|What's|Do you remember) my dog's name|What is my dog called|What is the name of my dog",
        "Your dog is called {v}.",
    ),
    (
        "My cat is called {v}|I have a cat called {v}|My cat's name is {v}|I have a cat named {v}",
        w.name,
        "(What is|What's|Do you remember) my cat's name|What is my cat called|What is the name of my cat",
        "Your cat is called {v}.",
    ),
    (
        "I work as a {v}|I am a {v}|My job is {v}|I'm a {v}",
        lambda r: r.choice(w.JOBS),
        "(What is|What's|Do you remember) my job|What do I work as|What do I do for work|What is my profession",
        "You work as a {v}.",
    ),
    (
        "I am {v} years old|I'm {v} years old|My age is {v}|I am {v}",
        lambda r: r.randint(2, 99),
        "How old am I|(What is|What's|Do you remember) my age",
        "You are {v} years old.",
    ),
    (
        "My lucky number is {v}|The number I like is {v}|My favourite number is {v}",
        lambda r: r.randint(1, 999),
        "(What is|What's) my (lucky|favourite) number|Which number do I like",
        "Your number is {v}.",
    ),
    (
        "My sister is called {v}|I have a sister called {v}|My sister's name is {v}",
        w.name,
        "(What is|What's) my sister's name|What is my sister called|What is the name of my sister",
        "Your sister is called {v}.",
    ),
    (
        "My code is {v}|My password is {v}|My secret is {v}|My secret code is {v}",
        lambda r: r.choice([w.code, w.pseudo])(r),
        "(What is|What's|Do you remember) my (code|password|secret|secret code)",
        "You told me {v}.",
    ),
    (
        "My birthday is in {v}|I was born in {v}",
        lambda r: r.choice(w.MONTHS),
        "When is my birthday|In which month (is my birthday|was I born)|When was I born",
        "Your birthday is in {v}.",
    ),
]
UNKNOWN = "You have not told me that."


def recall_parts(rng, untold):
    """The user's statements with their acknowledgements, and the question at the end with its answer: for the share `untold` one about something else."""
    chosen = rng.sample(MINE, rng.choice([1, 1, 2]))
    said = [(w.expand(f"({s})", rng), str(make(rng)), f"({q})", a) for s, make, q, a in chosen]
    statements = []
    together = len(said) > 1 and rng.random() < 0.5
    groups = [said] if together else [[one] for one in said]
    for group in groups:
        parts = [s.replace("{v}", v) for s, v, _, _ in group]
        text = (
            rng.choice([" and ".join(parts) + ".", ". ".join(parts) + "."])
            if len(parts) > 1
            else parts[0] + rng.choice([".", "", "!"])
        )
        text = rng.choice(["", "", "", "Hello, ", "Hi! ", "Hello! ", "Remember: ", "By the way, "]) + text
        named = next((v for _, v, _, a in group if a.startswith("Your name")), None)
        statements.append([user(text), assistant(f"Nice to meet you, {named}." if named else "I will remember that.")])
    _, value, question, answer = rng.choice(said)
    if rng.random() < untold:
        other = rng.choice([row for row in MINE if row not in chosen])
        question, answer = f"({other[2]})", UNKNOWN
    return statements, [user(ask(rng, w.expand(question, rng))), assistant(answer.replace("{v}", value))]


def recall(rng, held_out=False, untold=0.18):
    statements, question = recall_parts(rng, untold)
    if rng.random() < 0.06:
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
