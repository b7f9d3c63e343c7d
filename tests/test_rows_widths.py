"""rows.cpp gives one result for every vector width that it may run with."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from csb.native.library import _processor_features
from csb.native.table import SIGNATURES, Pair, Row

CSRC = Path(__file__).parents[1] / "csrc"
STUBS = """
#include "guard.hpp"
void csb::set_message(const std::string &) {}
void csb::start_once() {}
"""
WIDTHS = {"avx512f": ["-mavx512f"], "avx2": ["-mavx2"], "sse2": []}

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("g++"), reason="needs g++ on x86-64"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("widths")
    (folder / "stubs.cpp").write_text(STUBS)
    here = _processor_features() or set()
    made = {}
    for name, flags in WIDTHS.items():
        if flags and name not in here:
            continue
        target = folder / f"{name}.so"
        # as csrc/CMakeLists.txt compiles it; the macro leaves the choice at load time out
        command = ["g++", "-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", *flags]
        command += ["-D__SANITIZE_ADDRESS__", f"-I{CSRC}", CSRC / "rows.cpp"]
        subprocess.run([*command, folder / "stubs.cpp", "-o", target], check=True)
        lib = ctypes.CDLL(str(target))
        for function in ("csb_rows_summarise", "csb_rows_compare"):
            getattr(lib, function).argtypes = SIGNATURES[function][1]
        made[name] = lib
    if len(made) < 2:
        pytest.skip("this processor has one vector width")
    return made


@pytest.mark.parametrize("n_vocab", [1, 7, 16, 31, 4097])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_all_widths_give_the_same_bits(libraries, n_vocab, temperature):
    generator = np.random.default_rng(n_vocab)
    a, b = (generator.standard_normal((20, n_vocab)).astype(np.float32) * 5 for _ in range(2))
    b[10:] = a[10:] + b[10:] / 1000
    targets = generator.integers(n_vocab, size=20, dtype=np.int32)
    tables = []
    for lib in libraries.values():
        rows = np.empty((20, Row.N_FIELDS))
        pairs = np.empty((20, Pair.N_FIELDS))
        assert lib.csb_rows_summarise(20, n_vocab, a, targets, temperature, rows) == 0
        assert lib.csb_rows_compare(20, n_vocab, a, b, temperature, pairs) == 0
        tables.append(np.hstack([rows, pairs]).view(np.uint64))
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
