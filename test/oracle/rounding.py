"""Measures the error of the number types alone. In random cases it can exceed the tolerance of the table.

- the types of the checkpoint: transformers in float32 with K and V rounded to the type, and for bf16 also the inputs of
  each product
- float32: transformers in float64, with rotary frequencies that differ by one unit in the last place of float32
"""

import contextlib
import sys

import torch

from golden import TORCH_DTYPES
from mutations import measure


def rounding_cost(case, golden, model):
    """Returns the worst and mean |difference| of the top log-probabilities."""
    if case["dtype"] == "f32":
        return 0.0, 0.0
    with rounded(model, TORCH_DTYPES[case["dtype"]]):
        return measure(golden, model)


def float32_cost(golden, model):
    """Returns the worst and mean |difference| of the top log-probabilities. Leaves the model in float64."""
    generator = torch.Generator().manual_seed(0)
    model.double()
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            signs = torch.randint(0, 2, buffer.shape, generator=generator) * 2 - 1
            buffer *= 1 + signs * torch.finfo(torch.float32).eps
    return measure(golden, model)


@contextlib.contextmanager
def rounded(model, dtype):
    round_to = lambda x: x.to(dtype).float()
    module = sys.modules[type(model.get_decoder()).__module__]
    attention = module.eager_attention_forward
    hooks = []
    module.eager_attention_forward = lambda layer, q, k, v, mask, **more: attention(layer, q, round_to(k), round_to(v), mask, **more)
    if dtype == torch.bfloat16:  # f16 checkpoints are computed in f32
        hooks = [m.register_forward_pre_hook(lambda _, inputs: (round_to(inputs[0]),)) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    try:
        yield
    finally:
        module.eager_attention_forward = attention
        for hook in hooks:
            hook.remove()
