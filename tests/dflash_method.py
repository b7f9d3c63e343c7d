"""What a DFlash draft should say, in numpy: its forward pass on layer inputs of the target, which
come from the nodes of a plain context."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import csb
import numpy as np
from csb.native.watch import Node
from gguf import GGUFReader

Array = np.ndarray[Any, Any]
EPSILON, BASE = 1e-6, 10000.0


@functools.cache
def weights(path: Path) -> dict[str, Array]:
    """Of an F32 file, [out, in]."""
    return {t.name: np.asarray(t.data, np.float64) for t in GGUFReader(path).tensors}


def layer_inputs(target: csb.Model, tokens: list[int], **settings: Any) -> Array:
    """What goes into layers 0 and 2, [tokens, 2 * n_embd]: embeddings as the file has them, and the
    output of layer 1 as its node gives it."""
    found = []

    def after(node: Node) -> None:
        if node.info["name"] == "l_out-1":
            found.append(node.read(Node.OUTPUT).reshape(len(tokens), -1))

    with csb.Context(target, **settings) as context, context.watch(lambda node: None, after):
        context.decode(tokens, 0)
    embeddings = weights(target.path)["token_embd.weight"][tokens]
    return np.hstack([embeddings, found[0].astype(np.float64)])


def forward(
    draft: Path,
    target: Path,
    features: Array,
    last: int,
    masks: list[int],
    causal: bool = False,
    window: int = 0,
) -> Array:
    """Logits [1 + masks, n_vocab] of the last token and the masks after it; features: [tokens,
    layers * n_embd] of all tokens before. window: of the first layer, tokens that are farther back
    are out of it."""
    w, shared = weights(draft), weights(target)
    n = len(features)
    fused = _norm(features @ w["fc.weight"].T) * w["enc.output_norm.weight"]
    x = shared["token_embd.weight"][[last, *masks]]
    places = np.arange(n, n + len(x))
    sees = np.ones((len(x), n + len(x)), bool)
    if causal:
        sees[:, n:] = np.tri(len(x), dtype=bool)
    far = places[:, None] - np.arange(n + len(x)) >= (window or np.inf)
    for i in range(sum(name.endswith("attn_q.weight") for name in w)):
        of = {name.split(".", 2)[2]: v for name, v in w.items() if name.startswith(f"blk.{i}.")}
        h = _norm(x) * of["attn_norm.weight"]
        q = _heads(h, of, "q", places)
        k = np.concatenate([_heads(fused, of, "k", np.arange(n)), _heads(h, of, "k", places)])
        v = np.concatenate([fused, h]) @ of["attn_v.weight"].T
        v = v.reshape(len(k), k.shape[1], -1)
        in_sight = sees & ~far if i == 0 else sees
        x = x + _attend(q, k, v, in_sight) @ of["attn_output.weight"].T
        h = _norm(x) * of["ffn_norm.weight"]
        gate = h @ of["ffn_gate.weight"].T
        gate = gate / (1 + np.exp(-gate)) * (h @ of["ffn_up.weight"].T)
        x = x + gate @ of["ffn_down.weight"].T
    normed = _norm(x) * w["output_norm.weight"]
    if "d2t" not in w:
        return normed @ shared["output.weight"].T
    logits = np.full((len(x), len(shared["output.weight"])), -np.inf)
    logits[:, w["d2t"].astype(int)] = normed @ w["output.weight"].T
    return logits


def _norm(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)


def _heads(x: Array, of: dict[str, Array], which: str, places: Array) -> Array:
    """Queries or keys [tokens, heads, size]: normed, then turned by halves."""
    scale = of[f"attn_{which}_norm.weight"]
    heads = (x @ of[f"attn_{which}.weight"].T).reshape(len(x), -1, len(scale))
    heads = _norm(heads) * scale
    half = len(scale) // 2
    angle = np.outer(places, BASE ** (-np.arange(half) / half))[:, None, :]
    a, b = heads[..., :half], heads[..., half:]
    turned = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return np.concatenate(turned, axis=-1)


def _attend(q: Array, k: Array, v: Array, sees: Array) -> Array:
    k, v = (np.repeat(m, q.shape[1] // m.shape[1], axis=1) for m in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
    scores = np.where(sees, scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", shares, v).reshape(len(q), -1)
