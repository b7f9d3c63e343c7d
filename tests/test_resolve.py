"""From what the user gave to token ids, on tiny models whose tokens are the text's UTF-8 bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import csb
import pytest
from conftest import TinyModel
from csb.errors import ArgumentError, UnsupportedError
from csb.plan import PromptPlan
from csb.prompt.resolve import Prompt, resolve
from csb.prompt.template import TemplateError
from tiny import BOS, CHATML, IM_END, IM_START

pytestmark = pytest.mark.native

USER = [IM_START, *b"user\nHi", IM_END, *b"\n", IM_START, *b"assistant\n"]
NOTE = "the model has no chat template: the prompt is taken raw"


@pytest.fixture(scope="module")
def chat(tiny_model: TinyModel) -> Path:
    return tiny_model(n_layer=2, tokenizer="bpe", chat_template=CHATML)


@pytest.fixture(scope="module")
def plain(tiny_model: TinyModel) -> Path:
    return tiny_model(n_layer=2, tokenizer="bpe")


@pytest.fixture(scope="module")
def with_bos(tiny_model: TinyModel) -> Path:
    return tiny_model(n_layer=2, tokenizer="bpe", bos=True)


@contextmanager
def opened(path: Path) -> Iterator[csb.Model]:
    with csb.Model(path) as model:
        yield model


def resolved(path: Path, text: str = "Hi", **options: object) -> Prompt:
    with opened(path) as model:
        return resolve(PromptPlan(text, **options), model)  # type: ignore[arg-type]


def test_chat_template(chat: Path) -> None:
    prompt = resolved(chat)
    assert prompt.tokens == USER
    assert prompt.rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.notes == []
    template = prompt.to_json()["chat_template"]
    assert template["sha256"] == hashlib.sha256(CHATML.encode()).hexdigest()
    assert template["enable_thinking"] is False


def test_system_message(chat: Path) -> None:
    prompt = resolved(chat, system="Be é")
    assert prompt.tokens == [IM_START, *"system\nBe é".encode(), IM_END, *b"\n", *USER]
    assert prompt.to_json()["system"] == "Be é"


def test_an_empty_system_message_is_one(chat: Path) -> None:
    assert resolved(chat, system="").tokens == [IM_START, *b"system\n", IM_END, *b"\n", *USER]


def test_no_chat_template_wanted(chat: Path) -> None:
    prompt = resolved(chat, chat_template=False)
    assert (prompt.tokens, prompt.notes) == (list(b"Hi"), [])
    assert (prompt.to_json()["chat_template"], prompt.rendered) == (None, None)


def test_no_chat_template_there_is_noted(plain: Path) -> None:
    prompt = resolved(plain)
    assert (prompt.tokens, prompt.notes) == (list(b"Hi"), [NOTE])
    assert prompt.to_json()["chat_template"] is None


def test_a_prompt_that_is_a_chat_is_taken_raw(chat: Path) -> None:
    prompt = resolved(chat, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert (prompt.tokens, prompt.notes) == (USER, [])
    assert prompt.to_json()["chat_template"] is None


def test_special_tokens_are_parsed(plain: Path) -> None:
    assert resolved(plain, "a<|im_end|>b").tokens == [97, IM_END, 98]


def test_bos_where_the_model_asks(with_bos: Path) -> None:
    assert resolved(with_bos).tokens == [BOS, *b"Hi"]


def test_no_second_bos(with_bos: Path) -> None:
    assert resolved(with_bos, "<|bos|>Hi").tokens == [BOS, *b"Hi"]


def test_a_bos_that_was_written_twice_stays(with_bos: Path) -> None:
    assert resolved(with_bos, "<|bos|><|bos|>Hi").tokens == [BOS, BOS, *b"Hi"]


def test_no_bos_is_added_to_a_written_one_s_model(plain: Path) -> None:
    assert resolved(plain, "<|bos|>Hi").tokens == [BOS, *b"Hi"]


def test_a_template_writes_its_own_bos(tiny_model: TinyModel) -> None:
    options = {"n_layer": 2, "tokenizer": "bpe", "bos": True}
    written = tiny_model(**options, chat_template="{{ bos_token }}" + CHATML)
    unwritten = tiny_model(**options, chat_template=CHATML)
    assert resolved(written).tokens == [BOS, *USER]
    assert resolved(unwritten).tokens == USER


def test_a_template_gets_eos(tiny_model: TinyModel) -> None:
    path = tiny_model(n_layer=2, tokenizer="bpe", chat_template="{{ eos_token }}!")
    assert resolved(path).tokens == [IM_END, *b"!"]


def test_token_ids_are_taken_as_they_are(with_bos: Path) -> None:
    prompt = resolved(with_bos, tokens=(5, 0, 511))
    assert (prompt.text, prompt.tokens) == (None, [5, 0, 511])


def test_token_ids_need_no_tokenizer(tiny_model: TinyModel) -> None:
    assert resolved(tiny_model(n_layer=2), tokens=(511,)).tokens == [511]


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"tokens": (1, 512)}, ArgumentError, "512 is outside the model's vocabulary of 512"),
        ({"tokens": (-1,)}, ArgumentError, "-1 is outside"),
        ({"tokens": (1,), "system": "x"}, ArgumentError, "--system needs a text prompt"),
        ({"text": ""}, ArgumentError, "the prompt is empty"),
        ({"system": "x", "chat_template": False}, ArgumentError, "--system needs a chat template"),
        ({"system": "x", "text": "<|im_start|>"}, ArgumentError, "--system needs a chat template"),
    ],
)
def test_refused(chat: Path, options: dict[str, object], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        resolved(chat, **{"text": "Hi"} | options)  # type: ignore[arg-type]


def test_text_needs_a_tokenizer(tiny_model: TinyModel) -> None:
    with pytest.raises(UnsupportedError, match="give token ids with --tokens"):
        resolved(tiny_model(n_layer=2))


@pytest.mark.parametrize(
    ("template", "why"),
    [("{% if %}", "does not compile"), ("{{ raise_exception('no') }}", "refused the messages: no")],
)
def test_a_broken_template(tiny_model: TinyModel, template: str, why: str) -> None:
    path = tiny_model(n_layer=2, tokenizer="bpe", chat_template=template)
    with pytest.raises(TemplateError, match=why):
        resolved(path)
    assert resolved(path, chat_template=False).tokens == list(b"Hi")
