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
    "llama-f16": ("llama3-f16", torch.float16, {"r": 8, "lora_alpha": 16, "target_modules": LINEAR}),
}


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
        parameter.data = torch.randn(parameter.shape, generator=generator) / fan_in**0.5
        if "lora_B" in parameter_name:
            parameter.data *= 0.3
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    file = out / "adapter_model.safetensors"
    save_file({name: value.to(dtype).contiguous() for name, value in load_file(file).items()}, file)
    config = json.loads((out / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"]) if isinstance(config["target_modules"], list) else config["target_modules"]
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def make_golden(name, base, out):
    recorded = json.loads((base / "golden.json").read_text())
    prompts = {prompt["name"]: prompt["promptTokenIds"] for prompt in recorded["prompts"]}
    vocab = json.loads((base / "tokenizer.json").read_text())["model"]["vocab"]
    model = PeftModel.from_pretrained(load_model(base), out).eval()
    answers = [{"name": p, **golden.answer(model, prompts[p], len(vocab))} for p in PROMPTS]
    asked = prompts["31"]
    at = golden.logprobs_of(model, asked)
    without = golden.logprobs_of(load_model(base), asked)
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
