"""Chat templates, rendered in the child. Expected texts are written by hand from jinja2's rules."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from csb.prompt import template as parent
from csb.prompt.template import FIXED_DATE, MAX_MESSAGE, MAX_REPLY, MAX_TEXT, TemplateError, render

USER = [{"role": "user", "content": "Hi"}]
SYSTEM_USER = [{"role": "system", "content": "Be brief."}, *USER]
TURNS = [
    *USER,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "Bye"},
]
ADVICE = "; use --no-chat-template for raw text"

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# The shape of a thinking model's template: old thoughts are dropped, and where thinking is off
# an empty thought is written for the model.
THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant, not start with ' + m.role) }}"
    "{% endif %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
)


def show(
    template: str,
    messages: list[dict[str, str]] = USER,
    *,
    add_generation_prompt: bool = True,
    enable_thinking: bool = False,
    timeout_s: float = 10.0,
) -> str:
    return render(
        template,
        messages,
        bos_token="<s>",
        eos_token="</s>",
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
        timeout_s=timeout_s,
    )


def error(template: str, messages: list[dict[str, str]] = USER, timeout_s: float = 10.0) -> str:
    """The message: one printable line with the advice, short enough to read."""
    with pytest.raises(TemplateError) as caught:
        show(template, messages, timeout_s=timeout_s)
    message = str(caught.value)
    assert message.isprintable() and len(message) <= MAX_MESSAGE and message.endswith(ADVICE)
    return message


def test_chatml() -> None:
    assert show(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_chatml_system_role_and_no_generation_prompt() -> None:
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert show(CHATML, SYSTEM_USER, add_generation_prompt=False) == expected


def test_thinking_off_is_the_default() -> None:
    assert show(THINKING) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_thinking_on() -> None:
    assert show(THINKING, SYSTEM_USER, enable_thinking=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_old_thoughts_are_dropped() -> None:
    assert show(THINKING, TURNS, enable_thinking=True) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama3_bos_and_date() -> None:
    assert FIXED_DATE == "2025-01-01"
    assert show(LLAMA3, SYSTEM_USER) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Jan 2025\n\n"
        "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # trim_blocks eats the newline after a block, lstrip_blocks the blanks before it; neither
        # touches an expression; one newline at the end of the template is dropped.
        ("  {% if true %}\n  a\n  {% endif %}\n  {{ 1 }}\n\n", "  a\n  1\n"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
         "{% if i == 3 %}{% break %}{% endif %}{% endfor %}", "023"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true, ensure_ascii=true) }}",
         '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1, [2]] | tojson(separators=(',', ':')) }}", "[1,[2]]"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        # A generation block has a scope of its own, as every call block.
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{{ strftime_now('%Y-%m-%d %H:%M') }}", "2025-01-01 00:00"),
        ("{{ tools is none }} {{ documents is none }} {{ pad_token is defined }}",
         "True True False"),
        ("{{ '&<>\"' }}{{ missing }}", '&<>"'),
    ],
)  # fmt: skip
def test_renders_as_transformers_does(template: str, expected: str) -> None:
    assert show(template) == expected


def test_any_text_survives_the_trip() -> None:
    content = "\x00\x1b[0m \r\n 日本 😀 \udcff \\u0041"
    assert show("{{ messages[0].content }}", [{"role": "user", "content": content}]) == content


def test_refusal_names_the_reason() -> None:
    assert show(ALTERNATE) == "[Hi]</s>"
    assert error(ALTERNATE, SYSTEM_USER) == (
        "the model's chat template refused the messages: "
        "Roles must alternate user/assistant, not start with system" + ADVICE
    )


def test_refusal_text_is_escaped_and_cut() -> None:
    message = error(r"{{ raise_exception('a\n\x1b[31m\u202e\u2028' ~ 'b' * 10**6) }}")
    assert r": a\n\x1b[31m\u202e\u2028bbb" in message and "bbb..." + ADVICE in message
    assert len(message) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("template", "detail"),
    [
        ("line one\n{% if x %}", "line 2: "),
        ("{{ x | no_such_filter }}", "no_such_filter"),
        ("{% do x %}", "unknown tag 'do'"),
        ("{% for a in [1] %}" * 25 + "{% endfor %}" * 25, "nested"),
        ("{{ " + "(" * 5000, "RecursionError"),
    ],
)
def test_does_not_compile(template: str, detail: str) -> None:
    message = error(template)
    assert message.startswith("the model's chat template does not compile: ")
    assert detail in message


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ raise_exception.__globals__['sys'].modules }}",
        "{{ strftime_now.__self__.year }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context.environment.loader.x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
    ],
)
def test_sandbox(template: str) -> None:
    assert error(template).startswith("the model's chat template failed: SecurityError: ")


@pytest.mark.parametrize(
    ("template", "detail"),
    [
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import 'os' as os %}", "no loader"),
        ("{{ range(10**9) | length }}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ unknown.x }}", "UndefinedError: 'unknown' is undefined"),
    ],
)
def test_failures_while_rendering(template: str, detail: str) -> None:
    message = error(template)
    assert message.startswith("the model's chat template failed: ") and detail in message


def test_time_limit() -> None:
    loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    start = time.monotonic()
    assert error(loops, timeout_s=1) == "the model's chat template took more than 1 s" + ADVICE
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("letter", ["x", "é"])
def test_output_limit_counts_bytes(letter: str) -> None:
    count = MAX_TEXT // len(letter.encode())
    template = "{% for i in range(COUNT // 64) %}{{ 'LETTER' * 64 }}{% endfor %}"
    template = template.replace("COUNT", str(count)).replace("LETTER", letter)
    assert show(template) == letter * count
    message = "the model's chat template wrote more than 1048576 bytes" + ADVICE
    assert error(template + ".") == message


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="no memory limit to set")
@pytest.mark.parametrize(
    "template",
    [
        "{{ ('x' * 10**10) | length }}",
        "{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = n.a + n.a %}"
        "{% endfor %}",
    ],
)
def test_memory_limit(template: str) -> None:
    assert "needs more than 512 MiB" in error(template)


# The parent's side alone: whatever the child does, it stays bounded and says so.


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run this code in place of the child."""

    def replace(code: str) -> None:
        path = tmp_path / "child.py"
        path.write_text(code, encoding="utf-8")
        monkeypatch.setattr(parent, "CHILD", path)

    return replace


def test_flood_does_not_fill_the_parent(child: Callable[[str], None]) -> None:
    child("import os\nwhile True: os.write(1, b'x' * 65536)\n")
    tracemalloc.start()
    try:
        assert "wrote more than" in error("")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_REPLY


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("", "ended with code 0"),
        ("import no_such_module", "code 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("print('[1]')", "code 0: [1]"),
        ("print('{\"text\": 1}')", "code 0"),
        ('print(\'{"error": "made up"}\')', "code 0"),
        ("import os; os.write(1, bytes([27, 255])); os._exit(7)", "code 7: \\x1b\ufffd"),
    ],
)
def test_child_without_a_reply(child: Callable[[str], None], code: str, detail: str) -> None:
    child(code)
    long = [{"role": "user", "content": "x" * 10**6}]  # more than a pipe holds, and nobody reads
    message = error("", long)
    assert message.startswith("the chat template renderer ended with code ") and detail in message


def test_time_limit_holds_where_the_child_never_reads(child: Callable[[str], None]) -> None:
    child("import time; time.sleep(60)")
    long = [{"role": "user", "content": "x" * 10**6}]
    assert "took more than 0.5 s" in error("", long, timeout_s=0.5)


def test_child_sees_no_secrets(
    child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    child("import json, os; print(json.dumps({'text': ' '.join(os.environ)}))")
    assert "HF_TOKEN" not in show("").split()


def test_child_imports_nothing_of_csb(child: Callable[[str], None]) -> None:
    child(
        f"import json, runpy, sys\nrunpy.run_path({str(parent.CHILD)!r}, run_name='__main__')\n"
        "print(json.dumps({'text': ' '.join(sys.modules)}))\n"
    )
    modules = {name.split(".")[0] for name in show("").split()}
    assert "jinja2" in modules
    assert not modules & {"csb", "numpy", "ctypes", "site"}


def test_current_directory_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in an interactive session
    assert show(CHATML).startswith("<|im_start|>user")


def test_missing_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "does not start: " in error(CHATML)
