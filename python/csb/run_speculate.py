"""Whole speculative runs, from plan to saved record: what `csb speculate` calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from csb import kernels, unfinished
from csb import record as records
from csb.errors import ArgumentError
from csb.measure.session import Session, open_session
from csb.measure.speculate import draft_dflash, draft_model, precise
from csb.measure.speculate.draft_dflash import DFlash
from csb.measure.speculate.draft_model import DraftModel
from csb.measure.speculate.drafters import Drafter, Ngram, Noisy, Oracle, Recorded
from csb.measure.speculate.measure import Speculated, prefix_of, refuse, speculate
from csb.measure.trace import switch_effects
from csb.models.hashing import sha256_file
from csb.native import worker
from csb.native.model import Model
from csb.prompt.resolve import Prompt, resolve
from csb.render.output import note, save
from csb.render.progress import Steps
from csb.render.text import harmless
from csb.run import interruptible, raise_error
from csb.speculation import record, recorded, summary
from csb.speculation.plan import EXACT_KERNELS, SpeculatePlan, Way

Record = dict[str, Any]
SPLIT_FROM = 256  # cells of a text from which llama.cpp splits one-row attention over the cache


def run_speculate(plan: SpeculatePlan, json_path: str | None = None) -> Record:
    """Measures every prompt, builds the record and writes it to json_path ("-": stdout).

    An interrupt ends in a record with `complete` false; an error raises after it was written.
    """
    plan.check()
    drafts = recorded.read(plan.drafter.path) if plan.drafter.kind == "file" else None
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(open_session(plan.model, plan.context))
        prompts = _prompts(plan, session)
        for way in plan.ways:
            refuse(way, session.memory)
        without = _switches(plan, session, prompts)
        stack.enter_context(kernels.without(*without))
        model = stack.enter_context(_draft_model(plan, session))
        if drafts is not None:
            recorded.check(drafts, session.model.n_vocab, plan.drafter.path)
        all_ways = [Way(), *(way for way in plan.ways if way.kind != "f32")]
        provenance = session.provenance()
        provenance.pop("hash_seconds")
        begun = record.head(plan, provenance, without)
        if model is not None:
            begun["draft"] = _facts(plan, session, model, prompts[0])
        precise_model = model
        if plan.exact == "f32":
            precise.refuse(session.model)
            precisely = stack.enter_context(precise.session(session))
            begun["f32"] = precisely.parameters()
            if isinstance(model, DFlash):  # it uses its target's weights
                again = draft_dflash.beside(precisely, plan.drafter.path, plan.width)
                precise_model = stack.enter_context(again)
                begun["f32_draft"] = _facts(plan, precisely, precise_model, prompts[0])

        made: list[Record] = []
        stopped: Speculated | None = None
        with unfinished.kept(json_path, unfinished.of(begun, "prompts")) as keep, Steps() as steps:
            for index, prompt in enumerate(prompts):
                here = _Here(plan, prompt, index, len(prompts), steps, drafts)
                done = [("as given", here.run(session, all_ways, model))]
                if plan.exact == "f32" and done[0][1].stopped is None:
                    done.append(("f32", here.run(precisely, [Way("f32")], precise_model)))
                text = _detokenizer(session.model)
                runs = [record.of_run(s, setting, plan.exact, text) for setting, s in done]
                made.append(record.of_prompt(prompt, runs, plan.exact))
                keep(made[-1:])
                stopped = next((s for _, s in done if s.stopped is not None), None)
                if stopped is not None:
                    break
        if plan.exact == "kernels" and stopped is None:
            begun["switch_effects"] = _effects(plan, session, prompts[0], made[0])
        sums = {"summary": summary.of_prompts(made)}
        if plan.frontier:
            sums["frontier"] = summary.frontier(sums["summary"]["ways"])
        built = record.build(plan, begun, made, sums, stopped is None)
        if json_path is not None:
            save(records.dumps(built), json_path)
    if stopped is not None:
        raise_error(stopped)
    return built


def _prompts(plan: SpeculatePlan, session: Session) -> list[Prompt]:
    context, found = session.context, []
    for index, given in enumerate(plan.prompts):
        prompt = resolve(given, session.model)
        for text in prompt.notes if index == 0 else ():
            note(text)
        try:
            plan.compare_plan(given, "auto").check(
                len(prompt.tokens), context.value("n_batch"), context.value("n_ctx_seq")
            )
        except ArgumentError as error:
            if len(plan.prompts) == 1:
                raise
            raise ArgumentError(f"prompt {index + 1}: {error}") from error
        found.append(prompt)
    return found


def _switches(plan: SpeculatePlan, session: Session, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Those of every decode. One-row attention that is split over the cache can't be had from a
    block, so where exact kernels meet it the AR run goes without it too."""
    longest = max(len(prompt.tokens) for prompt in prompts) + plan.n_gen
    flash = bool(session.context.value("flash_attn"))
    if plan.exact == "kernels" and flash and longest > SPLIT_FROM:
        return tuple(dict.fromkeys((*plan.without, "split-kv")))
    return plan.without


def _draft_model(
    plan: SpeculatePlan, session: Session
) -> contextlib.AbstractContextManager[DraftModel | DFlash | None]:
    drafter = plan.drafter
    if drafter.kind == "dflash":
        return draft_dflash.beside(session, drafter.path, plan.width)
    if drafter.kind == "model":
        return draft_model.beside(session, drafter.path)
    return contextlib.nullcontext()


def _facts(
    plan: SpeculatePlan, session: Session, draft: DraftModel | DFlash, prompt: Prompt
) -> Record:
    path = plan.drafter.path
    known = {
        "path": str(path),
        "sha256": sha256_file(path),
        **{name: draft.model.info[name] for name in ("description", "devices")},
    }
    if isinstance(draft, DraftModel):
        return known
    unchanged = draft_dflash.leaves_bits_alone(session, draft, prompt.tokens, plan.width)
    return known | draft.facts | {"target_bits_unchanged": unchanged}


@dataclass
class _Here:
    """One prompt of a plan."""

    plan: SpeculatePlan
    prompt: Prompt
    index: int
    n: int
    steps: Steps
    drafts: recorded.Drafts | None

    def run(
        self, session: Session, ways: Sequence[Way], model: DraftModel | DFlash | None
    ) -> Speculated:
        memory = session.memory
        plan = self.plan.compare_plan(self.plan.prompts[self.index], prefix_of(memory))

        def cancel() -> None:
            session.context.cancel()
            if model is not None:
                model.cancel()

        return interruptible(
            lambda: speculate(
                memory,
                plan,
                self.prompt.tokens,
                session.quantized,
                lambda ar: model or self._drafter(ar, session.model.n_vocab),
                ways,
                self._progress,
            ),
            cancel,
        )

    def _progress(self, step: str, done: int, total: int) -> None:
        self.steps(step if self.n == 1 else f"{self.index + 1}/{self.n} {step}", done, total)

    def _drafter(self, ar: Sequence[int], n_vocab: int) -> Drafter:
        kind = self.plan.drafter.kind
        if kind == "noisy":
            return Noisy(ar, self.plan.drafter.rate, (self.plan.seed, self.index), n_vocab)
        if kind == "ngram":
            return Ngram()
        if self.drafts is not None:
            return Oracle(self.drafts) if isinstance(self.drafts, list) else Recorded(self.drafts)
        return Oracle(ar)


def _detokenizer(model: Model) -> Callable[[Sequence[int]], str]:
    if not model.info["has_tokenizer"]:
        return lambda ids: " ".join(map(str, ids))
    return lambda ids: harmless(model.detokenize(ids, special=True))


def _effects(plan: SpeculatePlan, session: Session, prompt: Prompt, made: Record) -> dict[str, int]:
    """How many nodes each switch of the exact kernels changes."""
    text = [*prompt.tokens, *made["runs"][0]["ar"]["ids"]][: -plan.width or None]
    return worker.run(
        lambda: switch_effects(session.memory, text, plan.width, EXACT_KERNELS),
        session.context.cancel,
    )
