"""csrc/csb.h, its table in Python, the library's symbols and the names used are one contract."""

import ast
import ctypes
import importlib.resources
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from csb.native import library, table

ROOT = Path(__file__).parents[1]
HEADER = (ROOT / "csrc" / "csb.h").read_text()
CODE = re.sub(r"//.*", "", HEADER)

SCALARS = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "double": ctypes.c_double}
ARRAYS = {"int64_t": np.int64, "int32_t": np.int32, "int8_t": np.int8, "uint8_t": np.uint8}
ARRAYS |= {"float": np.float32, "double": np.float64}


def functions():
    """{name: (result, [(type, name)])}, types without spaces."""
    found = {}
    for result, name, raw in re.findall(r"CSB_API\s+([^;()]*?)\s*(csb_\w+)\(([^)]*)\);", CODE):
        parameters = [] if raw.strip() in ("", "void") else raw.split(",")
        split = [re.fullmatch(r"(.*?)(\w+)", " ".join(p.split())) for p in parameters]
        found[name] = (
            result.replace(" ", ""),
            [(m[1].replace(" ", ""), m[2]) for m in split],
        )
    return found


def enum_values(name):
    """{constant: value}; one without a value is its predecessor's plus one."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", CODE, re.DOTALL)[1]
    values, following = {}, 0
    for entry in filter(None, (e.strip() for e in body.split(","))):
        constant, _, value = (part.strip() for part in entry.partition("="))
        values[constant] = int(value, 0) if value else following
        following = values[constant] + 1
    return values


def fits(c_type, name, argument):
    """Whether the table's argument can carry what the header declares."""
    if c_type in SCALARS:
        return argument is SCALARS[c_type]
    if c_type == "constchar*":
        return argument is ctypes.c_char_p
    arrays = ("constchar*const*", "constvoid*const*")
    if c_type == "csb_watcher":
        return argument is table.WATCHER
    if c_type in ("csb_model*", "csb_context*", "csb_node*", "void*", *arrays) or c_type.endswith(
        "**"
    ):
        return argument is ctypes.c_void_p
    pointed = re.fullmatch(r"(const)?(\w+)\*", c_type)
    if argument is ctypes.c_void_p:  # one value by reference, or a buffer that may be missing
        return not pointed[1] and name.startswith("out_")
    return argument._dtype_ == ARRAYS[pointed[2]] and argument._flags_ & 1  # C_CONTIGUOUS


def test_the_parser_sees_every_declaration():
    assert len(functions()) == CODE.count("CSB_API ") - CODE.count("define CSB_API") > 30


def test_every_function_is_in_the_table_and_no_other():
    assert list(table.SIGNATURES) == list(functions())


@pytest.mark.parametrize("name", functions())
def test_signature(name):
    result, parameters = functions()[name]
    expected = {"void": None, "int32_t": ctypes.c_int32, "constchar*": ctypes.c_char_p}[result]
    assert table.SIGNATURES[name][0] is expected
    arguments = table.SIGNATURES[name][1]
    assert len(arguments) == len(parameters)
    wrong = [p for p, a in zip(parameters, arguments, strict=True) if not fits(*p, a)]
    assert not wrong


@pytest.mark.parametrize(
    ("name", "prefix", "mirror"),
    [
        ("csb_status", "CSB_", table.Status),
        ("csb_row_field", "CSB_ROW_", table.Row),
        ("csb_pair_field", "CSB_PAIR_", table.Pair),
        ("csb_kernel_switch", "CSB_", table.KernelSwitch),
    ],
)
def test_enum(name, prefix, mirror):
    mirrored = {prefix + constant: m.value for constant, m in mirror.__members__.items()}
    assert mirrored == enum_values(name)


def test_every_enum_of_the_header_is_compared():
    assert set(re.findall(r"enum (\w+) \{", CODE)) == {
        "csb_status",
        "csb_row_field",
        "csb_pair_field",
        "csb_kernel_switch",
    }


def test_abi_version():
    assert int(re.search(r"#define CSB_ABI_VERSION (\d+)", CODE)[1]) == table.ABI_VERSION


@pytest.mark.native
def test_the_installed_library_has_the_header_s_abi():
    assert library.library().csb_abi_version() == table.ABI_VERSION


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="nm -D reads ELF")
def test_the_library_exports_the_header_and_nothing_else():
    with importlib.resources.as_file(
        importlib.resources.files("csb") / library._library_name()
    ) as path:
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
        ).stdout
    exported = [line.split()[-1] for line in listed.splitlines()]
    assert sorted(exported) == sorted(functions())


def named(path):
    """csb_* names that a source file uses: attributes, and strings that are nothing but a name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("csb_"):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\Acsb_\w+\Z", node.value)
            yield from re.findall(r"\.(csb_\w+)\(", node.value)  # children's scripts


def test_every_name_used_is_in_the_table_and_every_entry_is_used():
    sources = [p for p in (ROOT / "python").rglob("*.py") if p.name != "table.py"]
    tests = [p for p in (ROOT / "tests").glob("*.py") if p != Path(__file__)]
    used = {name for path in sources for name in named(path)}
    tested = {name for path in tests for name in named(path)}
    assert used <= set(table.SIGNATURES)
    assert tested <= set(table.SIGNATURES)
    assert set(table.SIGNATURES) - used - tested == set()


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("standard", ["c99", "c17"])
def test_the_header_is_plain_c(standard, tmp_path):
    source = tmp_path / "use.c"
    source.write_text('#include "csb.h"\nint main(void) { return csb_abi_version() ? CSB_OK : 1; }')
    command = ["cc", f"-std={standard}", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-c"]
    subprocess.run([*command, f"-I{ROOT / 'csrc'}", source, "-o", tmp_path / "use.o"], check=True)
