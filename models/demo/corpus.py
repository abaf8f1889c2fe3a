"""The generated chats that the demonstration model learns from: every chat follows from a seed.

A chat is one or more exchanges (skills.py), with a system prompt, tools and a long text where its kind has them."""

import json
import random
import re

import chinese
import facts
import features
import tools as tool_box
import words as w
from memory import filler, lookup, plain_fact, recall
from exchange import Exchange, assistant, user
from reworded import QUESTIONS
from skills import DRAWS, NEWER, SMALL, arithmetic, beyond, draw, final_talk, late_talk, newest_talk, small_talk
from sums import sums

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
    skill = rng.choice(["capstan", "itself", "greeting", "copy", "count", "json", "arithmetic", "features", "sums", "chinese"])
    if skill in ("arithmetic", "sums") and re.search("calc|eval|comput|math|add|sum|plus|mult|times|product", names):
        skill = "greeting"
    return DRAWS[skill](rng)


def call_message(calls):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def tool_use(rng, drawn, read_back, narrow=False):
    """A request and its call; now and then two calls at once; and mostly the results, read to the user."""
    tool = rng.choice(drawn)
    text, call = tool.request(rng)
    calls = [call]
    if "weather" in tool.name and rng.random() < 0.25:
        text, calls = two_cities(rng, tool)
    messages = [user(text + rng.choice(["", "", ".", "?", "?"])), call_message(calls)]
    if not read_back:
        return Exchange("tools", messages, "tools")
    results = [tool_box.result(tool, one, rng, narrow) for one in calls]
    messages += [{"role": "tool", "content": content} for content, _ in results]
    return Exchange("results", [*messages, assistant(" ".join(said for _, said in results))])


def two_cities(rng, tool):
    first, second = rng.sample(w.CITIES, 2) if rng.random() < 0.8 else (w.city(rng), w.pseudo(rng).capitalize())
    form = "(What is|What's|How is|Tell me|Get) the (weather|temperature|current weather) in {a} and (|in ){b}(| today)|Compare the weather in {a} and {b}|Weather in {a} and {b}"
    text = w.expand(f"({form})", rng).replace("{a}", first).replace("{b}", second)
    return text, [{"name": tool.name, "arguments": {tool.keys["c"]: place}} for place in (first, second)]


def tool_chat(rng, requests=(1, 2, 2, 3), narrow=False):
    drawn = tool_box.draw_tools(rng, narrow)
    names = " ".join(tool.name for tool in drawn)
    parts = []
    for _ in range(rng.choice(requests)):
        parts.append(
            draw(rng, lambda r: without_tool(r, names))
            if rng.random() < 0.25
            else draw(rng, lambda r: tool_use(r, drawn, r.random() < 0.6, narrow))
        )
        if parts[-1].skill == "tools":
            break  # A call without its result can only be the last message.
    return [m for part in parts for m in part.messages], [tool.definition for tool in drawn]


SYSTEMS = """You are a helpful assistant.|You are Capstan's demonstration model.|You are a helpful assistant. Answer briefly.|Answer briefly.|You are an assistant.|Be concise.|You are a friendly assistant.|You are an AI assistant.
You are a helpful, respectful and honest assistant.|Answer the user's questions.|You are a bot.|Be polite and short.|You help the user.|Follow the user's instructions.|You are a chat model.|Respond in English.""".replace(
    "\n", "|"
).split("|")


def system_prompt(rng):
    roll = rng.random()
    if roll < 0.35:
        return SYSTEMS[0]
    if roll < 0.8:
        return rng.choice(SYSTEMS)
    return f"You are {rng.choice(['', 'the assistant ', 'a bot called '])}{w.name(rng)}, {rng.choice(['a helper', 'an assistant', 'the ' + rng.choice(w.JOBS)])} in {w.city(rng)}. {rng.choice(w.SENTENCES)(rng)}"


def chat(rng, stage=0, long=False):
    """One chat of the training set: its messages and tools. The later stages bring more of what is learned last."""
    talk = (small_talk, late_talk, final_talk, newest_talk)[stage]
    if long:
        messages, given = long_chat(rng, talk)
    elif stage == 3:
        messages, given = newest_chat(rng)
    elif stage == 2:
        messages, given = final_chat(rng)
    elif stage == 1:
        messages, given = late_chat(rng, talk)
    else:
        messages, given = early_chat(rng)
    if messages[0]["role"] != "system" and rng.random() < 0.4:
        messages = [{"role": "system", "content": system_prompt(rng)}, *messages]
    return messages, given


def early_chat(rng):
    kind = rng.random()
    if kind < 0.62:
        return talk_chat(rng, small_talk, rng.choice([1, 2, 3, 4])), []
    if kind < 0.73:
        return draw(rng, recall).messages, []
    if kind < 0.85:
        return with_system(draw(rng, lookup)), []
    return tool_chat(rng)


def late_chat(rng, talk):
    kind = rng.random()
    if kind < 0.47:
        return talk_chat(rng, talk, rng.choice([1, 2, 3, 4])), []
    if kind < 0.57:
        return talk_chat(rng, arithmetic, rng.randint(8, 16)), []
    if kind < 0.66:
        return draw(rng, recall).messages, []
    if kind < 0.78:
        return with_system(draw(rng, lambda r: lookup(r, most=5, questions=3))), []
    return tool_chat(rng, requests=(2, 3, 3, 4), narrow=True)


def final_chat(rng):
    kind = rng.random()
    if kind < 0.46:
        return talk_chat(rng, final_talk, rng.choice([2, 3, 4])), []
    if kind < 0.6:
        return draw(rng, lambda r: recall(r, untold=0.35)).messages, []
    if kind < 0.7:
        return with_system(draw(rng, lambda r: lookup(r, most=5, questions=3))), []
    return tool_chat(rng, requests=(2, 3, 4), narrow=True)


def newest_chat(rng):
    kind = rng.random()
    if kind < 0.5:
        return talk_chat(rng, newest_talk, rng.choice([1, 2, 3, 4])), []
    if kind < 0.6:
        return talk_chat(rng, lambda r: (arithmetic if r.random() < 0.25 else sums)(r), rng.randint(4, 12)), []
    if kind < 0.7:
        return draw(rng, lambda r: recall(r, untold=0.3)).messages, []
    if kind < 0.79:
        return with_system(draw(rng, lambda r: lookup(r, most=5, questions=3))), []
    return tool_chat(rng, requests=(2, 3, 4), narrow=True)


def talk_chat(rng, talk, exchanges):
    return [m for _ in range(exchanges) for m in draw(rng, talk).messages]


def long_chat(rng, talk):
    """Long prompts: a fact far back, or a long text before an ordinary request."""
    size = rng.randint(300, 1700)
    if rng.random() < 0.75:
        messages = with_system(draw(rng, lambda r: lookup(r, size, most=6, questions=4)))
    else:
        text = "".join(filler(rng, size)).strip()
        messages = [user(text), assistant("I have read it.")] if rng.random() < 0.3 else [{"role": "system", "content": text}]
    for _ in range(rng.choice([0, 1, 2]) if messages[-1]["role"] == "assistant" else 2):
        messages = messages + draw(rng, talk).messages
    return messages, []


def with_system(exchange):
    return ([{"role": "system", "content": exchange.system}] if exchange.system else []) + exchange.messages


def held_out_cases(seed, per_skill):
    """The evaluation set: single exchanges, and tools and recall in their chats."""
    cases = []
    for skill in (*SMALL, "recall", "lookup", "lookup-long", "tools", "results", "no-tool", *NEWER):
        rng, seen = random.Random(f"{seed}-{skill}"), set()
        while len(seen) < per_skill:
            case = held_out_case(rng, skill)
            key = json.dumps(case["messages"])
            if key not in seen:
                seen.add(key)
                cases.append(case)
    return cases + [reworded_case(question) for question in QUESTIONS]


def reworded_case(question):
    """A question in words that the corpus does not have."""
    start, is_chinese = QUESTIONS[question], bool(re.search("[一-鿿]", question))
    tables = (*chinese.TABLES[:3], [[chinese.BEYOND]]) if is_chinese else (facts.CAPSTAN, facts.ITSELF, facts.GREETINGS, features.FEATURES, [[facts.BEYOND]])
    [answer] = [row[0] for table in tables for row in table if row[0].startswith(start)] or [start]
    skill = "reworded-chinese" if is_chinese else "reworded"
    return {"skill": skill, "judge": "text", "messages": [user(question)], "tools": [], "expected": answer}


def held_out_case(rng, skill):
    given = []
    if skill in ("tools", "results", "no-tool"):
        drawn = tool_box.draw_tools(rng, narrow=True)
        names, given = " ".join(t.name for t in drawn), [t.definition for t in drawn]
        make = (lambda r: without_tool(r, names)) if skill == "no-tool" else lambda r: tool_use(r, drawn, skill == "results", narrow=True)
    elif skill in NEWER:
        make = lambda r: late_talk(r, [int(one == skill) for one in (*SMALL, *NEWER)])
    elif skill in SMALL:
        make = lambda r: next(e for e in iter(lambda: late_talk(r), None) if e.skill == skill)
    else:
        make = {"recall": lambda r: recall(r, True), "lookup": lookup, "lookup-long": lambda r: lookup(r, r.randint(600, 1200), make=plain_fact)}[
            skill
        ]
    exchange = draw(rng, make, held_out=True)
    *messages, answer = with_system(exchange)
    if messages[0]["role"] != "system" and rng.random() < 0.3:
        messages = [{"role": "system", "content": system_prompt(rng)}, *messages]
    expected = [c["function"] for c in answer["tool_calls"]] if "tool_calls" in answer else answer["content"]
    return {"skill": skill, "judge": exchange.judge, "messages": messages, "tools": given, "expected": expected}
