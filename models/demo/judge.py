"""Answers heldout.jsonl with transformers, for use while training. The accuracy that counts is evaluate.ts's, by our own engine."""

import json
import re
from collections import defaultdict

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH = 20


def calls_of(text):
    """The Hermes calls of an answer; None where one is not valid JSON."""
    try:
        return [json.loads(body) for body in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.S)]
    except json.JSONDecodeError:
        return None


def is_right(case, text):
    if case["judge"] == "tools":
        return calls_of(text) == case["expected"]
    if case["judge"] == "json":
        try:
            return json.loads(text) == json.loads(case["expected"])
        except json.JSONDecodeError:
            return False
    return text.strip() == case["expected"]


def answers(model, tokenizer, cases):
    texts = [
        tokenizer.apply_chat_template(case["messages"], tools=case["tools"] or None, tokenize=False, add_generation_prompt=True)
        for case in cases
    ]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        made = model.generate(**inputs, max_new_tokens=200, do_sample=False, temperature=None)
    return [tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True) for row in made]


def evaluate(folder, limit=None, dtype=torch.bfloat16):
    """Prints the share of right answers per skill, and the wrong ones; false if any skill is below 95 %."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    skills = defaultdict(list)
    for line in (folder / "heldout.jsonl").read_text().splitlines():
        case = json.loads(line)
        skills[case["skill"]].append(case)
    good = True
    for skill, cases in skills.items():
        cases, right = cases[:limit], 0
        for at in range(0, len(cases), BATCH):
            part = cases[at : at + BATCH]
            for case, text in zip(part, answers(model, tokenizer, part)):
                right += is_right(case, text)
                if not is_right(case, text):
                    print(
                        f"  {skill}: {case['messages'][-1]['content'][-120:]!r}\n    wanted {case['expected']!r}\n    got    {text!r}"
                    )
        print(f"{skill:12} {right}/{len(cases)} = {100 * right / len(cases):.1f} %", flush=True)
        good &= right >= 0.95 * len(cases)
    return good
