"""Speculative runs as text: each prompt's texts and partings, then all of them by way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.render.devices import effect, ran_on
from csb.render.table import columns
from csb.render.text import harmless

Record = dict[str, Any]
NAMES = {
    "none": "plain loop",
    "kernels": "exact kernels",
    "single": "every row alone",
    "f32": "F32",
}


def render(record: Record, full: bool = False) -> str:
    lines = list(_config(record))
    one = len(record["prompts"]) == 1 and not record["config"]["frontier"]
    for number, prompt in enumerate(record["prompts"], 1):
        lines += ["", *_prompt(record, number, prompt, one or full, full)]
    lines += ["", *_ways(record), *_frontier(record), *_foot(record), record["verdict"]]
    return "\n".join(lines) + "\n"


def _config(record: Record) -> Iterator[str]:
    c, p = record["config"], record["provenance"]
    name = c["model_name"] or p["model"]["description"]
    yield (
        f"model: {harmless(name)}    backend: {ran_on(p)}  "
        f"fa={'on' if c['flash_attn'] else 'off'}  t={c['n_threads']}  W={record['block_width']}  "
        f"n={c['n_gen']}"
    )
    yield f"drafter: {harmless(c['drafter'])}, seed {c['seed']}"
    for name in ("draft", "f32_draft"):
        if name in record:
            yield _draft(name.replace("_", " "), record[name])
    extra = [name for name in c["without"] if name not in c["without_asked"]]
    if extra:
        yield (
            f"without {', '.join(extra)} in every decode, the AR run's too: what a block can't be "
            "given, the single path must not have"
        )
    for name, n in record.get("switch_effects", {}).items():
        yield f"exact kernels, without {name}: {effect(n, p)}"


def _draft(name: str, draft: Record) -> str:
    where = f"{name}: {harmless(draft['description'])} on {','.join(draft['devices']) or 'CPU'}"
    if "layers" not in draft:
        return where
    layers = ", ".join(map(str, draft["layers"]))
    said = (
        "which changes no bit of its rows"
        if draft["target_bits_unchanged"]
        else "which CHANGES bits of its rows: the AR run here is one with these layers read"
    )
    return f"{where}, blocks of {draft['block_size']}, reads the target's layers {layers}, {said}"


def _prompt(record: Record, number: int, prompt: Record, detail: bool, full: bool) -> Iterator[str]:
    what = harmless(prompt["prompt"]) if prompt["prompt"] is not None else "token ids"
    yield f"prompt {number}: {what} ({len(prompt['prompt_tokens'])} tokens)"
    for run in prompt["runs"]:
        if run["ar"] is None:
            yield "  the AR run did not begin"
            continue
        if detail:
            yield f"  AR run, {run['setting']}: {_ar(run)}"
            yield f"  rounding here: {_sizes(run['sizes'])}"
            if full:
                yield f"  AR text: {harmless(run['ar']['text'])}"
        for loop in run["loops"]:
            yield f"  {name_of(loop['way'])}: {_equal(run, loop)}"
            if detail:
                yield from (f"    {line}" for line in _loop(run, loop, full))
            else:
                yield from (f"    {line}" for line in _partings(loop))
            yield from (f"    {line}" for line in _faults(loop))


def name_of(way: str) -> str:
    kind, _, tau = way.partition(":")
    return NAMES.get(kind, f"{kind} under {tau}")


def _ar(run: Record) -> str:
    ar = run["ar"]
    n = len(ar["ids"])
    return f"{n} tokens, {n} decodes, {ar['seconds']:.2f} s, {n / ar['seconds']:.1f} tokens/s" + (
        ", ended" if ar["ended"] else ""
    )


def _sizes(sizes: Record) -> str:
    return (
        f"pair gap at most {sizes['pair_gap']:.4g} in {sizes['n_gap']} cells, pair drift at most "
        f"{sizes['pair_drift']:.4g} in {sizes['n_drift']}"
    )


def _equal(run: Record, loop: Record) -> str:
    n = len(loop["ids"])
    said = {
        "equal to AR": "the AR run's text",
        "parted, all rounding": "parts from the AR run, by rounding",
        "not rounding": "NOT ROUNDING",
        "nothing compared": "no verify decode had two rows: nothing was compared",
    }[loop["outcome"]]
    return (
        f"{said}; {loop['n_equal']} of {n} tokens equal, {loop['equal_rows']} rows with AR's bits"
    )


def _loop(run: Record, loop: Record, full: bool) -> Iterator[str]:
    calls, n = loop["calls"], len(loop["ids"])
    decodes = f"{calls['blocks']} block decodes of {calls['block_rows']} rows"
    if calls["singles"]:
        decodes += f", {calls['singles']} single ones"
    if calls["again"]:
        decodes += f", {calls['again']} for a memory that can't be cut back"
    single = run["ar"]["seconds"] / len(run["ar"]["ids"])
    yield (
        f"{decodes}; {loop['seconds']:.2f} s, {n / loop['seconds']:.1f} tokens/s, "
        f"{single * n / loop['seconds']:.2f} times the AR run's; overhead over its decodes "
        f"{100 * loop['overhead']:.1f} %"
    )
    yield f"accepted: {_accepted(loop['acceptance'])}"
    for width in loop["acceptance"]["by_width"]:
        yield (
            f"  {width['width']} drafted: {width['steps']} steps, mean accepted "
            f"{width['mean_accepted']:.2f}, {width['tokens_per_step']:.2f} tokens a step"
        )
    if loop["alone"]:
        late = f", {loop['late']} rewritten rows say another token" if loop["late"] else ""
        yield f"decoded alone: {loop['alone']} of {n} rows{late}"
    yield from _partings(loop)
    if loop["nll"]:
        nll = loop["nll"]
        yield (
            f"NLL under the single path: {nll['text']:.4f} nats a token, the AR text "
            f"{nll['ar']:.4f} ({nll['text'] - nll['ar']:+.4f})"
        )
    yield f"audits: {_audits(loop)}"
    if full:
        yield f"text: {harmless(loop['text'])}"
        for turn in loop["turns"]:
            yield (
                f"  at {turn['pos']}: {len(turn['draft'])} drafted, {turn['accepted']} accepted, "
                f"{turn['given']} given, {turn['alone']} alone"
            )


def _accepted(a: Record) -> str:
    if not a["drafted"]:
        return "nothing was drafted"
    share = 100 * a["rate"]
    return f"{a['accepted']} of {a['drafted']} drafted tokens ({share:.1f} %) in {a['steps']} steps"


def _partings(loop: Record) -> Iterator[str]:
    for parting in loop["partings"]:
        where = "a row decoded alone" if parting["alone"] else f"row {parting['offset']} of a block"
        yield (
            f"PARTS at {parting['pos']} ({where}): AR {parting['ar_id']}"
            f"('{harmless(parting['ar_text'])}')"
        )
        yield f"  loop {parting['id']}('{harmless(parting['text'])}')"
        yield f"  {_why(parting)}"
    if loop["partings"]:
        if loop["meets"]:
            ours, theirs = loop["meets"]
            yield f"they meet again at {ours}" + (f", AR's {theirs}" if ours != theirs else "")
        else:
            yield "they do not meet again"


def _why(parting: Record) -> str:
    tie = "; an exact tie" if parting["exact_tie"] else ""
    if parting["ar_margin"] is None:
        return f"after texts that had parted; gap {parting['gap']:+.4g}{tie}"
    bridged = {True: "no more than", False: "MORE than"}[parting["bridged"]]
    return (
        f"AR's margin {parting['ar_margin']:.4g} = drift {parting['drift']:+.4g}, gap "
        f"{parting['gap']:+.4g}, {-parting['loop']:.4g} to the other side; {bridged} the largest "
        f"pair gap and drift here{tie}"
    )


def _audits(loop: Record) -> str:
    audits = loop["audits"]
    if not audits:
        return "none"
    gap = max((abs(a["gap"]["pair_gap"] or 0) for a in audits), default=0.0)
    drift = max((abs(a["drift"]["pair_gap"] or 0) for a in audits), default=0.0)
    twice = ", looked at twice" if loop["looked_twice"] else ""
    return (
        f"{len(audits)}; loop's row against single path {gap:.4g}, loop's memory against a fresh "
        f"one {drift:.4g} at most{twice}; {loop['n_turned']} tokens are not the fresh decode's "
        f"best, at most {loop['deficit']:.4g} under it"
    )


def _faults(loop: Record) -> Iterator[str]:
    for fault in loop["faults"]:
        yield f"NOT ROUNDING at {fault['pos']} ({fault['kind']}): {fault['what']}"
    for outlier in loop["outliers"]:
        yield f"once, at {outlier['pos']} ({outlier['kind']}): {outlier['what']}"


def _ways(record: Record) -> Iterator[str]:
    rows = record["summary"]["ways"]
    if not rows:
        return
    heads = ["way", "texts", "parted", "95 %", "alone", "rows alone", "tokens/s", "times AR"]
    heads += ["accepted", "NLL", "faults"]
    table = [heads, *map(_way, rows)]
    yield from columns(table)
    yield (
        "parted: texts that leave the AR run's, with the exact (Clopper-Pearson) 95 % interval of "
        "their share; alone: of them, at a row decoded alone; other intervals are Student's over "
        "prompts"
    )


def _way(row: Record) -> list[str]:
    low, high = row["parted_interval"]
    setting = "" if row["setting"] == "as given" else f" ({row['setting']})"
    return [
        name_of(row["way"]) + ("" if row["way"] == row["setting"] else setting),
        str(row["n"]),
        str(row["parted"]),
        f"{100 * low:.0f}..{100 * high:.0f} %",
        str(row["parted_alone"]),
        _mean(row["alone_share"], 100, "%"),
        _number(row["tokens_per_second"], ".1f"),
        _mean(row["speed"], 1, ""),
        _mean(row["acceptance"], 100, "%", ".1f"),
        _mean(row["nll_difference"], 1, "", "+.4f"),
        str(row["faults"]),
    ]


def _mean(value: Record, scale: float, unit: str, form: str = ".2f") -> str:
    if value["mean"] is None:
        return ""
    said = f"{format(scale * value['mean'], form)}"
    if value["interval"]:
        low, high = (format(scale * x, form) for x in value["interval"])
        said += f" ({low}..{high})"
    return f"{said} {unit}".rstrip()


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _frontier(record: Record) -> Iterator[str]:
    if not record["config"]["frontier"]:
        return
    found = record["frontier"]
    if found["smallest"] is None:
        yield "no TAU is named: the plain loop did not part, or every TAU of the grid did"
        return
    high = found["interval"][1]
    yield (
        f"smallest TAU of the grid from which on no text parted: {found['smallest']}; 0 of "
        f"{record['summary']['n_prompts']} texts, under {100 * high:.0f} % of such texts with 95 % "
        f"confidence; {_bound(found['bound'])}. Larger texts and other prompts are not covered"
    )


def _bound(bound: float | None) -> str:
    share = 100 * (bound or 1.0)
    return f"under {share:.2g} % of their tokens, were those independent draws"


def _foot(record: Record) -> Iterator[str]:
    for number, prompt in enumerate(record["prompts"], 1):
        for run in prompt["runs"]:
            failed = run["controls"]["failed"]
            if failed:
                yield f"prompt {number}: controls failed: {', '.join(failed)}"
    c = record["config"]
    kernels = [row for row in record["summary"]["ways"] if row["way"] == "kernels"]
    if kernels and kernels[0]["parted"] and c["repack"]:
        yield (
            "exact kernels parted: repacked weights have their kernels from load time; try "
            "--no-repack"
        )
    for row in record["summary"]["ways"]:
        if row["bound"] is not None and row["way"] != "none" and not c["frontier"]:
            yield (
                f"bound: {name_of(row['way'])}: 0 partings in {row['tokens']} tokens of {row['n']} "
                f"texts; if tokens were independent draws, under {100 * row['bound']:.3g} % with "
                "95 % confidence. Tokens of one text are not independent, so the true bound is "
                "looser; other prompts and lengths are not covered"
            )
