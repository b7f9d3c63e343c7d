"""The same measurement on one op alone: rows of random numbers in, as many rows out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import CsbError
from csb.measure.widths import Controls, Measured, Place, Progress, digests
from csb.native.op import OpResult, Source, run_op, source
from csb.ops import Floats, as_source, ran_kernels
from csb.plan import OpPlan
from csb.widths import Group


@dataclass
class _Case:
    """One op whose rows are compared. run(first, n, observe): n rows from the first on; `spoil`
    changes the first row's numbers. where: names it; group: of what shape it is."""

    where: dict[str, Any]
    group: Group
    run: Callable[[int, int, bool], OpResult]
    spoil: Callable[[], None]


def measure_op(
    plan: OpPlan, observe: bool, progress: Progress = lambda step, done, total: None
) -> Measured:
    """Every width on every case. An interrupt or an error ends in `stopped`."""
    made, begin = Measured(), time.perf_counter()
    shapes = 1 if plan.op == "mul_mat" else len(plan.cells)
    try:
        for i, case in enumerate(_cases(plan)):
            made.places.append(_measure(case, sorted(set(plan.widths)), observe, made.controls))
            progress("places", i + 1, plan.places * shapes)
    except (KeyboardInterrupt, CsbError) as error:
        made.stopped = error
    made.seconds = {"measure": time.perf_counter() - begin}
    return made


def _measure(case: _Case, widths: list[int], observe: bool, controls: Controls) -> Place:
    place, before = Place(case.where), None
    for width in widths:
        rows = _rows(case, width, widths[-1])
        place.add(width, rows, before)
        before = rows
        if observe:
            seen = case.run(0, width, True)
            kernels = [] if seen.events is None else ran_kernels(seen.events)
            place.add_kernels(width, [{**case.group, "kernels": kernels}], _flat(seen, width))
    for width in {widths[0], widths[-1]}:
        same = digests(_rows(case, width, widths[-1])) == place.rows[width]
        controls.note("repeat_equal", same)
    case.spoil()
    for width in {widths[0], widths[-1]}:
        changed = digests(_flat(case.run(0, width, False), width)[:1])
        controls.note("input_changes", changed != place.rows[width][:1])
    return place


def _rows(case: _Case, width: int, widest: int) -> Floats:
    if width > 1:
        return _flat(case.run(0, width, False), width)
    return np.concatenate([_flat(case.run(j, 1, False), 1) for j in range(widest)])


def _flat(result: OpResult, n: int) -> Floats:
    return result.values.reshape(n, -1)


def _cases(plan: OpPlan) -> Iterator[_Case]:
    make = _products if plan.op == "mul_mat" else _attentions
    return make(plan)


def _numbers(*seed: int) -> Callable[..., Floats]:
    generator = np.random.default_rng(seed)
    return lambda *shape: generator.standard_normal(shape, np.float32)


def _products(plan: OpPlan) -> Iterator[_Case]:
    m, k = plan.shape
    weights = as_source(_numbers(plan.seed)(m, k), plan.type, weight=True)
    for i in range(plan.places):
        x = _numbers(plan.seed, i)(max(plan.widths), k)

        def run(first: int, n: int, observe: bool, x: Floats = x) -> OpResult:
            return _run(plan, "MUL_MAT", [weights, source(x[first : first + n])], (m, n), observe)

        yield _Case({"draw": i}, _group(plan, "MUL_MAT", f"{m}x{k}"), run, _spoiler(x))


def _attentions(plan: OpPlan) -> Iterator[_Case]:
    d, widest = plan.head_size, max(plan.widths)
    scale = np.array([d**-0.5], np.float32).tobytes()
    for cells, i in itertools.product(plan.cells, range(plan.places)):
        draw = _numbers(plan.seed, cells, i)
        keys, values = (as_source(draw(plan.kv_heads, cells, d), plan.type) for _ in range(2))
        q = draw(widest, plan.heads, d)
        # the last cells are the block's own: row j sees none after its own
        seen = np.arange(cells)[None] <= cells - widest + np.arange(widest)[:, None]
        mask: npt.NDArray[np.float16] = np.where(seen, 0, -np.inf).astype(np.float16)

        def run(
            first: int,
            n: int,
            observe: bool,
            q: Floats = q,
            kv: tuple[Source, Source] = (keys, values),
            mask: npt.NDArray[np.float16] = mask,
        ) -> OpResult:
            part = slice(first, first + n)
            given = [source(q[part].transpose(1, 0, 2)), *kv, source(mask[part])]
            return _run(plan, "FLASH_ATTN_EXT", given, (d, plan.heads, n), observe, scale)

        group = _group(plan, "FLASH_ATTN_EXT", f"{cells}x{d}")
        yield _Case({"cells": cells, "draw": i}, group, run, _spoiler(q))


def _spoiler(numbers: Floats) -> Callable[[], None]:
    def spoil() -> None:
        numbers[0] += 1

    return spoil


def _run(
    plan: OpPlan,
    op: str,
    sources: list[Source],
    out_ne: tuple[int, ...],
    observe: bool,
    params: bytes = b"",
) -> OpResult:
    return run_op(
        op,
        sources,
        out_ne,
        op_params=params,
        device=plan.device,
        n_threads=plan.n_threads,
        repack=plan.repack,
        observe=observe,
    )


def _group(plan: OpPlan, op: str, shape: str) -> Group:
    return {
        "op": op,
        "what": "",
        "type": plan.type,
        "shape": shape,
        "nodes": 1,
        "backend": plan.device,
    }
