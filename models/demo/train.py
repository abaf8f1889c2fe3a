"""Makes the demonstration model: tokenizer, weights and evaluation set, from nothing but the corpus and a seed.

python train.py              trains (or goes on from the checkpoint) and writes the model's files here
python train.py --run second a later run: goes on from the weights here, on one stage of the corpus alone
python train.py --mean A B   the weights here become the mean of those two files
python train.py --eval       answers heldout.jsonl with transformers, greedily, and prints the accuracy per skill
python train.py --prepare    only the tokenizer, the configuration and heldout.jsonl
"""

import argparse
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

# Waiting threads sleep instead of spinning, so that two threads still get on where they must share one core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import corpus
from model import CONFIG, Qwen2

HERE = Path(__file__).parent
SEED = 20261121


@dataclass(frozen=True)
class Run:
    name: str
    steps: int
    warm_up: int
    plateau: int  # the step from which the rate falls to nothing, in a straight line
    rate: float
    stages: tuple  # the steps at which the stages of the corpus begin


FIRST = Run("first", 5000, 60, 2600, 2e-3, (0, 1600, 2600))
SECOND = Run("second", 1500, 60, 400, 1.2e-3, (0, 0, 0))
THIRD = Run("third", 1400, 60, 300, 1e-3, (0, 0, 0))
FOURTH = Run("fourth", 500, 40, 100, 6e-4, (0, 0, 0))
FIFTH = Run("fifth", 1900, 60, 700, 1.2e-3, (0, 0, 0, 0))
SIXTH = Run("sixth", 300, 40, 100, 8e-4, (0, 0, 0, 0))
RUNS = {run.name: run for run in (FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)}
# A step's rows as (length, count): attention costs by the length of the row, so short chats are packed into short rows.
USUAL = ((256, 8), (512, 4))
WITH_LONG = ((256, 4), (512, 2), (2048, 1))
LONG_EVERY = (0, 2, 3, 4)  # by stage; the first stage has no long rows
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]
QWEN2_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def template():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((HERE / "chat_template.jinja").read_text())


def train_tokenizer(render):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(f"{SEED}-tokenizer")
    texts = [render.render(messages=messages, tools=tools) for messages, tools in (corpus.chat(rng) for _ in range(20000))]
    # Whole words are in the corpus as often as made-up ones need them; the rest of the entries goes to syllables.
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"] - len(SPECIAL + TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    for tag in SPECIAL + TAGS:
        texts = [text.replace(tag, "\n") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    tokenizer.save(str(HERE / "tokenizer.json"))


def write_configuration(tokenizer):
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    generation = {"bos_token_id": ends[1], "eos_token_id": ends, "pad_token_id": ends[1], "do_sample": False, "temperature": 0.0}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONFIG["max_position_embeddings"],
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(t)): {
                "content": t,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": t in SPECIAL,
            }
            for t in SPECIAL + TAGS
        },
        "chat_template": (HERE / "chat_template.jinja").read_text(),
    }
    config = {**CONFIG, "bos_token_id": ends[1], "eos_token_id": ends[0], "pad_token_id": ends[1]}
    for name, content in (("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer_config)):
        (HERE / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_held_out():
    cases = corpus.held_out_cases(SEED, 60)
    (HERE / "heldout.jsonl").write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases))


class Batches:
    """The batch of a step follows from the seed and the step alone, so that a run can go on from any checkpoint."""

    def __init__(self, tokenizer, render, run):
        self.tokenizer, self.render, self.run = tokenizer, render, run
        self.start, self.end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        self.role = tokenizer.encode("assistant\n").ids

    def encode(self, messages, tools):
        """The ids of a chat, and the same with -100 where the assistant does not speak."""
        ids = self.tokenizer.encode(self.render.render(messages=messages, tools=tools)).ids
        labels, speaking = [-100] * len(ids), False
        for i, token in enumerate(ids):
            if token == self.start and ids[i + 1 : i + 1 + len(self.role)] == self.role:
                speaking = i + len(self.role)
            if speaking and i > speaking:
                labels[i] = token
            if token == self.end:
                speaking = False
        return ids, labels

    def batch(self, step):
        """Packed rows, one group for each row length. In the later stages, every second or third step has a long row."""
        stage = sum(step >= first for first in self.run.stages) - 1
        shapes = WITH_LONG if stage > 0 and step % LONG_EVERY[stage] == 0 else USUAL
        rows = [(length, []) for length, count in shapes for _ in range(count)]
        room = [length for length, _ in rows]
        rng, misses = random.Random(f"{SEED}-{self.run.name}-{step}"), 0
        while misses < 12:
            chat = self.encode(*corpus.chat(rng, stage, long=room[-1] == 2048))
            fits = [r for r in range(len(rows)) if room[r] >= len(chat[0])]
            misses += not fits
            if fits:
                rows[fits[0]][1].append(chat)
                room[fits[0]] -= len(chat[0])
        return [pack([chats for length, chats in rows if length == wanted], wanted) for wanted, _ in shapes]


def pack(rows, length):
    """ids, labels, positions and documents, each (rows, length): positions begin at 0 with each chat."""
    shape = (len(rows), length)
    ids, labels, positions, documents = (
        torch.zeros(shape, dtype=torch.long),
        torch.full(shape, -100),
        torch.zeros(shape, dtype=torch.long),
        torch.full(shape, -1),
    )
    for r, chats in enumerate(rows):
        at = 0
        for number, (tokens, targets) in enumerate(chats):
            part = slice(at, at + len(tokens))
            ids[r, part], labels[r, part] = torch.tensor(tokens), torch.tensor(targets)
            positions[r, part], documents[r, part] = torch.arange(len(tokens)), number
            at += len(tokens)
    return ids, labels, positions, documents


def rate(run, step):
    """Warm-up, a plateau, and a straight line to nothing."""
    return run.rate * min(1, (step + 1) / run.warm_up, (run.steps - step) / (run.steps - run.plateau))


def optimizers(model):
    """Muon for the matrices inside, which it trains in fewer steps than AdamW; AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() < 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=0.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def backward(model, forward, groups):
    """The gradient of the mean over all groups' counted tokens; returns that mean."""
    counted, total = sum((labels >= 0).sum() for _, labels, _, _ in groups), 0.0
    for ids, labels, positions, documents in groups:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model.loss(forward(ids, positions, documents), labels) / counted
        loss.backward()
        total += loss.item()
    return total


def save_weights(model):
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(weights, HERE / "model.safetensors", metadata={"format": "pt"})
    (HERE / "model.safetensors").chmod(0o644)


def write_mean(first, second):
    """Of two runs of which each is better at something: here the mean is better at nearly all (arXiv 2203.05482)."""
    one, other = load_file(first), load_file(second)
    save_file({name: ((one[name].float() + other[name].float()) / 2).to(torch.bfloat16).contiguous() for name in one}, HERE / "model.safetensors", metadata={"format": "pt"})


def train(run, checkpoint, stop_at):
    tokenizer, render = Tokenizer.from_file(str(HERE / "tokenizer.json")), template()
    batches, model = Batches(tokenizer, render, run), Qwen2()
    if run is not FIRST:
        model.load_state_dict({name: value.float() for name, value in load_file(HERE / "model.safetensors").items()})
    optims, first = optimizers(model), 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optim, saved in zip(optims, state["optims"]):
            optim.load_state_dict(saved)
        first = state["step"]
    forward = torch.compile(model.model, dynamic=False)
    started, average = time.time(), None
    for step in range(first, stop_at):
        for optim in optims:
            optim.param_groups[0]["lr"] = rate(run, step)
        loss = backward(model, forward, batches.batch(step))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        average = loss if average is None else 0.95 * average + 0.05 * loss
        if step % 20 == 19:
            speed = (step + 1 - first) * sum(length * count for length, count in USUAL) / (time.time() - started)
            print(f"{time.strftime('%H:%M:%S')} step {step + 1}/{run.steps} loss {average:.4f} tokens/s {speed:.0f}", flush=True)
        if step % 100 == 99 or step + 1 == stop_at:
            temporary = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optims": [o.state_dict() for o in optims], "step": step + 1}, temporary)
            os.replace(temporary, checkpoint)
            save_weights(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eval", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--checkpoint", type=Path, default=Path("demo-checkpoint.pt"))
    parser.add_argument("--mean", type=Path, nargs=2)
    parser.add_argument("--run", choices=RUNS, default="first")
    parser.add_argument("--stop-at", type=int)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    if options.eval:
        from judge import evaluate

        return evaluate(HERE)
    if options.mean:
        return write_mean(*options.mean)
    run = RUNS[options.run]
    if options.prepare or not options.checkpoint.exists():
        if run is FIRST:
            train_tokenizer(template())
            write_configuration(Tokenizer.from_file(str(HERE / "tokenizer.json")))
        write_held_out()
    if not options.prepare:
        train(run, options.checkpoint, options.stop_at or run.steps)


if __name__ == "__main__":
    main()
