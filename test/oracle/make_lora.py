"""Creates random LoRA adapters of the committed models with PEFT, and the results of transformers with them.

  python make_lora.py --fixtures fixtures                    writes fixtures/lora/CASE
  python make_lora.py --fixtures fixtures --cases phi3-all   some cases

Needs the packages of requirements.txt, and peft 0.21 (with `--no-deps`; it also imports accelerate and psutil).
"""

import argparse
import json
import os
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import golden
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
golden.NUM_STEPS = 8

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
PROMPTS = ["1", "31", "64"]

# Name: model, type of the adapter's file, and the settings of PEFT.
CASES = {
    "llama-all": ("llama3-f32", torch.float32, {"r": 4, "lora_alpha": 8, "target_modules": LINEAR}),
    "llama-patterns": (
        "llama3-f32",
        torch.bfloat16,
        {
            "r": 5,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": ["q_proj", "v_proj", "up_proj"],
            "rank_pattern": {"v_proj": 3, "layers.1.self_attn.q_proj": 17},
            "alpha_pattern": {r"layers\.[02468]\..*_proj": 9},
        },
    ),
    "phi3-all": ("phi3-f32", torch.float32, {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}),
    "glm4-regex": (
        "glm4-f32",
        torch.float32,
        {"r": 4, "lora_alpha": 4, "target_modules": r".*\.(self_attn\.[qk]_proj|mlp\.(gate_up|down)_proj)"},
    ),
    "qwen35-attention": ("qwen35-f32", torch.float16, {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "qwen35-linear": (
        "qwen35-f32",
        torch.float32,
        {"r": 4, "lora_alpha": 4, "target_modules": "all-linear", "rank_pattern": {"in_proj_z": 7, "in_proj_b": 1}},
    ),
    "qwen3-next-mixers": (
        "qwen3-next-f32",
        torch.bfloat16,
        {"r": 3, "lora_alpha": 3, "target_modules": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]},
    ),
    "lfm2-linear": ("lfm2-f32", torch.float32, {"r": 3, "lora_alpha": 3, "target_modules": "all-linear"}),
    "granite4-mamba": ("granite4-f32", torch.float32, {"r": 5, "lora_alpha": 5, "target_modules": ["in_proj", "out_proj", "q_proj"]}),
    "smollm3-gguf": ("smollm3-fourth-bf16", torch.float32, {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "o_proj"]}),
    "gemma2-rows": ("gemma2-f32", torch.float32, {"r": 2, "lora_alpha": 4, "target_modules": ["o_proj", "down_proj"]}),
    "granite-layer": (
        "granite-f32",
        torch.float32,
        {"r": 4, "lora_alpha": 8, "target_modules": LINEAR, "layers_to_transform": [1], "exclude_modules": ["k_proj"]},
    ),
    "moe-attention": ("qwen2-moe-f32", torch.float32, {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "qwen2-bf16": ("qwen2-bf16", torch.bfloat16, {"r": 16, "lora_alpha": 16, "target_modules": LINEAR}),
    "granite-ranks": ("granite-bf16", torch.bfloat16, {"r": 6, "lora_alpha": 6, "target_modules": LINEAR}),
    "olmo2-ranks": ("olmo2-bf16", torch.bfloat16, {"r": 4, "lora_alpha": 4, "target_modules": LINEAR}),
    "gemma4-layers": ("gemma4-f32", torch.float32, {"r": 3, "lora_alpha": 3, "target_modules": LINEAR}),
    "gemma4-equal-kv": (
        "gemma4-equal-kv-f32",
        torch.float32,
        {"r": 3, "lora_alpha": 3, "target_modules": ["k_proj", "o_proj", "down_proj"]},
    ),
    "llama31-gguf": ("llama31-f16", torch.float16, {"r": 4, "lora_alpha": 8, "target_modules": LINEAR}),
    "llama-head": ("llama3-f32", torch.float32, {"r": 4, "lora_alpha": 6, "target_modules": ["lm_head", "v_proj", "embed_tokens"]}),
    "qwen2-tied-head": ("qwen2-bf16", torch.bfloat16, {"r": 6, "lora_alpha": 6, "target_modules": ["lm_head"]}),
    "gemma3-embedding": ("gemma3-f32", torch.float32, {"r": 3, "lora_alpha": 3, "target_modules": ["embed_tokens", "q_proj"]}),
    "granite-embedding": ("granite-bf16", torch.float32, {"r": 5, "lora_alpha": 5, "target_modules": ["embed_tokens", "lm_head"]}),
    "qwen2-moe-shared": (
        "qwen2-moe-f32",
        torch.float32,
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate"],
            "rank_pattern": {"shared_expert.up_proj": 7},
        },
    ),
    "qwen2-moe-experts": (
        "qwen2-moe-f32",
        torch.bfloat16,
        {
            "r": 3,
            "lora_alpha": 3,
            "target_modules": ["q_proj", "shared_expert.down_proj"],
            "target_parameters": ["mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.gate.weight"],
            "rank_pattern": {r"mlp\.experts\.down_proj": 5},
            "alpha_pattern": {"layers.1.mlp.experts.gate_up_proj": 6},
        },
    ),
    "gpt-oss-experts": (
        "gpt-oss-f32",
        torch.float32,
        {"r": 2, "lora_alpha": 2, "target_modules": ["o_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "router.weight"]},
    ),
    "gemma4-moe-experts": (
        "gemma4-moe-f32",
        torch.float32,
        {
            "r": 3,
            "lora_alpha": 3,
            "target_modules": ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj"],
            "target_parameters": ["experts.gate_up_proj"],
        },
    ),
    "gemma4-moe-bf16": ("gemma4-moe-bf16", torch.bfloat16, {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "target_parameters": ["experts.down_proj"]}),
    "granite-shared-experts": (
        "granite-shared-f16",
        torch.float16,
        {
            "r": 3,
            "lora_alpha": 3,
            "target_modules": ["input_linear", "output_linear"],
            "target_parameters": ["experts.down_proj", "experts.gate_up_proj", "router.weight"],
        },
    ),
    "qwen35-moe-experts": (
        "qwen35-moe-f32",
        torch.float32,
        {"r": 3, "lora_alpha": 3, "target_modules": "all-linear", "target_parameters": ["experts.down_proj", "experts.gate_up_proj"]},
    ),
    "qwen3-next-experts": (
        "qwen3-next-experts-f32",
        torch.float32,
        {"r": 4, "lora_alpha": 4, "target_modules": "all-linear", "target_parameters": ["experts.gate_up_proj", "gate.weight"]},
    ),
    "mixtral-old-experts": ("mixtral-f32", torch.float32, {"r": 3, "lora_alpha": 3, "target_modules": ["w1", "w2", "w3", "gate"]}),
    "olmoe-rslora": (
        "olmoe-f32",
        torch.float32,
        {
            "r": 4,
            "lora_alpha": 3,
            "use_rslora": True,
            "target_modules": [],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "gate.weight"],
            "rank_pattern": {"experts.down_proj": 2},
        },
    ),
    "glm4-moe-shared": (
        "glm4-moe-f32",
        torch.float32,
        {"r": 3, "lora_alpha": 3, "target_modules": ["gate_proj", "up_proj", "down_proj"], "target_parameters": ["experts.down_proj"]},
    ),
    "gemma4-inputs": (
        "gemma4-f32",
        torch.float32,
        {
            "r": 3,
            "lora_alpha": 6,
            "target_modules": ["per_layer_input_gate", "per_layer_projection", "per_layer_model_projection", "k_proj"],
            "rank_pattern": {"per_layer_input_gate": 5},
        },
    ),
    "llama-f16": ("llama3-f16", torch.float16, {"r": 8, "lora_alpha": 16, "target_modules": LINEAR}),
}


# Adapters with the modules of an older transformers.
OLD_MODULES = ["mixtral-old-experts"]


def load_model(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def write_adapter(name, base, dtype, settings, out):
    """Writes an adapter with random factors, whose updates are about as large as the results they change."""
    model = get_peft_model(load_model(base), LoraConfig(task_type="CAUSAL_LM", **settings))
    model.peft_config["default"].base_model_name_or_path = base.name
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for parameter_name, parameter in sorted(model.named_parameters()):
        if "lora_" not in parameter_name:
            continue
        fan_in = parameter.shape[1]
        if "lora_embedding_A" in parameter_name:
            fan_in = 1  # of one token
        elif "lora_B" in parameter_name and "experts" in parameter_name and "shared" not in parameter_name:
            fan_in = settings["r"]  # of one expert
        parameter.data = torch.randn(parameter.shape, generator=generator) / fan_in**0.5
        if "lora_B" in parameter_name or "lora_embedding_B" in parameter_name:
            parameter.data *= 0.3
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    file = out / "adapter_model.safetensors"
    if name in OLD_MODULES:
        save_file(old_tensors(load_file(file), settings["r"]), file)
        config = json.loads((out / "adapter_config.json").read_text())
        config |= {"rank_pattern": {}, "alpha_pattern": {}, "target_parameters": None, "target_modules": settings["target_modules"]}
        (out / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: value.to(dtype).contiguous() for name, value in load_file(file).items()}, file)
    config = json.loads((out / "adapter_config.json").read_text())
    for key in ["target_modules", "target_parameters"]:
        if isinstance(config[key], list):
            config[key] = sorted(config[key])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def old_tensors(tensors, r):
    """Names the factors of Mixtral's experts and router as PEFT did before transformers 5."""
    old = {}
    for name, value in tensors.items():
        start, end = name.split(".mlp.")
        start += ".block_sparse_moe"
        if end.startswith("gate."):
            old[f"{start}.{end}"] = value
            continue
        for weight in ["w1", "w3"] if "base_layer" in end else ["w2"]:
            for expert in range(4):
                # The factors of w1 and w3 have half of the rank of gate_up_proj each.
                part = end.removeprefix("experts.").removeprefix("base_layer.")
                size = value.shape[0] // (2 if weight != "w2" else 1)
                second = weight == "w3"
                if part.startswith("lora_A"):
                    rank = r if weight == "w2" else 2 * r
                    first = expert * rank + (r if second else 0)
                    old[f"{start}.experts.{expert}.{weight}.{part}"] = value[first : first + r].clone()
                else:
                    rows = value[size : 2 * size] if second else value[:size]
                    columns = rows[:, expert::4]
                    old[f"{start}.experts.{expert}.{weight}.{part}"] = (columns[:, r:] if second else columns[:, :r]).contiguous()
    return old


def make_golden(name, base, out):
    recorded = json.loads((base / "golden.json").read_text())
    prompts = {prompt["name"]: prompt["promptTokenIds"] for prompt in recorded["prompts"]}
    vocab = json.loads((base / "tokenizer.json").read_text())["model"]["vocab"]
    model = PeftModel.from_pretrained(load_model(base), out).eval()
    answers = [{"name": p, **golden.answer(model, prompts[p], len(vocab))} for p in PROMPTS]
    asked = prompts["31"]
    at = golden.logprobs_of(model, asked)
    without = golden.logprobs_of(load_model(base), asked)
    # Merging an update of tied weights changes both the embedding and the LM head.
    targets = str(model.peft_config["default"].target_modules)
    changes_vocab = "lm_head" in targets or "embed_tokens" in targets
    if not (changes_vocab and model.config.get_text_config().tie_word_embeddings):
        merged = golden.logprobs_of(model.merge_and_unload(), asked)
        assert (at - merged).abs().max() < 1e-4, "merged and unmerged differ"
    assert (at - without).abs().max() > 0.5, "the adapter changes nothing"
    own = [None] + [round(at[i, t].item(), 6) for i, t in enumerate(asked[1:])]
    return {
        "case": name,
        "family": recorded["family"],
        "dtype": recorded["dtype"],
        "base": base.name,
        "features": ["lora"],
        "promptLogprobs": {"prompt": "31", "logprobs": own},
        "prompts": answers,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures", type=Path, required=True)
    parser.add_argument("--cases", help="comma-separated names (all by default)")
    args = parser.parse_args()
    for name in args.cases.split(",") if args.cases else CASES:
        base_name, dtype, settings = CASES[name]
        base, out = args.fixtures / base_name, args.fixtures / "lora" / name
        write_adapter(name, base, dtype, settings, out)
        golden.write_golden(make_golden(name, base, out), out / "golden.json")
        print(name)


main()
