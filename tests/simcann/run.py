#!/usr/bin/env python3
"""Run a command on simulated Ascend NPUs: python3 tests/simcann/run.py COMMAND…

Builds the libraries on first use and keeps them in a cache. See README.md for what they are and cannot tell.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "src"
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-Wall", "-Wno-unknown-pragmas"]
# Libraries that torch_npu links to and calls nothing of, or that stand in one of the three real ones.
EMPTY_LIBRARIES = ["acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel"]
# Folders of an installed CANN that torch_npu wants to see.
EMPTY_FOLDERS = ["runtime", "compiler"]


class Unusable(Exception):
    """This machine cannot build the libraries, and why."""


def environment(base=None):
    """The environment (os.environ unless given) for a process that is to see simulated NPUs."""
    env = dict(os.environ if base is None else base)
    folder = str(libraries())
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [folder, env.get("LD_LIBRARY_PATH")]))
    # Loading torch_npu while torch loads makes torch depend on CANN; scripts import torch_npu themselves.
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    # Where CANN is installed. Without them torch_npu prints a warning to stdout.
    env["ASCEND_HOME_PATH"] = env["ASCEND_OPP_PATH"] = folder
    env["PATH"] = ":".join(filter(None, [str(Path(sys.executable).parent), env.get("PATH")]))
    return env


def libraries():
    """The folder with the libraries, which are built if need be."""
    packages = {name: package_folder(name) for name in ("torch", "torch_npu")}
    compiler = find_compiler()
    key = build_key(compiler, packages)
    cache = cache_folder()
    folder = cache / key
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with lock(cache / f"{key}.lock"):
        if not folder.is_dir():
            for left_over in cache.glob(f"{key}.build-*"):  # by a build that was killed
                shutil.rmtree(left_over)
            unfinished = cache / f"{key}.build-{os.getpid()}"
            try:
                build(compiler, packages, unfinished)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def cache_folder():
    if chosen := os.environ.get("SIMCANN_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcann"


@contextlib.contextmanager
def lock(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def package_folder(name):
    spec = importlib.util.find_spec(name)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise Unusable(f"{sys.executable} has no {name}: install requirements.txt and torch_npu")
    return Path(spec.submodule_search_locations[0])


def find_compiler():
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise Unusable(f"no C++ compiler: {name} is not on PATH (Debian, Ubuntu: apt install g++)")
    return path


def build_key(compiler, packages):
    key = hashlib.sha256()
    for path in [*sorted(SOURCE.rglob("*.*")), Path(__file__)]:
        key.update(f"{path.name}\0".encode() + path.read_bytes())
    key.update(subprocess.run([compiler, "-v"], capture_output=True, check=True).stderr)
    for name in packages:
        key.update(importlib.metadata.version(name).encode() + b"\0")
    return key.hexdigest()[:16]


def build(compiler, packages, folder):
    Build(compiler, packages, folder).run()


class Build:
    def __init__(self, compiler, packages, folder):
        self.compiler = compiler
        self.torch, self.torch_npu = packages["torch"], packages["torch_npu"]
        self.folder = folder
        self.objects = folder / "build"
        self.started = self.reported = time.monotonic()
        include = self.torch_npu / "include"
        self.includes = [f"-I{self.objects}"]
        for folders, header in [
            ([include, include / "third_party/acl/inc"], "acl/acl.h"),
            ([include / "third_party/hccl/inc", include], "hccl/hccl_types.h"),
        ]:
            self.includes += ["-isystem", str(next(f for f in folders if (f / header).is_file()))]
        self.includes += ["-isystem", str(self.torch / "include")]

    def run(self):
        self.objects.mkdir(parents=True)
        self.generate_lists()
        parts = ("runtime", "collectives", "operators")
        sources = {part: sorted((SOURCE / part).glob("*.cpp")) for part in parts}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            header = pool.submit(self.precompile, SOURCE / "operators/precompiled.h")
            futures = [pool.submit(self.compile, source) for source in sources["runtime"] + sources["collectives"]]
            futures += [pool.submit(self.compile, source, header) for source in sources["operators"]]
            try:
                for done, future in enumerate(futures, 1):
                    future.result()
                    self.report(done, len(futures))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self.link("ascendcl", sources["runtime"], ["-lc10"])
        self.link("hccl", sources["collectives"], ["-lascendcl", "-lc10"])
        self.link("opapi", sources["operators"], ["-lascendcl", "-ltorch_cpu", "-lc10"])
        for name in EMPTY_LIBRARIES:
            self.link(name, [], ["-lascendcl"])
        for name in EMPTY_FOLDERS:
            (self.folder / name).mkdir()
        shutil.rmtree(self.objects)

    def report(self, done, total):
        """Progress on stderr: one line on a terminal, now and then one in a log."""
        now = time.monotonic()
        terminal, last = sys.stderr.isatty(), done == total
        if not (terminal or last or now > self.reported + 5):
            return
        self.reported = now
        line = f"simcann: building … {now - self.started:.0f} s ({done} of {total} files)"
        print(
            f"\r{line}" if terminal else line,
            end="" if terminal and not last else "\n",
            file=sys.stderr,
            flush=True,
        )

    def generate_lists(self):
        """The names that the installed torch_npu knows."""
        library = self.torch_npu / "lib/libtorch_npu.so"
        operators = set(re.findall(rb"\0(acl\w+)GetWorkspaceSize\0", library.read_bytes().replace(b"\0", b"\0\0")))
        lines = [f"OPERATOR({name.decode()})\n" for name in sorted(operators)]
        (self.objects / "operator_names.inc").write_text("".join(lines))

        linked = [library, self.torch_npu / "lib/libtensorpipe.so", *self.torch_npu.glob("_C*.so")]
        symbols = self.output(["nm", "-D", "--undefined-only", *map(str, linked)])
        functions = set(re.findall(r" U ((?:acl|rt|Msprof)[A-Za-z0-9]+)$", symbols, re.MULTILINE))
        lines = [f"MISSING_FUNCTION({name})\n" for name in sorted(functions)]
        (self.objects / "missing_functions.inc").write_text("".join(lines))

    def precompile(self, header):
        copy = self.objects / header.name
        self.output([self.compiler, *FLAGS, *self.includes, "-x", "c++-header", str(header), "-o", f"{copy}.gch"])

    def object_file(self, source):
        return self.objects / f"{source.parent.name}-{source.stem}.o"

    def compile(self, source, header=None):
        include = []
        if header:
            header.result()
            include = ["-include", str(self.objects / "precompiled.h")]
        command = [self.compiler, *FLAGS, *include, *self.includes, "-c", str(source)]
        self.output([*command, "-o", str(self.object_file(source))])

    def link(self, name, sources, needed):
        library = f"lib{name}.so"
        objects = [str(self.object_file(source)) for source in sources]
        search = [f"-L{self.folder}", f"-L{self.torch / 'lib'}"]
        needed = ["-Wl,--no-as-needed", *needed]  # torch_npu finds symbols of one library through another
        output = ["-o", str(self.folder / library)]
        self.output([self.compiler, "-shared", f"-Wl,-soname,{library}", *objects, *search, *needed, *output])

    def output(self, command):
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        if result.returncode:
            raise Unusable(f"{' '.join(command)}\n{result.stderr}")
        return result.stdout


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    try:
        env = environment()
    except Unusable as error:
        sys.exit(f"simcann: {error}")
    command = sys.argv[1:]
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        print(f"simcann: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
