"""`csb bench` as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMES = {
    "seed": "seed's method",
    "reprefill": "csb, reprefill",
    "shared": "csb, shared",
    "auto": "csb, auto",
    "decodes": "unavoidable decodes",
}


def render_hooks(record: dict[str, Any]) -> str:
    lines = [
        f"{len(record['prompt_tokens'])} prompt tokens, W={record['block_width']}, medians of "
        f"{record['pairs']} interleaved pairs with 95 % intervals",
        f"{'hooks':<12}{'seconds':>9}{'ratio':>9}{'interval':>18}{'with reading it':>17}",
    ]
    for row in record["ways"]:
        low, high = row["interval"]
        lines.append(
            f"{row['way']:<12}{row['seconds']:>9.3f}{row['ratio']:>9.4f}"
            f"{f'{low:.4f}..{high:.4f}':>18}{row['read_ratio']:>17.4f}"
        )
    return "\n".join(lines) + "\n"


def render_bench(record: dict[str, Any]) -> str:
    return "\n".join(_lines(record)) + "\n"


def _lines(record: dict[str, Any]) -> Iterator[str]:
    ended = "" if record["n_ar"] == record["n_gen"] else f" (ended after {record['n_ar']})"
    yield (
        f"{len(record['prompt_tokens'])} prompt tokens, n={record['n_gen']}{ended}, "
        f"W={record['block_width']}, medians of {record['runs']} interleaved runs"
    )
    yield (
        f"{'method':<21}{'seconds':>9}{'speedup':>9}{'of bound':>10}{'own share':>11}"
        f"{'probes+controls':>17}  same bits"
    )
    for row in record["methods"]:
        same = {True: "yes", False: "NO", None: ""}[row["same_bits"]]
        yield (
            f"{NAMES[row['method']]:<21}{row['seconds']:>9.2f}{row['speedup']:>9.2f}"
            f"{_share(row['of_bound']):>10}{_share(row['own_share']):>11}"
            f"{_share(row['probes_and_controls']):>17}  {same}"
        )
    if memory := record["peak_memory"]:
        yield (
            f"peak memory: {memory['compare'] / 2**20:.0f} MiB, decoding alone "
            f"{memory['decodes'] / 2**20:.0f} MiB: {100 * memory['over']:+.1f} %"
        )


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
