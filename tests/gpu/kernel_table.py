"""Which family of CUDA kernels a product with weights takes at each number of rows.

EXPECTED is read off llama.cpp's dispatcher at the pinned commit (ggml_cuda_mul_mat and what it
asks), for compute capability 9.0 and matrices whose rows are multiples of 64 values. Names of
kernels are those that CUPTI records, without parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

ROWS = (1, 2, 4, 5, 8, 9, 16, 17)

FLOAT = {1: "mmvf", 2: "mmf", 4: "mmf", 5: "mmf", 8: "mmf", 9: "mmf", 16: "mmf", 17: "cuBLAS"}
QUANTIZED = dict.fromkeys((1, 2, 4, 5, 8), "mmvq") | dict.fromkeys((9, 16, 17), "mmq")
EXPECTED = {"F16": FLOAT, "BF16": FLOAT, "Q8_0": QUANTIZED, "Q4_K_M": QUANTIZED}
ATTENTION = {n: "vec" if n == 1 else "mma" for n in ROWS}  # 16-bit cache

FAMILIES = {
    "mmvf": r"mul_mat_vec_f\b",
    "mmf": r"mul_mat_f(_ids)?\b",
    "mmvq": r"mul_mat_vec_q(_moe)?\b",
    "mmq": r"mul_mat_q\b",
    "cuBLAS": r".*(gemm|gemv|nvjet|cublas|cutlass)",
}
ATTENTION_FAMILIES = {
    "vec": r"flash_attn_ext_vec\b",
    "tile": r"flash_attn_tile\b",
    "mma": r"flash_attn_ext_f16\b",
}


def families(kernels: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> str:
    """The families among a call's kernels, joined by "+"; "none" where there is no such kernel."""
    names = [str(k["kernel"]) for k in kernels]
    found = [f for f, pattern in known.items() if any(re.match(pattern, n) for n in names)]
    return "+".join(found) or "none"


def held(trace: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A `csb trace` record's calls against the table: families by row count, of products and of
    attention; `differs`, a line for each cell not as expected; `names`, the kernels' own names."""
    seen: dict[str, dict[int, str]] = {"products": {}, "attention": {}}
    names: dict[int, list[str]] = {}
    differs = []
    for call in trace["calls"]:
        rows = call["rows"]
        why = call["device_not_observable"]
        every = "|".join((*FAMILIES.values(), *ATTENTION_FAMILIES.values()))
        ran = [str(k["kernel"]) for k in call["device_kernels"]]
        names[rows] = [name for name in ran if re.match(every, name)]
        for what, known, expected in (
            ("products", FAMILIES, EXPECTED[model]),
            ("attention", ATTENTION_FAMILIES, ATTENTION),
        ):
            found = f"not observable: {why}" if why else families(call["device_kernels"], known)
            seen[what][rows] = found
            if found != expected[rows]:
                differs.append(f"{model} {what}, {rows} rows: {found}, expected {expected[rows]}")
    return {**seen, "differs": differs, "names": names}
