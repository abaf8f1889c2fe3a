"""Creates fixtures/templates: small tokenizers of each family, real chat templates, and the results of transformers.

  python make_templates.py --out fixtures/templates

golden.json of a family:
  conversations[]  messages, tools, addGenerationPrompt, chatTemplateKwargs -> text and tokenIds, or the template's error
  encode[]         text -> tokenIds, tokenIdsWithSpecial (add_special_tokens), decoded and decodedSkipSpecial of tokenIds
  decode[]         tokenIds, mostly random and therefore invalid UTF-8 -> decoded, decodedSkipSpecial
"""

import argparse
import copy
import json
import os
import random
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from conversations import CONVERSATIONS, TEXTS
from family_tokenizers import FAMILIES

# Templates that insert the arguments unchanged, so they must be text.
ARGUMENTS_AS_TEXT = {"deepseek-v3"}
TEMPLATES = Path(__file__).parent / "templates"
transformers.logging.set_verbosity_error()


def write_family(name, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer, tokenizer_config, place = FAMILIES[name]()
    template = TEMPLATES / f"{name}.jinja"
    if place == "config":
        tokenizer_config["chat_template"] = template.read_text()
    elif place == "jinja":
        (directory / "chat_template.jinja").write_text(template.read_text())
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1, ensure_ascii=False) + "\n")


def with_text_arguments(conversation):
    """Returns the conversation with the arguments of calls as JSON text, written like JSON.stringify."""
    messages = copy.deepcopy(conversation["messages"])
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False, separators=(",", ":"))
    return {**conversation, "messages": messages}


def render(tokenizer, conversation):
    """Renders one golden conversation. Records the error if the template refuses it."""
    options = {"tools": conversation.get("tools"), "add_generation_prompt": conversation.get("add_generation_prompt", True),
               **conversation.get("kwargs", {})}
    golden = {"name": conversation["name"], "messages": conversation["messages"], "tools": options["tools"],
              "addGenerationPrompt": options["add_generation_prompt"], "chatTemplateKwargs": conversation.get("kwargs", {})}
    try:
        text = tokenizer.apply_chat_template(conversation["messages"], tokenize=False, **options)
    except TemplateError as error:
        return {**golden, "error": str(error)}
    ids = tokenizer.apply_chat_template(conversation["messages"], tokenize=True, return_dict=False, **options)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    return {**golden, "text": text, "tokenIds": ids}


def decoded(tokenizer, ids):
    plain = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return {"decoded": plain, "decodedSkipSpecial": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)}


def make_golden(name, directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    raw = Tokenizer.from_file(str(directory / "tokenizer.json"))
    special = [t for t in raw.get_added_tokens_decoder().values()]
    texts = TEXTS + [f"before{t.content}after {t.content} {t.content}\n{t.content}" for t in special[:12]]
    golden = {"family": name, "conversations": [], "encode": [], "decode": []}
    if tokenizer.chat_template:
        chosen = [c for c in CONVERSATIONS if name in c.get("only", [name]) and name not in c.get("without", [])]
        if name in ARGUMENTS_AS_TEXT:
            chosen = [with_text_arguments(c) for c in chosen]
        golden["conversations"] = [render(tokenizer, c) for c in chosen]
    for text in texts:
        ids, with_special = (tokenizer.encode(text, add_special_tokens=add) for add in (False, True))
        # transformers must use tokenizer.json unchanged. If it rebuilt the tokenizer, the golden would be of another
        # one.
        assert ids == raw.encode(text, add_special_tokens=False).ids, (name, text)
        assert with_special == raw.encode(text, add_special_tokens=True).ids, (name, text)
        golden["encode"].append({"text": text, "tokenIds": ids, "tokenIdsWithSpecial": with_special, **decoded(tokenizer, ids)})
        if with_special != ids and len(golden["decode"]) < 8:
            golden["decode"].append({"tokenIds": with_special, **decoded(tokenizer, with_special)})
    draw = random.Random(name)
    for length in (1, 1, 1, 2, 3, 5, 8, 13, 21, 34) * 3:
        ids = [draw.randrange(raw.get_vocab_size()) for _ in range(length)]
        golden["decode"].append({"tokenIds": ids, **decoded(tokenizer, ids)})
    return golden


def write_golden(golden, path):
    """Writes one line per entry, so that a diff shows what changed."""
    parts = []
    for key, value in golden.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in value)
            parts.append(f'"{key}":[\n{lines}\n]')
        else:
            parts.append(f'"{key}":{json.dumps(value)}')
    path.write_text("{" + ",\n".join(parts) + "}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name in FAMILIES:
        directory = args.out / name
        write_family(name, directory)
        golden = make_golden(name, directory)
        write_golden(golden, directory / "golden.json")
        refused = sum("error" in c for c in golden["conversations"])
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name:14} {len(golden['conversations']):3} conversations ({refused} refused) {len(golden['encode']):3} texts "
              f"{len(golden['decode']):3} id lists {size / 1024:5.0f} KB", flush=True)


if __name__ == "__main__":
    main()
