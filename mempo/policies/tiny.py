"""A 0.5M-parameter policy for the atlas world, made from scratch in a standard architecture.

A transformers `Qwen2` of ordinary initialisation learns to copy far too slowly. Here the first
layer starts as "write the last token and the one before it beside each token" (look-back by
rotary phase in the q/k biases) and the others as "find where these two tokens stood before":
token-shift and induction heads. Training is free to change all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, get_args

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mempo.agent.protocol import STORE_KINDS, SUMMARISE
from mempo.config import AgentKind

_BLOCKS = ("mem", "think", "tool_call", "answer", "information")
_MORE_BLOCKS = ("summary", "facts", "query", "retrieved", "store")
TAGS = [f"<{s}{t}>" for t in (*_BLOCKS, *_MORE_BLOCKS) for s in ("", "/")]
_GLUE = [*get_args(AgentKind), SUMMARISE, *STORE_KINDS, ";", ",", "nothing", "done"]


def tiny_tokenizer(words: Sequence[str]) -> Any:
    """One token a word; tags and ';' stand alone with or without spaces around them."""
    vocabulary = ["<unk>", "<eos>", "<pad>", *TAGS, *_GLUE, *words]
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex("</?[a-z_]+>|;"), "isolated"),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
    )


def tiny_model(vocabulary: int, seed: int, *, width: int = 128, heads: int = 4) -> Any:
    """A float32 Qwen2 with 3 layers, tied embeddings and induction heads to start from."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = Qwen2ForCausalLM(config).float()
    _initialise(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def _initialise(model: Any, g: torch.Generator) -> None:
    d = model.config.hidden_size
    heads = model.config.num_attention_heads
    head = d // heads
    r = d // 4
    dc = d - 2 * r  # width left to the tokens; two subspaces of r hold the look-back
    ff = model.config.intermediate_size

    def normal(rows: int, columns: int, std: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=g) * std

    def orthogonal(n: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(n, n, generator=g))[0]

    u = orthogonal(d)
    u1, u2, uc = u[:, :r], u[:, r : 2 * r], u[:, 2 * r :]
    pc = uc @ uc.T
    embedding = normal(model.config.vocab_size, d, 0.226)
    keep = pc + 0.3 * (torch.eye(d) - pc)
    model.model.embed_tokens.weight.copy_(embedding @ keep * sqrt(d / (dc + 0.09 * (d - dc))))
    model.model.norm.weight.fill_(0.18)
    r1 = orthogonal(dc)[:r] @ uc.T * sqrt(dc / r)  # [r, d], keeps the norm of a token

    for i, layer in enumerate(model.model.layers):
        a = layer.self_attn
        for projection in (a.q_proj, a.k_proj, a.v_proj):
            projection.bias.zero_()
        if i == 0:
            small = 0.02 / sqrt(d)
            for projection in (a.q_proj, a.k_proj, a.v_proj, a.o_proj):
                projection.weight.copy_(normal(d, d, small))
            for half, target in ((0, u1), (1, u2)):
                at = half * d // 2
                a.v_proj.weight[at : at + r] += r1
                a.o_proj.weight[:, at : at + r] += target * (1.5 * 0.226 * 0.9)
            theta = 1e6 ** (-2 * torch.arange(4) / head)  # the highest rotary frequencies
            size = (18 * torch.tensor([1, 1, 1, 0.5]) / 3.5 * sqrt(head)).sqrt()
            for h in range(heads):
                back = 1 if h < heads // 2 else 2
                at = h * head
                a.k_proj.bias[at : at + 4] = size
                a.q_proj.bias[at : at + 4] = size * torch.cos(theta * back)
                half = at + head // 2
                a.q_proj.bias[half : half + 4] = -size * torch.sin(theta * back)
        else:
            ma, mb = normal(d, r, 1 / sqrt(d)), normal(d, r, 1 / sqrt(d))
            a.q_proj.weight.copy_(2 * (ma @ r1 + mb @ u1.T))
            a.k_proj.weight.copy_(2 * (ma @ u1.T + mb @ u2.T))
            value = normal(d, dc, 1 / sqrt(d)) @ uc.T * (d / dc) ** 0.25
            value = value + 0.1 * normal(d, d, 1 / sqrt(d))
            a.v_proj.weight.copy_(value)
            a.o_proj.weight.copy_(0.7 * value.T)
        layer.mlp.gate_proj.weight.copy_(normal(ff, d, 1 / sqrt(d)))
        layer.mlp.up_proj.weight.copy_(normal(ff, d, 1 / sqrt(d)))
        layer.mlp.down_proj.weight.copy_(normal(d, ff, ff**-0.5 / sqrt(6)))
