"""What each tiny test architecture consists of: tables of tensors and metadata keys.

Shapes are written in letters, slowest dimension first (numpy's order, the reverse of ggml's
`ne`), and resolved by `sizes`. The expected names and shapes are those that the
`load_arch_tensors` of llama.cpp's src/models/*.cpp asks for at the pin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Table = dict[str, str]
"""Tensor name -> its shape as letters."""
Value = bool | int | float | list[int]
Keys = dict[str, str | Value | Callable[[dict[str, int]], Value]]
"""Metadata key -> its value; a string is the letter of a size."""


@dataclass(frozen=True)
class Arch:
    """One architecture: its layers repeat `cycle`, so a hybrid has more than one entry."""

    name: str
    cycle: tuple[Table, ...]
    top: Table
    keys: Keys
    defaults: dict[str, int] = field(default_factory=dict)

    def layer(self, i: int) -> Table:
        return self.cycle[i % len(self.cycle)]


SHAPE = {
    "n_layer": 4,
    "n_vocab": 512,
    "n_ctx": 2048,
    "n_embd": 256,
    "n_ff": 512,
    "n_head": 4,
    "n_head_kv": 2,
    "head_size": 0,
    "n_expert": 8,
    "n_expert_used": 2,
    "sliding_window": 64,
}
"""Every size a test may override. head_size 0 is n_embd / n_head, which all archs accept."""

LETTERS = dict(zip("lvcefHKhxuw", SHAPE, strict=True))


def sizes(shape: dict[str, int]) -> dict[str, int]:
    """The value of each letter used in the tables below."""
    s = {letter: shape[name] for letter, name in LETTERS.items()}
    s["h"] = s["h"] or s["e"] // s["H"]
    return s | {
        "q": s["H"] * s["h"],
        "k": s["K"] * s["h"],
        "2e": 2 * s["e"],
        "2q": 2 * s["H"] * s["h"],  # query and gate in one projection
        "3e": 3 * s["e"],
        "i": 2 * s["e"],  # mamba: the only expansion that the pin loads
        "2i": 4 * s["e"],
        "s": 16,  # state size
        "r": 32,  # time step rank: a multiple of 32, so that Q8_0 can hold its rows
        "r2s": 32 + 2 * 16,
        "4": 4,  # width of the ssm convolution
        "3": 3,  # width of the short convolution
        "2": 2,  # token types
        "d": 64,  # gated delta net: head size, 2 key heads, 4 value heads
        "n": 2,
        "m": 4,
        "md": 4 * 64,
        "nmd": (2 * 2 + 4) * 64,
    }


HEAD: Table = {"token_embd.weight": "v e", "output_norm.weight": "e", "output.weight": "v e"}
ATTENTION: Table = {
    "attn_norm.weight": "e",
    "attn_q.weight": "q e",
    "attn_k.weight": "k e",
    "attn_v.weight": "k e",
    "attn_output.weight": "e q",
}
QK_NORM: Table = {"attn_q_norm.weight": "h", "attn_k_norm.weight": "h"}
GATED: Table = {"ffn_gate.weight": "f e", "ffn_up.weight": "f e", "ffn_down.weight": "e f"}
FFN: Table = {"ffn_norm.weight": "e", **GATED}
EXPERTS: Table = {
    "ffn_norm.weight": "e",
    "ffn_gate_inp.weight": "x e",
    "ffn_gate_exps.weight": "x f e",
    "ffn_up_exps.weight": "x f e",
    "ffn_down_exps.weight": "x e f",
}
SANDWICH: Table = {"post_attention_norm.weight": "e", "post_ffw_norm.weight": "e"}
MAMBA: Table = {
    "attn_norm.weight": "e",
    "ssm_in.weight": "2i e",
    "ssm_conv1d.weight": "i 4",
    "ssm_conv1d.bias": "i",
    "ssm_x.weight": "r2s i",
    "ssm_dt.weight": "i r",
    "ssm_dt.bias": "i",
    "ssm_a": "i s",
    "ssm_d": "i",
    "ssm_out.weight": "e i",
}
SHORTCONV: Table = {
    "attn_norm.weight": "e",
    "shortconv.conv.weight": "e 3",
    "shortconv.in_proj.weight": "3e e",
    "shortconv.out_proj.weight": "e e",
}
DELTA_NET: Table = {
    "attn_norm.weight": "e",
    "attn_qkv.weight": "nmd e",
    "attn_gate.weight": "md e",
    "ssm_conv1d.weight": "nmd 4",
    "ssm_dt.bias": "m",
    "ssm_a": "m",
    "ssm_beta.weight": "m e",
    "ssm_alpha.weight": "m e",
    "ssm_norm.weight": "d",
    "ssm_out.weight": "e md",
}
GATED_FFN: Table = {"post_attention_norm.weight": "e", **GATED}
BERT_TOP: Table = {
    "token_embd.weight": "v e",
    "token_types.weight": "2 e",
    "position_embd.weight": "c e",
    "token_embd_norm.weight": "e",
    "token_embd_norm.bias": "e",
}
BERT: Table = {
    **{n: s for n, s in ATTENTION.items() if n != "attn_norm.weight"},
    "attn_output_norm.weight": "e",
    "attn_output_norm.bias": "e",
    "ffn_up.weight": "f e",
    "ffn_down.weight": "e f",
    "layer_output_norm.weight": "e",
    "layer_output_norm.bias": "e",
}

COMMON: Keys = {
    "context_length": "c",
    "embedding_length": "e",
    "block_count": "l",
    "vocab_size": "v",
}
HEADS: Keys = {
    **COMMON,
    "feed_forward_length": "f",
    "attention.head_count": "H",
    "attention.head_count_kv": "K",
    "attention.key_length": "h",
    "attention.value_length": "h",
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": "h",
    "rope.freq_base": 10000.0,
}

ARCHS = {
    "llama": Arch("llama", (ATTENTION | FFN,), HEAD, HEADS),
    "qwen3": Arch("qwen3", (ATTENTION | QK_NORM | FFN,), HEAD, HEADS),
    # every second layer sees the whole context; the pin's own default is every sixth, which
    # would leave none in a model of four
    "gemma3": Arch(
        "gemma3",
        (ATTENTION | QK_NORM | FFN | SANDWICH,),
        HEAD,
        HEADS | {"attention.sliding_window": "w", "attention.sliding_window_pattern": 2},
    ),
    "moe": Arch(
        "qwen3moe",
        (ATTENTION | QK_NORM | EXPERTS,),
        HEAD,
        HEADS | {"expert_count": "x", "expert_used_count": "u", "expert_feed_forward_length": "f"},
        {"n_ff": 256},  # eight experts of 512 would make a file of 50 MB
    ),
    "mamba": Arch(
        "mamba",
        (MAMBA,),
        HEAD,
        COMMON
        | {
            "attention.layer_norm_rms_epsilon": 1e-6,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "ssm.conv_kernel": "4",
            "ssm.inner_size": "i",
            "ssm.state_size": "s",
            "ssm.time_step_rank": "r",
        },
    ),
    # a layer without key-value heads is what the loader takes for a short convolution
    "lfm2": Arch(
        "lfm2",
        (SHORTCONV | FFN, ATTENTION | QK_NORM | FFN),
        {
            ("token_embd_norm.weight" if n == "output_norm.weight" else n): s
            for n, s in HEAD.items()
        },
        HEADS
        | {
            "attention.head_count_kv": lambda s: [s["K"] * (i % 2) for i in range(s["l"])],
            "shortconv.l_cache": "3",
        },
    ),
    "qwen35": Arch(
        "qwen35",
        (DELTA_NET | GATED_FFN, ATTENTION | {"attn_q.weight": "2q e"} | QK_NORM | GATED_FFN),
        HEAD,
        HEADS
        | {
            "full_attention_interval": 2,
            "rope.dimension_sections": lambda s: [s["h"] // 2, 0, 0, 0],
            "ssm.conv_kernel": "4",
            "ssm.inner_size": "md",
            "ssm.state_size": "d",
            "ssm.time_step_rank": "m",
            "ssm.group_count": "n",
        },
    ),
    # a draft for targets of four layers, whose embeddings and head it uses
    "dflash": Arch(
        "dflash",
        (ATTENTION | QK_NORM | FFN,),
        {"fc.weight": "e 2e", "enc.output_norm.weight": "e", "output_norm.weight": "e"},
        HEADS | {"block_size": 8, "target_layers": lambda s: [0, 2]},
        {"n_layer": 2},
    ),
    "bert": Arch(
        "bert",
        (BERT,),
        BERT_TOP,
        HEADS
        | {"attention.layer_norm_epsilon": 1e-6, "attention.causal": False, "pooling_type": 0},
    ),
}
