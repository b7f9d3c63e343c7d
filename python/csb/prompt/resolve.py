"""From what the user gave to the prompt's token ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from csb.errors import ArgumentError, UnsupportedError
from csb.native.model import Model
from csb.plan import PromptPlan
from csb.prompt.template import FIXED_DATE, render


@dataclass(frozen=True)
class Prompt:
    """The prompt as given, as rendered (None: no chat template) and as token ids."""

    text: str | None
    tokens: list[int]
    rendered: str | None = None
    system: str | None = None
    template_sha256: str | None = None
    notes: list[str] = field(default_factory=list)  # for the user, on stderr

    def to_json(self) -> dict[str, Any]:
        template = self.template_sha256 and {
            "sha256": self.template_sha256,
            "date": FIXED_DATE,
            "enable_thinking": False,
        }
        return {"chat_template": template, "system": self.system, "rendered": self.rendered}


def resolve(plan: PromptPlan, model: Model) -> Prompt:
    """Raises ArgumentError for a prompt that can't be used, TemplateError for a broken template."""
    if plan.tokens is not None:
        if plan.system is not None:
            raise ArgumentError("--system needs a text prompt: give it with -p or -f")
        for token in plan.tokens:
            if not 0 <= token < model.n_vocab:
                raise ArgumentError(
                    f"--tokens: {token} is outside the model's vocabulary of {model.n_vocab}"
                )
        return Prompt(None, list(plan.tokens))
    if not model.info["has_tokenizer"]:
        raise UnsupportedError("the model has no tokenizer: give token ids with --tokens 1,2,3")
    if not plan.text:
        raise ArgumentError("the prompt is empty: give one with -p, -f or --tokens")

    template = model.chat_template
    notes: list[str] = []
    raw = not plan.chat_template or "<|im_start|>" in plan.text  # already a chat, as in the seed
    if template is None and not raw:
        notes.append("the model has no chat template: the prompt is taken raw")
        raw = True
    if raw:
        if plan.system is not None:
            raise ArgumentError("--system needs a chat template, and the prompt is taken raw")
        return Prompt(plan.text, _raw_tokens(plan.text, model), notes=notes)

    assert template is not None
    messages = [{"role": "system", "content": plan.system}] if plan.system is not None else []
    rendered = render(
        template,
        [*messages, {"role": "user", "content": plan.text}],
        bos_token=_special(model, "bos"),
        eos_token=_special(model, "eos"),
    )
    return Prompt(
        plan.text,
        model.tokenize(rendered, add_special=False, parse_special=True),
        rendered,
        plan.system,
        hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        notes,
    )


def _raw_tokens(text: str, model: Model) -> list[int]:
    """Special tokens parsed, BOS where the model wants it, and no second one before the text's."""
    tokens = model.tokenize(text, add_special=True, parse_special=True)
    doubled = model.info["add_bos"] and tokens[:2] == [model.info["bos"]] * 2
    return tokens[1:] if doubled else tokens


def _special(model: Model, name: str) -> str:
    token = model.info[name]
    return model.piece(token).decode("utf-8", "replace") if token >= 0 else ""
