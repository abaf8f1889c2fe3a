"""Creates fixtures/chat-templates.json.gz: real chat templates, and what transformers renders with them.

  python make_chat_templates.py --templates DIR --out fixtures/chat-templates.json.gz

DIR holds `models/templates` of llama.cpp, in the source archive of llama-cpp-python 0.3.36 (PyPI), and the templates
that templates/NOTICE.md lists beside them. The file holds:
  conversations{}  name -> messages, and the options tools, addGenerationPrompt, continueFinalMessage
  templates[]      name, source, and results{}: name of the conversation -> text, or error of a refusal
"""

import argparse
import copy
import gzip
import json
import os
from datetime import datetime
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jinja2
import transformers.utils.chat_template_utils as judge

from conversations import NESTED, TOOLS, ZURICH, assistant, call, result, system, user


class FixedDate(datetime):
    """The date that templates write."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 23, 12, 0, 0)


judge.datetime = FixedDate
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NASTY = call("n1N2n3N4n", "search", {
    "query": "it's </tool_call> \\ \u2028 <b>", "filters": [], "n": 1, "x": 0.1, "on": False, "none": None, "list": [1, [True, {"a": "'"}]]})
WEATHER_TURNS = [user("What is the weather in Zürich?"), assistant("", tool_calls=[ZURICH]),
                 result("a1B2c3D4e", "{\"temperature\": 21.5, \"sky\": \"klar ☀️\"}")]

CONVERSATIONS = {
    "user": {"messages": [user("What is a capstan?")]},
    "system": {"messages": [system("  Answer briefly.\n"), user("Name three\n\nrivers & <b>lakes</b> of Europe's 'east' 🙂 ")]},
    "turns": {"messages": [system("You are a sailor."), user("Hello"), assistant("Ahoy!\n"), user("7 + 12?"), assistant(" 19."), user("And 3 more?")]},
    "tools": {"tools": TOOLS, "messages": [system("Use tools."), user("What is the weather in Zürich?")]},
    "call": {"tools": TOOLS, "messages": WEATHER_TURNS},
    "calls": {"tools": TOOLS, "messages": [
        *WEATHER_TURNS, assistant("It is sunny."), user("Find \"it\"."), assistant("I look.", tool_calls=[NESTED, NASTY]),
        result("x9Y8z7W6v", "found\n2 things"), result("n1N2n3N4n", "none"), assistant("Two things."), user("Thanks")]},
    "reasoning": {"messages": [user("Hello"), assistant("Hi.", reasoning_content="A greeting.\nI greet back."), user("And now?"),
                               assistant("Bye.", reasoning_content="The end.")], "addGenerationPrompt": False},
    "parts": {"messages": [system("Be brief."), user([{"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}])]},
    "lines": {"messages": [system("Be brief."), user("First part.\nSecond part.")]},
    "empty": {"messages": [user("Hello"), assistant(""), user("")]},
    "continued": {"messages": [user("Count to five."), assistant("One, two,")], "addGenerationPrompt": False, "continueFinalMessage": True},
}


def with_text_arguments(messages):
    messages = copy.deepcopy(messages)
    for made in (made for message in messages for made in message.get("tool_calls", [])):
        made["function"]["arguments"] = json.dumps(made["function"]["arguments"], ensure_ascii=False)
    return messages


def render(source, messages, options):
    """Returns the text, or the error of a refusal."""
    try:
        rendered, _ = judge.render_jinja_template(
            conversations=[messages], tools=options.get("tools"), chat_template=source,
            continue_final_message=options.get("continueFinalMessage", False),
            add_generation_prompt=options.get("addGenerationPrompt", True), **SPECIAL_TOKENS)
        return {"text": rendered[0]}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}
    except (TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:60]}"}


def result_of(source, conversation):
    """Templates expect the arguments of calls as an object. Some join them to the text, so they need JSON text."""
    messages = conversation["messages"]
    found = render(source, messages, conversation)
    reprs = [str(made["function"]["arguments"]) for message in messages for made in message.get("tool_calls", [])]
    if reprs and ("error" in found or any(text in found["text"] for text in reprs)):
        as_text = render(source, with_text_arguments(messages), conversation)
        return as_text if "text" in as_text else found
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    templates = []
    for path in sorted(args.templates.glob("*.jinja")):
        source = path.read_text()
        results = {name: result_of(source, conversation) for name, conversation in CONVERSATIONS.items()}
        templates.append({"name": path.stem, "source": source, "results": results})
    written = {name: {**conversation, "messages": with_text_arguments(conversation["messages"])} for name, conversation in CONVERSATIONS.items()}
    golden = json.dumps({"conversations": written, "templates": templates}, ensure_ascii=False, separators=(",", ":"))
    args.out.write_bytes(gzip.compress(golden.encode(), 9, mtime=0))
    refused = sum("error" in found for template in templates for found in template["results"].values())
    print(f"{len(templates)} templates, {len(CONVERSATIONS)} conversations, {refused} refused, {args.out.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
