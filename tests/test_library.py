"""Finding and loading libcsb: what keeps it from loading is one clear line."""

import ctypes
import json
import shutil
import subprocess
import sys
import textwrap

import pytest
from csb.errors import LibraryError
from csb.native import library as native
from csb.native.table import ABI_VERSION


@pytest.fixture
def fresh(monkeypatch):
    """library() and build_info() as in a new process."""
    for function in (native.library, native.build_info):
        function.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for function in (native.library, native.build_info):
        function.cache_clear()


@pytest.fixture
def package(fresh, tmp_path):
    """A stand-in for the installed package's folder, with a build for no processor feature."""
    (tmp_path / "_build.json").write_text(json.dumps({"cpu_features": [], "cuda_libraries": []}))
    fresh.setattr(native, "_package_file", lambda name: tmp_path / name)
    return tmp_path


def compile_library(folder, source):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    (folder / "lib.c").write_text(source)
    target = folder / native._library_name()
    subprocess.run(["cc", "-shared", "-fPIC", folder / "lib.c", "-o", target], check=True)


def said(call):
    with pytest.raises(LibraryError) as caught:
        call()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert "pip install --force-reinstall ." in text  # what to do about it
    return text


def cpuinfo(tmp_path, text):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return path


def test_missing_processor_features(fresh, tmp_path):
    fresh.setattr(native, "build_info", lambda: {"cpu_features": ["sse4_2", "avx512f", "amx_int8"]})
    path = cpuinfo(tmp_path, "processor : 0\nflags\t\t: fpu sse4_2 avx2\n")
    here = native._processor_features(path)
    fresh.setattr(native, "_processor_features", lambda: here)
    fresh.setattr(ctypes, "CDLL", lambda path: pytest.fail("its code must not run"))
    text = said(native.library)
    assert text.startswith("csb was built for a processor with avx512f, amx_int8, which this one")
    assert "GGML_NATIVE=OFF" in text


def test_processor_features(tmp_path):
    x86 = "processor : 0\nflags\t\t: fpu sse4_2 avx2\nbugs : x\nflags\t\t: other\n"
    assert native._processor_features(cpuinfo(tmp_path, x86)) == {"fpu", "sse4_2", "avx2"}
    arm = "processor : 0\nFeatures\t: fp asimddp sve\n"
    assert native._processor_features(cpuinfo(tmp_path, arm)) == {"fp", "asimddp", "sve"}
    assert native._processor_features(cpuinfo(tmp_path, "processor : 0\n")) is None
    assert native._processor_features(tmp_path / "missing") is None


def test_unknown_processor_features_are_no_reason_to_refuse(fresh):
    fresh.setattr(native, "build_info", lambda: {"cpu_features": ["avx512f"]})
    fresh.setattr(native, "_processor_features", lambda: None)
    native.check_processor()


@pytest.mark.native
def test_this_processor_has_what_this_build_needs(fresh):
    assert native.build_info()["cpu_features"]
    native.check_processor()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_no_build_description(package, damage):
    description = package / "_build.json"
    if damage == "missing":
        description.unlink()
    else:
        description.write_text(description.read_text()[:5])
    assert said(native.library).startswith("csb's native library is not installed: ")


def test_a_missing_library(package):
    text = said(native.library)
    assert text.startswith(f"cannot load {package / native._library_name()}: ")
    assert "No such file" in text or "not found" in text


def test_a_library_that_is_none(package):
    (package / native._library_name()).write_text("text")
    assert said(native.library).startswith(f"cannot load {package / native._library_name()}: ")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's text")
@pytest.mark.parametrize("name", ["libopenblas-none.so.0", "libother.so.3"])
def test_a_library_that_needs_another(package, name):
    compile_library(package, "int something(void) { return 1; }")
    path, other = package / native._library_name(), package / name
    link = ["cc", "-shared", "-fPIC", package / "lib.c"]
    subprocess.run([*link, f"-Wl,-soname,{name}", "-o", other], check=True)
    subprocess.run([*link, "-Wl,--no-as-needed", other, "-o", path], check=True)
    other.unlink()
    text = said(native.library)
    assert f"it was built with {name}, which is not installed" in text
    assert ("libopenblas0" in text) == ("openblas" in name)


def test_another_abi(package):
    compile_library(package, f"int csb_abi_version(void) {{ return {ABI_VERSION + 7}; }}")
    path = package / native._library_name()
    expected = f"{path} has ABI {ABI_VERSION + 7}, this csb needs {ABI_VERSION}; "
    assert said(native.library).startswith(expected)


def test_a_library_of_somebody_else(package):
    compile_library(package, "int something(void) { return 1; }")
    path = package / native._library_name()
    assert said(native.library).startswith(f"{path} has ABI 0, this csb needs {ABI_VERSION}; ")


@pytest.mark.native
def test_importing_csb_loads_nothing():
    script = """
    import sys
    import csb, csb.errors
    assert "csb.native.library" not in sys.modules and "numpy" not in sys.modules
    assert {"Model", "Context"} <= set(dir(csb))
    csb.Model
    from csb.native.library import library
    assert library.cache_info().currsize == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
