"""What a runtime's number types alone cost a case: K and V rounded to the checkpoint's type, and for bf16 the inputs of each product too,
in transformers, all else float32. Random configurations can be so sharp that this exceeds the tolerance that fits the chosen ones."""

import contextlib
import sys

import torch

from golden import TORCH_DTYPES
from mutations import measure


def rounding_cost(case, golden, model):
    """(worst, mean) |difference| of the golden's top log-probabilities."""
    if case["dtype"] == "f32":
        return 0.0, 0.0
    with rounded(model, TORCH_DTYPES[case["dtype"]]):
        return measure(golden, model)


@contextlib.contextmanager
def rounded(model, dtype):
    round_to = lambda x: x.to(dtype).float()
    module = sys.modules[type(model).__module__]
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
