"""The project's shape: what lies at its top, and where main.py may name a kind of device."""

import ast
import re
import shutil
import subprocess

import pytest


def test_top_level(root):
    git = shutil.which("git")
    files = git and subprocess.run([git, "ls-files"], cwd=root, capture_output=True, text=True, timeout=60)
    if not files or files.returncode:
        pytest.skip("no checkout")
    names = {line.split("/")[0] for line in files.stdout.splitlines()}
    shown = {name for name in names if not name.startswith(".")}
    assert shown == {"LICENSE", "README.md", "main.py", "requirements.txt", "run_8p.sh", "tests"}


def sections(source):
    """Return {title: range of its lines} of a file whose sections begin with a line such as "# ---- devices"."""
    lines = source.splitlines()
    starts = [(i, match[1]) for i, line in enumerate(lines, 1) if (match := re.fullmatch(r"# -{20,} (.+)", line))]
    ends = [i for i, _ in starts[1:]] + [len(lines) + 1]
    return {title: range(start, end) for (start, title), end in zip(starts, ends, strict=True)}


KINDS = {"npu", "gpu", "cuda", "cpu", "hccl", "nccl", "torch_npu"}


def test_devices_are_named_in_one_place(root):
    """Outside the devices section and parse_args no line asks which device it is on: no string, attribute or module of
    a kind's name. The exception is map_location="cpu", the host's memory, which is the same everywhere."""
    source = (root / "main.py").read_text()
    tree = ast.parse(source)
    allowed = set(sections(source)["devices"])
    host = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "parse_args":
            allowed |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.keyword) and node.arg == "map_location":
            host.add(node.value)
    asked = []
    for node in ast.walk(tree):
        names = {
            ast.Constant: lambda node: [node.value],
            ast.Attribute: lambda node: [node.attr] if isinstance(node.ctx, ast.Load) else [],
            ast.Import: lambda node: [alias.name for alias in node.names],
            ast.ImportFrom: lambda node: [node.module],
        }.get(type(node), lambda node: [])(node)
        called = isinstance(node, ast.Attribute) and node.attr == "cpu"  # tensor.cpu(): to the host's memory
        if KINDS & set(map(str, names)) and node.lineno not in allowed and node not in host and not called:
            asked.append(f"{node.lineno}: {ast.get_source_segment(source, node)}")
    assert asked == []
