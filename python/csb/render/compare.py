"""A comparison's record as text: the seed's lines in the seed's order, then csb's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.nodes import load_time
from csb.price import medians, said
from csb.render.devices import effect, holdings, ran_on
from csb.render.text import harmless
from csb.statistics import CLASSES

Record = dict[str, Any]
PAIRS = {
    "l_ar-l_single": "l_ar - l_single",
    "l_ar-l_block": "l_ar - l_block",
    "l_single-l_block": "l_single - l_block (dlogit)",
}


def render(record: Record, full: bool = False) -> str:
    lines = [*run_config(record), "", *_pairs(record), "", *_flips(record)]
    if full:
        lines += ["", *_trajectory(record), "", *_band(record), "", *_cells(record)]
    lines += ["", *_more(record), record["verdict"]]
    return "\n".join(lines) + "\n"


def run_config(record: Record) -> Iterator[str]:
    c, p = record["config"], record["provenance"]
    flash = "on" if c["flash_attn"] else "off"
    name = c["model_name"] or p["model"]["description"]
    yield "--- run config ---"
    yield f"flash_attn: {int(c['flash_attn'])}"
    yield f"n_gpu_layers: {c['n_gpu_layers']}"
    yield f"n_threads: {c['n_threads']} / batch: {c['n_threads_batch']}"
    yield f"n_batch: {c['n_batch']} / n_ubatch: {c['n_ubatch']}"
    yield f"block_width: {record['block_width']}"
    yield f"prompt_tokens: {len(record['prompt_tokens'])}"
    yield f"n_gen: {record['n_gen']}"
    yield (
        f"model: {harmless(name)}    backend: {ran_on(p)}  fa={flash}  "
        f"t={c['n_threads']}  W={record['block_width']}"
    )
    yield "------------------"


def _pairs(record: Record) -> Iterator[str]:
    stats = record["stats"]
    yield (f"=== pairwise logit-diff statistics (n={stats['l_single-l_block']['n']} cells) ===")
    yield f"{'pair':<28}{'mean':>13}{'var':>13}{'mean|d|':>13}{'var|d|':>13}"
    for key, name in PAIRS.items():
        s = stats[key]
        columns = (
            f"{_number(s['mean'], '+.6f'):>13}{_number(s['var'], '.6f'):>13}"
            f"{_number(s['abs_mean'], '.6f'):>13}{_number(s['abs_var'], '.6f'):>13}"
        )
        yield f"{name:<28}{columns}"


def _piece(record: Record, token: int) -> str:
    return harmless(record["pieces"].get(str(token), ""))


def _number(value: float | None, form: str) -> str:
    return "nan" if value is None else format(value, form)


def _flips(record: Record) -> Iterator[str]:
    yield (
        f"summary: tokens={record['n_gen']} checked={len(record['cells'])} "
        f"flips={record['n_flips']} cells across {record['n_flip_positions']} positions"
    )

    def token(i: int) -> str:
        return f"{i:>6}('{_piece(record, i)}')"

    for f in record["flips"]:
        yield f"FLIP at pos={f['pos']} (window t={f['t']}, block offset j={f['j']}):"
        yield (
            f"  single argmax={token(f['single_id'])} l={_number(f['l_single_max'], '.4f')} | "
            f"block argmax={token(f['block_id'])} l={_number(f['l_block_max'], '.4f')}"
        )
        l_s, l_b = f["l_s"], f["l_b"]
        gap = None if None in (l_s, l_b) else l_s - l_b
        yield (
            f"  AR token={token(f['ar_id'])} l_s={_number(l_s, '.4f')} l_b={_number(l_b, '.4f')} "
            f"dlogit={_number(gap, '+.4f')}"
        )
        if f["single_id"] != f["ar_id"]:
            yield (
                "  note: single-path argmax also deviates from the AR trajectory — "
                "prefill-vs-incremental drift, not a block effect"
            )


def _more(record: Record) -> Iterator[str]:
    s, p = record["summary"], record["prefix"]
    q = s["quantiles"]
    if (rows := record["config"]["n_ubatch"]) < record["block_width"]:
        yield f"blocks: -ub {rows} splits every block into ubatches of at most {rows} rows"
    yield from holdings(record["provenance"])
    one_row = f", {s['n_one_row']} one-row cells left out" if s["n_one_row"] else ""
    yield f"compared: {s['n_compared']} cells, {s['n_equal']} of them equal in every bit{one_row}"
    if not s["n_compared"]:
        yield "every block row was computed alone: give -W and -ub of 2 and more, and -n above 1"
        return
    if exact := record.get("exact_block"):
        yield from _exact(exact, s, record["kernels"])
    for key, name in (
        ("abs_gap", "|gap|"),
        ("abs_pair_gap", "|pair gap|"),
        ("abs_pair_drift", "|pair drift|"),
        ("margin", "margin"),
    ):
        yield f"{name + ':':<14}" + "  ".join(
            f"{_quantile(k)} {_number(v, '.4g')}" for k, v in q[key].items()
        )
    near = s["near_tie_limit"]
    yield (
        f"near ties: {_share(s['n_near_ties'], s['n_compared'])} have a margin under {near:.4g}, "
        "the 95th percentile of |pair gap|"
    )
    classes = s["flips_by_class"]
    yield "flips by class: " + ", ".join(f"{c.replace('_', ' ')} {classes[c]}" for c in CLASSES)
    yield (
        f"distributions: mean KL {_number(s['mean_kl'], '.3g')} nats, total variation mean "
        f"{_number(s['mean_tv'], '.3g')} largest {_number(s['max_tv'], '.3g')} at temperature "
        f"{record['config']['temperature']:g}; mean NLL block - single "
        f"{_number(s['mean_nll_difference'], '+.3g')} nats"
    )
    if reference := record.get("reference"):
        yield _reference(reference)
    for name, n in record["provenance"].get("switch_effects", {}).items():
        yield f"without {name}: {effect(n, record['provenance'])}"
    yield f"prefix: {_prefix(p)}"
    yield f"controls: {_controls(record['controls'])}"
    if kernels := record["kernels"]:
        yield f"kernels: {_kernels(kernels)}"
    if record["complete"]:
        t = record["seconds"]
        yield (
            f"time: {t['span']:.1f} s from the first AR decode to the last cell, csb's own share "
            f"{100 * t['own_share']:.1f} %; apart from it load {t['load']:.1f} s, "
            f"probes {t['probes']:.1f} s"
        )
    yield from _bound(record)


def _exact(exact: Record, s: Record, kernels: Record) -> Iterator[str]:
    n, differ = s["n_compared"], s["n_compared"] - s["n_equal"]
    holds = (
        f"single and block have the same bits in all {n} cells"
        if not differ
        else f"does NOT hold: single and block differ in {differ} of {n} cells"
    )
    plain = f"(without the switches in {exact['n_plain_equal']} of {exact['n_plain']})"
    cost = said(exact["price"]) + medians(exact["price"])
    yield f"exact block: {holds} {plain}; {cost}"
    names = ", ".join(exact["names"])
    also = f"; {', '.join(exact['single'])} in the single path and the AR run too, since "
    yield f"exact block: {names} refused in block decodes" + (
        f"{also}{exact['reason']}" if exact["single"] else " alone"
    )
    block = kernels.get("block")
    if differ and isinstance(block, dict) and load_time(block["kernels"]):
        yield "exact block: repacked weights keep their kernels from load time; add --no-repack"


def _quantile(key: str) -> str:
    return {"0.5": "median", "1.0": "max"}.get(key, f"{100 * float(key):g} %")


def _share(n: int, of: int) -> str:
    return f"{n} of {of} cells" + (f" ({100 * n / of:.1f} %)" if of else "")


def _prefix(p: Record) -> str:
    asked = p["asked"]
    parts = []
    if p["shared"]:
        what = "blocks written once" if asked == "block" else "one shared prefill"
        parts.append(f"{p['shared']} windows on {what}")
    if p["reprefilled"]:
        parts.append(f"{p['reprefilled']} re-prefilled")
    text = f"{asked}: window 0 fresh" + "".join(f", {part}" for part in parts)
    if asked == "incremental":
        text = "incremental: the AR run's own memory, window 0 fresh"
    if p["probes"]:
        text += f"; equal at {len(p['equal'])} of {len(p['probes'])} probed lengths"
    if p["reason"] and p["reprefilled"]:
        text += f" ({p['reason']})"
    if p["short_from"] is not None:
        text += f"; the last call was shorter, from position {p['short_from']} on"
    return text


def _reference(found: Record) -> str:
    """RMS distances over the vocabulary."""
    at = {name: _number(value, ".4g") for name, value in found["medians"].items()}
    return (
        f"against a CPU run in F32: RMS over the vocabulary, medians of {found['n']} cells: single "
        f"{at['single_reference']}, block {at['block_reference']}, from each other "
        f"{at['single_block']}; nearer to each other than to it in "
        f"{_share(found['n_nearer_to_each_other'], found['n'])}"
    )


def _kernels(paths: Record) -> str:
    """What only one of the paths runs, and what both do, with the number of nodes; of CUDA devices
    how many kernels; and where they could not be seen."""
    if "not observable" in paths.values():
        return "not observable"
    single, block = paths["single"], paths["block"]
    here, there = _apart(single["kernels"], block["kernels"]), single["n_threads"] > 0
    said = [here] if single["kernels"] or block["kernels"] else []
    if said and there:
        said.append(f"{single['n_threads']} / {block['n_threads']} threads")
    if "device_kernels" in single or "device_kernels" in block:
        a, b = (set(path.get("device_kernels", ())) for path in (single, block))
        said.append(
            f"on the device single {len(a - b)} and block {len(b - a)} of their own, both "
            f"{len(a & b)} (csb trace lists them)"
        )
    unseen = {**single["not_observable"], **block["not_observable"]}
    said += [f"not observable on {harmless(n)} ({harmless(why)})" for n, why in unseen.items()]
    return "; ".join(said) or "none was seen"


def _apart(single: dict[str, int], block: dict[str, int]) -> str:
    def named(names: list[str], counts: dict[str, int]) -> str:
        return ", ".join(f"{name} ({counts[name]})" for name in names) or "none of its own"

    alone = named([n for n in single if n not in block], single)
    blocks = named([n for n in block if n not in single], block)
    return f"single {alone}; block {blocks}; both {', '.join(n for n in single if n in block)}"


def _controls(c: Record) -> str:
    said = {
        "ar_equal": ("window 0 has the AR run's bits", "window 0 has NOT the AR run's bits"),
        "repeat_equal": ("a second time has the same bits", "a second time has NOT the same bits"),
        "token_differs": ("another token changes them", "another token does NOT change them"),
        "incremental_equal": (
            "every single row has the AR run's bits",
            "NOT every single row has the AR run's bits",
        ),
        "one_row_equal": ("", "windows of one-row calls have NOT the same bits"),
    }
    parts = [said[name][not c[name]] for name in said if c[name] is not None]
    for name, size in c["noise"].items():
        worst = "NaN" if size["max_abs"] is None else f"{size['max_abs']:.3g}"
        parts.append(f"{name}: {size['n_diff']} of {size['n']} logits differ, at most {worst}")
    return "; ".join(filter(None, parts)) or "did not run"


def _bound(record: Record) -> Iterator[str]:
    s = record["summary"]
    n = s["n_positions"]
    if s["bound"] is None or not n:
        return
    beside = " beside exact ties and one-row cells" if record["n_flips"] else ""
    yield (
        f"bound: 0 flips{beside} at {n} positions of 1 prompt; if positions were independent "
        f"draws, under {100 * s['bound']:.3g} % with 95 % confidence. Positions of one text are "
        "not independent, so the true bound is looser; other prompts and lengths are not covered"
    )


def _trajectory(record: Record) -> Iterator[str]:
    yield "=== AR trajectory ==="
    for p, a in enumerate(record["ar"]):
        yield f"{p:>5} {a['id']:>7} {a['logit']:>12.6f}  '{_piece(record, a['id'])}'"


def _band(record: Record) -> Iterator[str]:
    """Rows are positions, columns offsets: a diagonal of the band is one window."""
    width = record["block_width"]
    by_place = {(c["pos"], c["j"]): c["dlogit"] for c in record["cells"]}
    yield "=== dlogit by position and block offset ==="
    yield f"{'pos':>5}" + "".join(f"{f'j={j}':>11}" for j in range(width))
    for p in sorted({c["pos"] for c in record["cells"]}):
        row = (by_place.get((p, j), "") for j in range(width))
        yield f"{p:>5}" + "".join(
            f"{'':>11}" if v == "" else f"{_number(v, '+.6f'):>11}" for v in row
        )


def _cells(record: Record) -> Iterator[str]:
    yield "=== cells ==="
    columns = (
        ("t", "d", 5), ("j", "d", 3), ("pos", "d", 5), ("l_s", ".6f", 12), ("l_b", ".6f", 12),
        ("dlogit", "+.6f", 11), ("margin_s", ".6f", 11), ("pair_gap", "+.6f", 11),
        ("p_s", ".6f", 9), ("p_b", ".6f", 9), ("kl", ".2e", 10), ("tv", ".2e", 10),
        ("max_abs", ".2e", 10), ("n_diff", "d", 8), ("rank_s", "d", 7), ("rank_b", "d", 7),
        ("ubatch_rows", "d", 12),
    )  # fmt: skip
    yield "".join(f"{name:>{width}}" for name, _, width in columns)
    for cell in record["cells"]:
        yield "".join(f"{_number(cell[name], form):>{w}}" for name, form, w in columns)
