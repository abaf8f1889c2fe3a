"""Qwen2 in plain torch, for training: the names of its weights are those of the Hugging Face checkpoint."""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 768,
    "vocab_size": 1536,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_sliding_window": False,
    "use_cache": True,
    "torch_dtype": "bfloat16",
}
HEADS, KV_HEADS, HIDDEN = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["hidden_size"]
HEAD = HIDDEN // HEADS


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x.float(), (HIDDEN,), self.weight, CONFIG["rms_norm_eps"])


def rotate(x, cos, sin):
    """x: (rows, heads, length, head); the two halves of a head turn together."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD)
        self.o_proj = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)

    def forward(self, x, cos, sin, mask):
        rows, length, _ = x.shape
        heads = lambda y, n: y.view(rows, length, n, HEAD).transpose(1, 2)
        q = rotate(heads(self.q_proj(x), HEADS), cos, sin)
        k = rotate(heads(self.k_proj(x), KV_HEADS), cos, sin).repeat_interleave(HEADS // KV_HEADS, 1)
        v = heads(self.v_proj(x), KV_HEADS).repeat_interleave(HEADS // KV_HEADS, 1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, HEADS * HEAD))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        inner = CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(HIDDEN, inner, bias=False)
        self.up_proj = nn.Linear(HIDDEN, inner, bias=False)
        self.down_proj = nn.Linear(inner, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(), Attention()
        self.post_attention_layernorm, self.mlp = Norm(), Mlp()

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm()

    def forward(self, ids, positions, documents):
        """ids, positions, documents: (rows, length). A token sees the earlier tokens of its own document."""
        frequency = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = (positions[..., None] * frequency).repeat(1, 1, 2)[:, None]
        cos, sin = angles.cos(), angles.sin()
        order = torch.arange(ids.shape[1])
        mask = ((documents[:, :, None] == documents[:, None, :]) & (order[:, None] >= order))[:, None]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class Qwen2(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Decoder()
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 if "embed" in name else 0.03 / (2 if residual else 1))

    def loss(self, hidden, labels):
        """A sum in which only the assistant's tokens count; hidden at a token predicts the next one."""
        counted = labels[:, 1:] >= 0
        logits = F.linear(hidden[:, :-1][counted], self.model.embed_tokens.weight)
        return F.cross_entropy(logits.float(), labels[:, 1:][counted], reduction="sum")
