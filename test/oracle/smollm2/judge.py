"""Compares the output of chats.ts with transformers in f32 on the values that the package `gguf` decodes.

  python judge.py FILE.gguf OUT.json

Needs torch, transformers and gguf. transformers reads the tokens of each answer, so that one other token does not
change the rest. The prompts must be what the model's chat template and tokenizer give in transformers.
"""

import json
import sys

import torch
import transformers


def load(path):
    folder, name = path.rsplit("/", 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)


def compare(model, runs):
    differences, misses, steps = [], [], 0
    for run in runs:
        ids = torch.tensor([run["prompt"] + run["tokens"]])
        with torch.inference_mode():
            rows = model(ids, logits_to_keep=len(run["tokens"]) + 1).logits[0].double().log_softmax(-1)
        for row, token, top in zip(rows, run["tokens"], run["top"]):
            steps += 1
            differences += [abs(row[entry["id"]].item() - entry["logprob"]) for entry in top]
            margin = (row.max() - row[token]).item()
            if margin > 0:
                misses.append(round(margin, 4))
    return steps, len(misses), sorted(misses)[-5:], max(differences), sum(differences) / len(differences)


def main():
    model, tokenizer = load(sys.argv[1])
    results = json.load(open(sys.argv[2]))
    for run in results["auto"]:
        wanted = tokenizer.apply_chat_template(run["messages"], add_generation_prompt=True, return_dict=False)
        if list(wanted) != run["prompt"]:
            print("other prompt:", tokenizer.decode(wanted), "|", tokenizer.decode(run["prompt"]))
    for mode, runs in results.items():
        steps, other, margins, worst, mean = compare(model, runs)
        print(f"{mode}: {steps} tokens, {other} not the most likely one (largest margins {margins}), "
              f"log-probabilities worst {worst:.2e}, mean {mean:.2e}")


main()
