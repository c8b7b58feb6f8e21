"""The program that is checked: one that was built elsewhere (scripts/gpu-bundle --prebuilt), or one that is built here.

What was built elsewhere brings all its libraries but the C library and cuBLASLt, which is too large: that of the toolkit
is taken, or that of a Python package.
"""

import os
import pathlib
import re
import shutil
import subprocess

from . import machine
from .session import LONG, Failure, Skip, last_words, unpack_once
from .training import Job, train

PRESET = "cuda"
TARGETS = ("spillway", "spillway_cuda", "tests_cuda_gpu")  # what needs a GPU, and nothing else
COMPILER_BYTES = 1_500_000_000  # of memory, one compiler

# A header of each library, the library itself where it is more than headers, and the Debian package that has both.
LIBRARIES = (("boost/graph/compressed_sparse_row_graph.hpp", None, "libboost-dev"), ("catch2/catch.hpp", None, "catch2"),
             ("CLI/CLI.hpp", None, "libcli11-dev"), ("fmt/format.h", "libfmt", "libfmt-dev"), ("glpk.h", "libglpk", "libglpk-dev"),
             ("cblas.h", "libopenblas", "libopenblas-pthread-dev"), ("toml++/toml.h", None, "libtomlplusplus-dev"),
             ("liburing.h", "liburing", "liburing-dev"), ("numa.h", "libnuma", "libnuma-dev"), ("xxhash.h", "libxxhash", "libxxhash-dev"),
             ("nlohmann/json.hpp", None, "nlohmann-json3-dev"), ("nlopt.h", "libnlopt", "libnlopt-dev"), ("zlib.h", "libz", "zlib1g-dev"),
             ("sqlite3.h", "libsqlite3", "libsqlite3-dev"))
HEADERS_IN_BUNDLE = ("libfmt",)  # of which a bundle has the headers only


class Programs:
    """Where the program and its tests are, or may come to be."""

    def __init__(self, root, out, program=None, prebuilt=None, bundle=None):
        self.root, self.out, self.bundle = root, out, bundle
        self.given, self.prebuilt = program, prebuilt
        if not prebuilt and (root / "MANIFEST").exists():
            self.prebuilt = root  # gpu-check of an unpacked prebuilt bundle

    def built(self):
        return self.root / "build" / PRESET / "spillway"

    def first(self, dry=False):
        """The one to try: what was named, else what was built elsewhere, else what was built here."""
        if self.given:
            return self.given
        if self.prebuilt:
            return self.folder(dry) / "spillway"
        return self.built()

    def folder(self, dry=False):
        """That of the prebuilt program; a .tgz is unpacked into OUT."""
        if self.prebuilt.is_dir():
            return self.prebuilt
        if dry:
            return self.out / "prebuilt" / "gpu-prebuilt"
        found = unpack_once(self.prebuilt, self.out / "prebuilt")
        if not found:
            raise Failure(f"{self.prebuilt} is no archive of scripts/gpu-bundle --prebuilt: it holds no MANIFEST")
        return found


def tests_of(session):
    """The test program, beside the program or where builds put it."""
    beside = session.program.parent / "tests_cuda_gpu"
    return beside if beside.exists() else session.program.parent / "tests" / "tests_cuda_gpu"


def find_libraries(session):
    """Sets where commands find cuBLASLt and the driver, and notes it in the facts."""
    module = session.program.parent / "libspillway_cuda.so"
    named = os.environ.get("SPILLWAY_CUDA_MODULE")
    if named:
        session.facts["libraries"] = {"module": named}
        return
    wanted = needed_cublaslt(module)
    cublaslt, driver = machine.find_library(wanted), machine.find_library("libcuda.so.1")
    session.facts["libraries"] = {"module": str(module) if module.exists() else None, "needs": wanted, "cublaslt": cublaslt,
                                  "cublaslt_version": machine.cublaslt_version(cublaslt), "driver_library": driver}
    folders = [str(pathlib.Path(path).parent) for path in (cublaslt, driver) if path]
    before = os.environ.get("LD_LIBRARY_PATH")
    session.environment = {"LD_LIBRARY_PATH": ":".join(dict.fromkeys([*folders, *([before] if before else [])]))}


def needed_cublaslt(module):
    """The name under which the module asks for it."""
    try:
        found = re.search(rb"libcublasLt\.so\.\d+", module.read_bytes())
    except OSError:
        found = None
    return found.group().decode() if found else "libcublasLt.so.13"


def try_out(session, model, steps):
    """Whether the program starts and trains a small model on the GPU. Failure with the reason where it does not."""
    find_libraries(session)
    if not session.dry and not session.program.exists():
        raise Failure(f"there is no {session.program}")
    version = session.run(session.spillway("--version"), 30, note=False)
    if version.code != 0:
        raise Failure("it does not start: " + why_not(session.program, version))
    finished = train(session, Job(model, "resident", 4, 2, 64), session.out / "runs" / "start", steps, LONG)
    if session.dry:
        return ""
    if finished.code != 0:
        raise Failure(f"{model} does not train on CUDA: {last_words(finished)}{missing_cublaslt(session)}")
    return f"{origin(session.program)}: {model} trains on the GPU, {steps} steps"


def origin(program):
    """Where it is from, in words: of a bundle, the commit."""
    try:
        said = dict(line.split(" ", 1) for line in (program.parent / "MANIFEST").read_text().splitlines())
    except (OSError, ValueError):
        return "built here" if program.parent.name == PRESET else "the program named"
    return f"built elsewhere of commit {said.get('commit', 'unknown')}"


def missing_cublaslt(session):
    libraries = session.facts.get("libraries", {})
    if "needs" not in libraries or libraries["cublaslt"]:
        return ""
    return (f"; {libraries['needs']} was not found in the toolkit, among the system's libraries, or in the packages of python3: "
            "name its folder in LD_LIBRARY_PATH")


def why_not(program, finished):
    """The loader's words, and all that it misses, not the first alone."""
    said = last_words(finished)
    try:
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return said
    missing = re.findall(r"^\s*(\S+) => not found|(\S+: version `\S+' not found)", listed.stdout + listed.stderr, re.MULTILINE)
    names = list(dict.fromkeys(one or other for one, other in missing))
    return said + (f" (missing: {', '.join(names)})" if names else "")


# --- built here ---


def jobs(cores, limit):
    """Compilers at a time: as many as processors, fewer only where a limit on memory says so. What is free at the moment
    is not asked: it may grow when it is used."""
    return max(1, min(cores, int(limit // COMPILER_BYTES))) if limit else cores


def roots(bundle):
    return [pathlib.Path(bundle)] if bundle else [pathlib.Path("/usr"), pathlib.Path("/usr/local")]


def missing_here(bundle):
    """What a build needs and does not find: headers and libraries, each with its package."""
    missing = []
    for header, library, package in LIBRARIES:
        if not has_header(bundle, header):
            missing.append(f"{header} ({package})")
        if library and not (bundle and library in HEADERS_IN_BUNDLE) and not has_library(bundle, library):
            missing.append(f"{library}.so or {library}.a ({package})")
    return missing


def has_header(bundle, header):
    folders = [root / "include" for root in roots(bundle)]
    folders += [found for folder in folders for found in folder.glob("*-linux-gnu")]
    return any((found / header).exists() for folder in folders for found in (folder, folder / "openblas-pthread"))


def has_library(bundle, library):
    """One to link with: installed, that is libglpk.so or libglpk.a; in a bundle libglpk.so.40, too."""
    folders = [root / name for root in roots(bundle) for name in ("lib", "lib64")]
    folders += [found for folder in folders for found in folder.glob("*-linux-gnu")]
    folders += [folder / "openblas-pthread" for folder in folders]
    patterns = [f"{library}.a", f"{library}.so"] + ([f"{library}.so.*"] if bundle else [])
    return any(any(folder.glob(pattern)) for folder in folders for pattern in patterns)


def unpack_bundle(session, bundle):
    """A folder as it is; a .tgz unpacked into OUT/bundle."""
    if not bundle or not bundle.is_file() or session.dry:
        return bundle
    found = unpack_once(bundle, session.out / "bundle")
    if not found:
        raise Failure(f"{bundle} is no archive of scripts/gpu-bundle: it holds no MANIFEST")
    return found


def build(session, programs, gpu):
    """Only for the GPU at hand, so that it fits into minutes."""
    script = programs.root / "scripts" / "build"
    if not session.dry and not script.exists():
        raise Skip("there are no sources here to build: bring the repository, and run its scripts/gpu-check")
    bundle = unpack_bundle(session, programs.bundle)
    settings = {"CMAKE_ARGUMENTS": f"-DCMAKE_CUDA_ARCHITECTURES={machine.architecture(gpu)}",
                "JOBS": str(jobs(machine.cores(), machine.cgroup_memory()))}
    if bundle:
        settings["SPILLWAY_BUNDLE"] = str(bundle)
    nvcc = machine.find_tool("nvcc")
    if nvcc and not shutil.which("nvcc") and "CUDACXX" not in os.environ:
        settings["CUDACXX"] = nvcc  # CMake looks on PATH alone
    without_tests = not has_header(bundle, "catch2/catch.hpp")  # scripts/build leaves them out then
    # As a person would type it.
    words = ["env", *(f"{name}={value}" for name, value in settings.items())]
    finished = session.run([*words, script, PRESET, *TARGETS[:2 if without_tests else 3]], LONG)
    if finished.code != 0:
        raise Failure(f"exit code {finished.code}: {last_words(finished)}{advice(bundle, nvcc)}")
    session.program = programs.built()


def advice(bundle, nvcc):
    """What is missing here, and how to do without."""
    said = "" if nvcc else ("; there is no nvcc: name one as CUDACXX, or bring a program built elsewhere "
                            "(scripts/gpu-bundle --prebuilt)")
    missing = missing_here(bundle)
    if missing:
        said += (f"; missing here: {', '.join(missing)}: make a folder of them where there is a network "
                 "(scripts/gpu-bundle FILE.tgz) and give it as --bundle FILE.tgz; the program alone: "
                 "CMAKE_ARGUMENTS=-DSPILLWAY_TESTS=OFF scripts/build cuda spillway spillway_cuda")
    return said
