"""What every test shares: the header that says which csb is tested, tiny models, the default one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

import csb
from csb.errors import CsbError
from csb.native.library import build_info, quantize, system_info

TinyModel = Callable[..., Path]


def pytest_report_header() -> list[str]:
    """So that a failing log names its own machine and build."""
    lines = [f"csb {csb.__version__} in {Path(csb.__file__).parent}"]
    try:
        build = build_info()
        on = sorted(name for name, value in build["options"].items() if value == "ON")
        lines += [
            f"llama.cpp {build['llama_commit']}, {build['compiler']}, {build['build_type']}",
            f"built for {' '.join(build['cpu_features'])}",
            f"GGML options on: {' '.join(on)}",
        ]
        lines += [f"device {d['name']}: {d['description']}" for d in system_info()["devices"]]
    except CsbError as error:  # tests that need no native library run without it
        lines.append(f"native library: {error}")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs only where -m names them."""
    if "acceptance" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("acceptance")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


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
