"""Writes a case as a Hugging Face model directory and records the results of transformers.

`from_pretrained` loads the written directory, so transformers decides what the config keys mean, not this script.
Weights are rounded to the type of the file. Then everything is computed in float32 with eager attention and no cache.
"""

import json
import tempfile
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cases import DROP

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CONFIG_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "apertus": "ApertusForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "gemma": "GemmaForCausalLM",
    "vaultgemma": "VaultGemmaForCausalLM",
    "ministral": "MinistralForCausalLM",
    "cwm": "CwmForCausalLM",
    "glm": "GlmForCausalLM",
    "helium": "HeliumForCausalLM",
    "cohere": "CohereForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
}
NUM_STEPS = 16
NUM_TOP = 5
PROMPT_LENGTHS = [1, 5, 31, 64, 300, 600]
PROMPT_LOGPROBS_OF = "64"  # the prompt whose log-probabilities are recorded


def case_generator(case, seed):
    """Returns a separate generator for each case, so that a case does not depend on which others are selected."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{case['name']}".encode()))


def config_json(case):
    """Returns config.json in the spelling of the case."""
    config = {
        "architectures": [ARCHITECTURES[case["model_type"]]],
        "model_type": case["model_type"],
        "hidden_act": "silu",
        "hidden_size": case["hidden"],
        "intermediate_size": case["inner"],
        "max_position_embeddings": case["max_positions"],
        "num_attention_heads": case["heads"],
        "num_hidden_layers": case["layers"],
        "num_key_value_heads": case["kv"],
        "rms_norm_eps": case["eps"],
        "tie_word_embeddings": case["tied"],
        "vocab_size": case["vocab"],
        "bos_token_id": 1,
        "eos_token_id": case["eos"],
    }
    if case["head_dim"] is not None:
        config["head_dim"] = case["head_dim"]
    rope = case["rope"]
    if case["spelling"] == "v5":
        config["dtype"] = CONFIG_DTYPES[case["dtype"]]
        config["rope_parameters"] = {"rope_type": "default", **(rope or {}), "rope_theta": case["theta"]}
    else:
        config["torch_dtype"] = CONFIG_DTYPES[case["dtype"]]
        config["rope_theta"] = case["theta"]
        config["rope_scaling"] = rope and {case["spelling"] if k == "rope_type" else k: v for k, v in rope.items()}
    config.update(case["config"])
    config = {k: v for k, v in config.items() if v is not DROP}
    return config if case["outer"] is None else outer_config(case, config)


def outer_config(case, text_config):
    """The config of a model of text with images. Its image part is never loaded."""
    text_config.pop("architectures")
    if case["outer"]["model_type"] in PLAIN_TEXT:
        text_config["model_type"] = f"{case['outer']['model_type']}_text"
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": case["hidden"]}
    return {
        "architectures": [case["outer"]["architecture"]],
        "model_type": case["outer"]["model_type"],
        "tie_word_embeddings": case["tied"],
        "text_config": text_config,
        "vision_config": case["outer"].get("vision_config", vision),
    }


# The classes of these add 1 to the weights of their norms, but not to those of the recurrent layers.
ZERO_CENTERED_NORMS = ("gemma2", "gemma3", "vaultgemma", "qwen3_5", "qwen3_next")
# Files hold these too, although they are not parameters.
STORED_BUFFERS = ("layer_scalar", "expert_bias", "e_score_correction_bias", "act_fn.beta", "act_fn.eps")


def recurrent_parameter(name, noise):
    """Decays per token of 0.5 to 0.99, so that states reach far back, but not to the first token."""
    if name.endswith("A_log"):
        return 0.8 * noise - 2
    if name.endswith("dt_bias"):
        return noise
    if name.endswith("mamba.D"):
        return 1 + 0.25 * noise
    if name.endswith((".conv1d.weight", ".conv.conv.weight")):
        return 0.6 * noise
    return None


# Models of text with images whose text part has no class with a head.
PLAIN_TEXT = {"qwen3_vl": "qwen3", "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"}
# Those that have no class for text alone.
WITH_IMAGES = ("mistral3", "llava", "llava_next", "internvl", "lfm2_vl", *PLAIN_TEXT)


def text_class_config(case, config):
    """The config of a class whose parameters are those of the text model."""
    if case["outer"] is None:
        return config
    text = config.get_text_config()
    plain = PLAIN_TEXT.get(case["outer"]["model_type"])
    if plain is None:
        return text
    values = {key: value for key, value in text.to_dict().items() if key not in ("model_type", "rope_parameters", "architectures")}
    return AutoConfig.for_model(plain, **{**values, "tie_word_embeddings": case["tied"]})


def random_weights(case, config, generator):
    """Tensors by name, in the file's type. The scales give margins near 0.5 (a tied embedding is the head, and scaled as one); the library's own
    initialisation gives flat logits that hide faults."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text_class_config(case, config))
    weights = {}
    stored = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(STORED_BUFFERS)]
    for name, parameter in [*model.named_parameters(), *stored]:
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter.shape[-1] if parameter.shape else 1
        if name == "lm_head.weight":
            value = noise * 2 / fan_in**0.5
        elif name.endswith("embed_tokens.weight"):
            value = noise * (2 / fan_in**0.5 if case["tied"] else 1.0)
        elif (value := recurrent_parameter(name, noise)) is not None:
            pass
        elif name.endswith("act_fn.eps"):
            value = torch.tensor(-1e-6)
        elif name.endswith("act_fn.beta"):
            value = 0.5 + 0.1 * noise
        elif name.endswith(("alpha_p", "alpha_n")):
            value = noise
        elif name.endswith(("router.scale", "per_expert_scale")):
            value = 1 + 0.4 * noise
        elif name.endswith(("norm.weight", "_layernorm.weight", "_layernorm_1.weight", "_layernorm_2.weight")):
            is_gemma = case["model_type"] == "gemma"
            is_offset = (is_gemma or case["model_type"].startswith(ZERO_CENTERED_NORMS)) and "linear_attn" not in name
            value = (0 if is_offset else 1) + 0.25 * noise
        elif name.endswith("sinks"):
            value = noise
        elif name.endswith("layer_scalar"):
            value = 0.8 + 0.1 * noise
        elif "embed_tokens_per_layer" in name:
            value = noise
        elif name.endswith((".bias", "_bias")):
            value = 0.3 * noise
        else:
            value = noise * 1.3 / fan_in**0.5
        weights[name] = value.to(TORCH_DTYPES[case["dtype"]])
    if "experts" in case["features"] and "memory-names" not in case["features"]:
        weights = names_of_the_hub(config, weights)
    if case["outer"] is not None:
        weights = {name.replace("model.", "model.language_model."): value for name, value in weights.items()}
    if "hub-prefix" in case["features"]:
        new_name = lambda name: name.replace("model.language_model.", "language_model.model.").replace("lm_head", "language_model.lm_head")
        weights = {new_name(name): value for name, value in weights.items()}
    return weights | other_tensors(case, weights, generator)


def other_tensors(case, weights, generator):
    """What files hold besides the tensors of the model. "head-only" removes the embedding from `weights`."""
    others, features = {}, case["features"]
    if "stored-inv-freq" in features:
        # Llama 2 checkpoints of 2023 contain these tensors. Loaders ignore them.
        for i in range(case["layers"]):
            half = (case["head_dim"] or case["hidden"] // case["heads"]) // 2
            others[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.rand(half, generator=generator)
    if "unknown-tensors" in features:
        others |= {f"model.layers.{case['layers']}.eh_proj.weight": torch.rand(3, 5, generator=generator),
                   "vision_tower.patch_embed.weight": torch.rand(2, 3, 4, generator=generator), "step": torch.tensor(7)}
    embedding = "model.embed_tokens.weight"
    if "stored-head" in features:
        others["lm_head.weight"] = weights[embedding].clone()
    if "other-head" in features:
        # Transformers ties a head that equals the embedding, or that is not in the files.
        others["lm_head.weight"] = weights[embedding].flip(0).contiguous()
    if "head-only" in features:
        others["lm_head.weight"] = weights.pop(embedding)
    return others


def names_of_the_hub(config, weights, model_class=AutoModelForCausalLM):
    """Lets transformers save the tensors, because models in memory hold the experts of the hub's files as one tensor."""
    from_config = getattr(model_class, "from_config", None) or model_class._from_config
    model = from_config(config, dtype=next(iter(weights.values())).dtype)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert not [name for name in missing if name != "lm_head.weight"], missing
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_file(Path(directory) / "model.safetensors")


def save_weights(weights, shards, directory):
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[i::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in part}
    total = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_model(case, seed, directory, tokenizer_json):
    """Writes the model directory without golden.json. Returns the generator for the prompts."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("model*.safetensors*"):
        old.unlink()
    generator = case_generator(case, seed)
    (directory / "config.json").write_text(json.dumps(config_json(case), indent=2) + "\n")
    eos = case["generation_eos"] or case["eos"]
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": eos}) + "\n")
    (directory / "tokenizer.json").write_text(tokenizer_json)
    weights = random_weights(case, AutoConfig.from_pretrained(directory), generator)
    save_weights(weights, case["shards"], directory)
    return generator


def load_judge(case, directory):
    implementations = {"attn_implementation": "eager"}
    if case["name"].startswith("random-"):
        implementations["experts_implementation"] = "eager"  # the others refuse odd sizes and float64
    outer = case["outer"] and case["outer"]["model_type"]
    loader = AutoModelForImageTextToText if outer in WITH_IMAGES else AutoModelForCausalLM
    model = loader.from_pretrained(directory, dtype=torch.float32, **implementations).eval()
    if case["max_model_len"] and case["rope"]:
        fix_dynamic_base(model, case["max_model_len"])
    return model


def fix_dynamic_base(model, max_model_len):
    """Dynamic NTK and LongRoPE: uses the frequencies that transformers computes for the configured length at every
    position, because cached keys cannot follow frequencies that change with the length."""
    decoder = model.get_decoder()
    rotary = getattr(decoder, "rotary_emb", None) or getattr(decoder, "pos_emb", None)
    if rotary is None:  # Granite 4 may have no rotation, whatever its parameters
        return
    assert rotary.rope_type in ("dynamic", "longrope")
    rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](decoder.config, seq_len=max_model_len)
    rotary.rope_type = "default"  # disables updates


@torch.no_grad()
def logprobs_of(model, token_ids, last=None):
    """Returns the log-softmax of the raw logits of the last positions, in float64 so that the softmax adds no error."""
    logits = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return torch.log_softmax(logits[-last if last else 0 :].double(), dim=-1)


def make_prompts(case, generator):
    allowed = case["tokenizer_size"] or case["vocab"]
    draw = lambda n: torch.randint(3, allowed, (n,), generator=generator).tolist()
    prompts = {str(n): draw(n) for n in PROMPT_LENGTHS}
    prompts["300+20"] = prompts["300"] + draw(20)
    prompts["300+33"] = prompts["300"] + draw(33)
    return prompts


def answer(model, prompt, allowed):
    """Generates greedily among the first `allowed` ids, because ids without a token are never sampled. Records the raw
    top log-probabilities."""
    ids, top, margins = list(prompt), [], []
    for _ in range(NUM_STEPS):
        logprobs = logprobs_of(model, ids, last=1)[-1]
        values, indices = logprobs.topk(NUM_TOP)
        top.append([[i, round(v, 6)] for i, v in zip(indices.tolist(), values.tolist())])
        (first, second), best = logprobs[:allowed].topk(2)
        margins.append(round((first - second).item(), 6))
        ids.append(best[0].item())
    return {"promptTokenIds": list(prompt), "greedyTokenIds": ids[len(prompt) :], "topLogprobs": top, "margins": margins}


def make_golden(case, seed, model, generator):
    prompts = make_prompts(case, generator)
    allowed = case["tokenizer_size"] or case["vocab"]
    asked = prompts[PROMPT_LOGPROBS_OF]
    at = logprobs_of(model, asked)
    own = [None] + [round(at[i, t].item(), 6) for i, t in enumerate(asked[1:])]
    golden = {"case": case["name"], "family": case["family"], "dtype": case["dtype"], "seed": seed, "features": case["features"]}
    if case["max_model_len"]:
        golden["maxModelLen"] = case["max_model_len"]
    golden["promptLogprobs"] = {"prompt": PROMPT_LOGPROBS_OF, "logprobs": own}
    golden["prompts"] = [{"name": name, **answer(model, ids, allowed)} for name, ids in prompts.items()]
    return golden


def write_golden(golden, path: Path):
    """Writes one line per prompt, so that a diff shows which prompt changed."""
    head = {k: v for k, v in golden.items() if k != "prompts"}
    lines = ",\n".join(json.dumps(p, separators=(",", ":")) for p in golden["prompts"])
    path.write_text(json.dumps(head, separators=(",", ":"))[:-1] + ',"prompts":[\n' + lines + "\n]}\n")
