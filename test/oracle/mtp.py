"""The MTP head of Qwen3.5 and Qwen3-Next in torch, after the definitions of vLLM and SGLang. transformers has the layer
of the head, which is one of the decoder's layers, but not the head.

For each position p, the head reads the hidden state h[p] of the decoder after its last norm and the next token x[p + 1]:

  u = fc(concat(norm_embedding(embedding(x[p + 1])), norm_hidden(h[p])));  y = norm(layer(u));  logits of x[p + 2] = lm_head(y)

Its layer attends to the positions up to p. For one more draft, y takes the place of the hidden state.
"""

import copy

import torch


def with_stacked_experts(weights):
    """Files of the hub have tensors for each expert. In memory, one holds gate and up of all of them, another down."""
    experts = "layers.0.mlp.experts."
    count = sum(name.startswith(experts) and name.endswith("gate_proj.weight") for name in weights)
    if count == 0:
        return weights
    of = lambda part: torch.stack([weights[f"{experts}{i}.{part}_proj.weight"] for i in range(count)])
    stacked = {f"{experts}gate_up_proj": torch.cat([of("gate"), of("up")], 1), f"{experts}down_proj": of("down")}
    return {name: value for name, value in weights.items() if not name.startswith(experts)} | stacked


class MtpHead(torch.nn.Module):
    def __init__(self, model, weights):
        """`model`: of transformers. `weights`: tensors of the checkpoint whose names begin with mtp."""
        super().__init__()
        self.model = model
        decoder = model.model
        config = copy.deepcopy(model.config)
        config.layer_types = ["full_attention"]
        config.num_hidden_layers = 1
        self.layers = torch.nn.ModuleList([type(decoder.layers[0])(config, 0)])
        norm = lambda: type(decoder.norm)(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        own = {name.removeprefix("mtp."): value.float() for name, value in weights.items() if name.startswith("mtp.")}
        missing, unexpected = self.load_state_dict(with_stacked_experts(own), strict=False)
        assert not unexpected and all(name.startswith("model.") for name in missing), (missing, unexpected)
        self.eval()

    def layer_after(self, embeddings, hidden):
        """(tokens, hidden) each: of x[1:] and of h. Returns the results of the layer."""
        u = self.fc(torch.cat([self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)], dim=-1))[None]
        num_tokens = u.shape[1]
        positions = torch.arange(num_tokens)[None]
        rope = self.model.model.rotary_emb(u, positions)
        mask = torch.full((num_tokens, num_tokens), torch.finfo(u.dtype).min).triu(1)[None, None]
        out = self.layers[0](u, position_embeddings=rope, attention_mask=mask, position_ids=positions)
        return (out[0] if isinstance(out, tuple) else out)[0]

    def next_hidden(self, result):
        return self.norm(result)

    @torch.no_grad()
    def drafts(self, token_ids, count):
        """Returns the log-probabilities of `count` drafts after the tokens, each with the most likely one before it."""
        decoder = self.model.model
        hidden = decoder(torch.tensor([token_ids[:-1]]), use_cache=False).last_hidden_state[0]
        following, found = list(token_ids[1:]), []
        for _ in range(count):
            result = self.layer_after(decoder.embed_tokens(torch.tensor(following)), hidden)[-1:]
            logprobs = torch.log_softmax(self.model.lm_head(self.norm(result))[0].double(), dim=-1)
            found.append(logprobs)
            following.append(logprobs.argmax().item())
            hidden = torch.cat([hidden, self.next_hidden(result)])
        return found
