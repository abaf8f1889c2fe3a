"""An exchange: a request of the user with its right answer, and whether it belongs to training.

That follows from a hash of what the user says, so that no held-out request is ever trained on, whatever the seed."""

import hashlib
import re
from dataclasses import dataclass, field

import words as w
from reworded import QUESTIONS

HELD_OUT_SHARE = 16


def normal(text):
    return re.sub(r"[^\w+*/-]+", " ", text.lower()).strip()


REWORDED = tuple(normal(question) for question in QUESTIONS)


def one_in(share, text):
    return hashlib.sha256(text.encode()).digest()[0] % share == 0


@dataclass
class Exchange:
    skill: str
    messages: list
    judge: str = "text"
    system: str = ""
    tools: list = field(default_factory=list)
    by_surface: bool = False

    @property
    def held_out(self):
        """By what the user says, whatever its capitals and marks; where told so, by these too."""
        said = " ".join(m["content"] for m in self.messages if m["role"] == "user")
        words = normal(said)
        if words.endswith(REWORDED):
            return True
        return one_in(HELD_OUT_SHARE, words) and (not self.by_surface or one_in(4, said))


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def pair(skill, question, answer, judge="text"):
    return Exchange(skill, [user(question), assistant(answer)], judge)


def ask(rng, text, marks=("?", "?", "?", "", ".", " ?")):
    """A question as people type it: with or without a lead, capitals and the final mark."""
    if rng.random() < 0.2:
        lead = rng.choice(
            [
                "Hey, ",
                "Hi, ",
                "Please tell me: ",
                "Question: ",
                "Quick question: ",
                "Tell me: ",
                "So, ",
                "And ",
                "Now: ",
                "Please: ",
                "OK, ",
                "I wonder: ",
                "One more thing: ",
                "Can you tell me: ",
                "Hello, ",
                "Hello! ",
                "Hi! ",
                "Thanks! ",
                f"Request {rng.randint(1, 200)}: ",
                f"[{rng.randint(1, 200)}] ",
                f"{rng.randint(1, 200)}. ",
            ]
        )
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
