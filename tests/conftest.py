"""What tests share: the header that says which csb is tested, tiny models, the default model."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import csb
import pytest
import tiny
from csb.cli import main
from csb.errors import CsbError
from csb.native.library import has_hooks, quantize
from csb.provenance import environment
from csb.record import load
from csb.render.info import render_info
from process import Result, Run, Saved, child

TinyModel = Callable[..., Path]


def pytest_report_header() -> list[str]:
    """So that a failing log names its own build and machine."""
    where = f"csb in {Path(csb.__file__).parent}"
    try:
        return [where, *render_info(environment()).splitlines()]
    except CsbError as error:  # tests that need no native library run without it
        return [where, f"native library: {error}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs only where -m names them; what needs hooks only where the build has them."""
    if not _hooked():
        for item in items:
            if item.get_closest_marker("hooks"):
                item.add_marker(pytest.mark.skip(reason="this build has no hooks"))
    if "acceptance" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("acceptance")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


def _hooked() -> bool:
    try:
        return has_hooks()
    except CsbError:
        return True  # a missing library is no reason to skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """tiny_model(arch="llama", dtype="f32", **options) -> path, written once for each set of
    arguments. Options are those of tiny.write; another dtype (q8_0, q4_k_m ...) is quantized."""
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[tuple[object, ...], Path] = {}

    def get(arch: str = "llama", dtype: str = "f32", **options: object) -> Path:
        key = (arch, dtype, *sorted(options.items()))
        if key not in made:
            path = folder / f"{len(made)}-{arch}-{dtype}.gguf"
            if dtype in tiny.DTYPES:
                tiny.write(path, arch, dtype=dtype, **options)  # type: ignore[arg-type]
            else:
                quantize(get(arch, **options), path, dtype)
            made[key] = path
        return made[key]

    return get


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default BF16 model's file in the store, fetched if need be: for tests marked `model`."""
    from csb.cli import default_model as command_line

    return command_line.default_model()[0]


@pytest.fixture(scope="session")
def without_hooks() -> Path:
    """The library that the build links from the same archives without the hooks."""
    path = Path(__file__).parents[1] / "build/default/csrc/libcsb_without_hooks.so"
    assert path.exists(), "no build folder here: pip install . in this checkout first"
    return path


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Ctrl-C interrupts, also behind a shell's `&` and where csb ended by one before."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.getsignal(n) for n in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """run(*arguments) -> Result: csb in this process, with what native code prints."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(a) for a in arguments])
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def text_model(tiny_model: TinyModel) -> Path:
    """A small model that takes text."""
    return tiny_model(n_layer=2, tokenizer="bpe")


@pytest.fixture(scope="session")
def flip(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A run with flips: which prompt gives one depends on the processor's kernels."""
    path = tmp_path_factory.mktemp("flip") / "r.json"
    given = ("-m", str(tiny_model(dtype="bf16", n_layer=2)), "-n", "100", "-W", "3", "-t", "1")
    given += ("-fa", "off", "-ctk", "q4_0", "--prefix", "shared")
    for i in range(1, 40):
        arguments = (*given, "--tokens", f"{i},7,33")
        done = child(*arguments, "--json", path)
        assert done.returncode in (0, 1), done.stderr
        if done.returncode == 1:
            return Saved(arguments, load(path))
    pytest.fail("no prompt of 40 gave a flip")
