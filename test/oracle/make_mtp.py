"""Creates tiny models with MTP heads: fixtures/mtp/<case>/, with golden.json, the results of mtp.py.

  python make_mtp.py --seed 20 --out fixtures/mtp
  python make_mtp.py --check --out DIR                 checks that the results in DIR are those of this machine
  python make_mtp.py --check-mutations --out DIR       checks that each part of the head affects the results in DIR

`copied` is a decoder of one layer whose head is a copy of it, so that each greedy draft is right. The head never sees
the first token of a sequence, so the layer gives it no weight: prompts begin with token 1, which is nowhere else.

A prompt in golden.json ends with the token that the decoder finds most likely. `drafts` has the most likely tokens of
each draft, `ofLast` the log-probabilities of the last token of the prompt, `ofFirst` those of the first draft.

`head.txt` is golden.json and the headers of the weights for test/native/test_mtp.cpp, with Capstan's names.
"""

import argparse
import json
import os
import struct
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cases import DROP, row
from golden import write_model
from mtp import MtpHead
from small_tokenizer import tokenizer_json

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

NUM_DRAFTS = 3
NUM_TOP = 10
# Not 1 more than whole blocks without the last token: the step after a cache hit would have drafts too.
PROMPT_LENGTHS = [2, 3, 5, 9, 16, 17, 19, 31, 33, 48, 64, 70]
FIRST = 1  # the first token of each prompt
MIN_DIFFERENCE = 0.05  # what a mutation changes at least; the tolerance of f32 is 1e-3
MAX_DIFFERENCE = 1e-4  # between two processors, whose sums have different orders

LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 16, "linear_key_head_dim": 16}
ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
CASES = [
    row("dense", "qwen3.5", [], model_type="qwen3_5_text", hidden=40, kv=2, head_dim=16, inner=56, eps=1e-6, theta=100.0, vocab=288, spelling="v5", rope=ROPE,
        config={"layer_types": ["full_attention"] * 2, "mtp_num_hidden_layers": 1}),
    row("hybrid", "qwen3.5", [], model_type="qwen3_5_text", hidden=48, layers=3, kv=2, head_dim=16, inner=64, eps=1e-6, vocab=288, spelling="v5", rope=ROPE, tied=True,
        outer={"model_type": "qwen3_5", "architecture": "Qwen3_5ForConditionalGeneration"},
        config={"layer_types": ["linear_attention", "full_attention", "linear_attention"], "mtp_num_hidden_layers": 1, **LINEAR}),
    row("experts", "qwen3-next", ["experts"], model_type="qwen3_next", hidden=48, kv=2, head_dim=16, inner=64, eps=1e-6, vocab=288,
        config={"full_attention_interval": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts_per_tok": 2,
                "partial_rotary_factor": 0.5, "num_experts": 4, **LINEAR}),
    row("copied", "qwen3.5", [], model_type="qwen3_5_text", hidden=64, layers=1, heads=4, kv=2, head_dim=16, inner=64, eps=1e-6, vocab=288, spelling="v5", rope=ROPE,
        config={"layer_types": ["full_attention"], "mtp_num_hidden_layers": 1}),
]

NORMS = ("norm.weight", "_layernorm.weight", "norm_embedding.weight", "norm_hidden.weight")


def layer_of(case):
    """Names and shapes of a layer with attention, relative to the layer: those of the decoder's first such layer."""
    kinds = case["config"].get("layer_types")
    return kinds.index("full_attention") if kinds else case["config"]["full_attention_interval"] - 1


def random_head(case, weights, generator):
    """A head with random weights. The norms of Qwen are stored minus 1."""
    prefix = f".layers.{layer_of(case)}."
    shapes = {f"mtp.layers.0.{name.split(prefix)[1]}": w.shape for name, w in weights.items() if prefix in name}
    hidden = case["hidden"]
    shapes |= {"mtp.fc.weight": (hidden, 2 * hidden)}
    shapes |= {f"mtp.{name}.weight": (hidden,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 0.25 * value if name.endswith(NORMS) else value * 1.3 / value.shape[-1] ** 0.5 for name, value in noise.items()}


def copy_head(case, weights, generator):
    """Changes the weights as described above. Returns the copy."""
    hidden, head_dim, last = case["hidden"], case["head_dim"], case["head_dim"] - 1
    embedding = torch.randn((case["vocab"], hidden), generator=generator)
    embedding[:, 0], embedding[:, 1] = 1, 0
    embedding[FIRST] = torch.eye(hidden)[1]
    # The head normalizes embeddings.
    weights["model.embed_tokens.weight"] = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
    # The last dimension of a head, which does not turn, is negative in the first key and positive in all queries.
    attention = "model.layers.0.self_attn."
    keys = weights[attention + "k_proj.weight"].unflatten(0, (-1, head_dim))
    keys[:, last] = 0
    keys[..., 1] = 0
    keys[:, last, 1] = -1
    queries = weights[attention + "q_proj.weight"].unflatten(0, (case["heads"], 2, head_dim))
    queries[:, 0, last] = 0
    queries[:, 0, last, 0] = 3
    for name in ("q_norm", "k_norm"):
        weights[f"{attention}{name}.weight"][last] = 5
    head = {f"mtp.layers.0.{name.removeprefix('model.layers.0.')}": value.clone() for name, value in weights.items() if name.startswith("model.layers.0.")}
    head["mtp.norm.weight"] = weights["model.norm.weight"].clone()
    head["mtp.fc.weight"] = torch.eye(hidden, 2 * hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        head[f"mtp.{name}.weight"] = torch.zeros(hidden)
    return head


def load(directory):
    weights = load_file(directory / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return model, weights


def top_of(logprobs):
    values, ids = logprobs.topk(NUM_TOP)
    return [[i, round(v, 6)] for i, v in zip(ids.tolist(), values.tolist())]


def make_golden(case, seed, directory, generator):
    model, weights = load(directory)
    head = MtpHead(model, weights)
    prompts = []
    for length in PROMPT_LENGTHS:
        ids = [FIRST, *torch.randint(3, case["vocab"], (length - 2,), generator=generator).tolist()]
        with torch.no_grad():
            last = model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item()
        drafts = head.drafts([*ids, last], NUM_DRAFTS)
        of_last = [round(logprobs[last].item(), 6) for logprobs in drafts]
        of_first = [round(logprobs[drafts[0].argmax()].item(), 6) for logprobs in drafts]
        prompts.append({"tokenIds": [*ids, last], "drafts": [top_of(logprobs) for logprobs in drafts], "ofLast": of_last, "ofFirst": of_first})
    lines = ",\n".join(json.dumps(p, separators=(",", ":")) for p in prompts)
    head = {"case": case["name"], "seed": seed}
    (directory / "golden.json").write_text(json.dumps(head, separators=(",", ":"))[:-1] + ',"prompts":[\n' + lines + "\n]}\n")


# ---- for the native test ----

NATIVE = {
    "model.embed_tokens.weight": "embed_tokens.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "lm_head.weight",
    "mtp.fc.weight": "mtp.fc.weight", "mtp.norm.weight": "mtp.norm.weight",
    "mtp.pre_fc_norm_embedding.weight": "mtp.embedding_norm.weight", "mtp.pre_fc_norm_hidden.weight": "mtp.hidden_norm.weight",
}
LAYER_PARTS = {"input_layernorm": "input_norm", "post_attention_layernorm": "mlp_norm"}


def native_name(name, case):
    if name in NATIVE:
        return NATIVE[name]
    layer, rest = name.removeprefix("model.").removeprefix("mtp.").removeprefix("layers.").split(".", 1)
    part = rest.removesuffix(".weight").split(".")[-1]
    index = case["layers"] if name.startswith("mtp.") else int(layer)
    return f"layers.{index}.{LAYER_PARTS.get(part, part)}.weight"


def write_native(case, directory):
    """Lines: `sizes` with numbers, `tensor` with name, rows, columns and offset, then for each prompt `prompt` with ids
    and for each draft `draft` with ids and log-probabilities."""
    data = (directory / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    sizes = [case[key] for key in ("vocab", "hidden", "inner", "heads", "kv", "head_dim", "layers")]
    lines = [f"sizes {' '.join(map(str, sizes))} {case['eps']} {case['theta']} {case['rope']['partial_rotary_factor']}"]
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        assert tensor["dtype"] == "F32", name
        rows, cols = tensor["shape"] if len(tensor["shape"]) == 2 else (0, *tensor["shape"])
        lines.append(f"tensor {native_name(name, case)} {rows} {cols} {8 + size + tensor['data_offsets'][0]}")
    for prompt in json.loads((directory / "golden.json").read_text())["prompts"]:
        lines.append(f"prompt {' '.join(map(str, prompt['tokenIds']))}")
        for draft in prompt["drafts"]:
            lines.append("draft " + " ".join(f"{i} {value}" for i, value in draft))
    (directory / "head.txt").write_text("\n".join(lines) + "\n")


# ---- mutations ----


def swap_halves(weights):
    half = weights["mtp.fc.weight"].shape[1] // 2
    weights["mtp.fc.weight"] = torch.cat([weights["mtp.fc.weight"][:, half:], weights["mtp.fc.weight"][:, :half]], 1)


def zero(name):
    return lambda weights: weights.update({name: torch.zeros_like(weights[name])})


WEIGHT_MUTATIONS = {
    "the hidden state before the embedding": swap_halves,
    "no weights of the norm of embeddings": zero("mtp.pre_fc_norm_embedding.weight"),
    "no weights of the norm of hidden states": zero("mtp.pre_fc_norm_hidden.weight"),
    "no weights of the last norm": zero("mtp.norm.weight"),
    "no attention": zero("mtp.layers.0.self_attn.o_proj.weight"),
}


class SameToken(MtpHead):
    """Reads token p with the hidden state of position p."""

    def layer_after(self, embeddings, hidden):
        return super().layer_after(torch.cat([embeddings[:1], embeddings[:-1]]), hidden)


class RawHidden(MtpHead):
    """Feeds the hidden state before the head's last norm back."""

    def next_hidden(self, result):
        return result


class NoContext(MtpHead):
    """Sees no earlier position."""

    def layer_after(self, embeddings, hidden):
        return torch.cat([super(NoContext, self).layer_after(embeddings[i : i + 1], hidden[i : i + 1]) for i in range(len(hidden))])


HEAD_MUTATIONS = {"the token of the same position": SameToken, "drafts from hidden states before the norm": RawHidden, "no earlier positions": NoContext}


def difference(golden, head):
    worst = 0
    for prompt in golden["prompts"]:
        for logprobs, top in zip(head.drafts(prompt["tokenIds"], NUM_DRAFTS), prompt["drafts"]):
            worst = max(worst, *(abs(logprobs[i].item() - value) for i, value in top))
    return worst


def check(case, directory, with_mutations):
    """Prints the largest difference from golden.json, without and with each mutation. Returns how many are wrong."""
    golden = json.loads((directory / "golden.json").read_text())
    model, weights = load(directory)
    found = {"none": difference(golden, MtpHead(model, weights))}
    # The copy reads no hidden states, and its norms have no weights.
    if with_mutations and case["name"] != "copied":
        for name, edit in WEIGHT_MUTATIONS.items():
            mutated = dict(weights)
            edit(mutated)
            found[name] = difference(golden, MtpHead(model, mutated))
        for name, head in HEAD_MUTATIONS.items():
            found[name] = difference(golden, head(model, weights))
    num_wrong = 0
    for name, worst in found.items():
        is_wrong = worst > MAX_DIFFERENCE if name == "none" else worst < MIN_DIFFERENCE
        num_wrong += is_wrong
        print(f"{case['name']:10} {name:42} {worst:9.6f} {'WRONG' if is_wrong else ''}")
    return num_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--check-mutations", action="store_true")
    args = parser.parse_args()
    if args.check or args.check_mutations:
        num_wrong = sum(check(case, args.out / case["name"], args.check_mutations) for case in CASES)
        sys.exit(f"{num_wrong} differences are not as expected" if num_wrong else 0)
    if args.seed is None:
        parser.error("expected --seed")
    for case in CASES:
        directory = args.out / case["name"]
        generator = write_model(case, args.seed, directory, tokenizer_json(case["vocab"]))
        weights = load_file(directory / "model.safetensors")
        make_head = copy_head if case["name"] == "copied" else random_head
        weights |= make_head(case, weights, generator)
        save_file({name: w.contiguous() for name, w in weights.items()}, directory / "model.safetensors", metadata={"format": "pt"})
        make_golden(case, args.seed, directory, generator)
        if case["name"] == "dense":
            write_native(case, directory)
        print(f"{case['name']:10} {sum(f.stat().st_size for f in directory.iterdir()) / 1024:6.0f} KB", flush=True)


if __name__ == "__main__":
    main()
