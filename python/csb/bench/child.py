"""A process that compares, or only decodes the same tokens, for its peak memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from csb.bench.methods import METHODS, on_worker
from csb.measure.session import open_session
from csb.plan import ComparePlan, ContextPlan, ModelPlan, PromptPlan
from csb.prompt.resolve import resolve


def plan_of(data: dict[str, Any]) -> ComparePlan:
    model = {**data["model"], "path": Path(data["model"]["path"])}
    prompt = data["prompt"]
    if prompt["tokens"] is not None:
        prompt = {**prompt, "tokens": tuple(prompt["tokens"])}
    parts = {
        "model": ModelPlan(**model),
        "context": ContextPlan(**data["context"]),
        "prompt": PromptPlan(**prompt),
    }
    return ComparePlan(**{**data, **parts})


def main(what: str, argument: str) -> None:
    plan = plan_of(json.loads(argument))
    with open_session(plan.model, plan.context) as session:
        prompt = resolve(plan.prompt, session.model)
        on_worker(METHODS["auto" if what == "compare" else what], session, plan, prompt.tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
