"""The simulated CANN itself: how it is built and run, what it refuses, its ways to fail, its collectives."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import run as simcann


def run(*command, runner=HERE / "run.py", **variables):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([sys.executable, runner, *command], capture_output=True, text=True, timeout=300, env=env)


def script(name, *arguments, **variables):
    return run("python3", HERE / "scripts" / f"{name}.py", *arguments, **variables)


def answers(result):
    """The lines "NAME: ANSWER" of a script."""
    return dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)


@pytest.fixture(scope="module", autouse=True)
def built():
    return simcann.libraries()


# Building and running


@pytest.mark.parametrize("status", [0, 7])
def test_exit_status_is_the_commands(status):
    assert run("sh", "-c", f"exit {status}").returncode == status


def test_command_that_does_not_exist():
    result = run("no-such-command")
    assert result.returncode == 127
    assert result.stderr == "simcann: no-such-command: No such file or directory\n"


def test_python3_is_this_interpreter():
    result = run("python3", "-c", "import sys; print(sys.prefix)")
    assert result.stdout.strip() == sys.prefix


def test_environment(built):
    env = simcann.environment({"LD_LIBRARY_PATH": "/elsewhere", "PATH": "/bin", "OTHER": "kept"})
    assert env["LD_LIBRARY_PATH"] == f"{built}:/elsewhere"
    assert env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert env["OTHER"] == "kept"


def test_spaces_in_paths(built, tmp_path):
    copy = tmp_path / "a folder"
    shutil.copytree(HERE / "src", copy / "src")
    shutil.copy(HERE / "run.py", copy)
    cache = tmp_path / "a cache"
    shutil.copytree(built, cache / built.name)
    code = "import torch_npu; print(torch_npu.npu.device_count())"
    result = run("python3", "-c", code, runner=copy / "run.py", SIMCANN_CACHE=str(cache))
    assert result.stdout.split() == ["8"], result.stderr
    assert "building" not in result.stderr


def test_compiling_in_a_folder_with_spaces(tmp_path):
    packages = {name: simcann.package_folder(name) for name in ("torch", "torch_npu")}
    build = simcann.Build(simcann.find_compiler(), packages, tmp_path / "a folder")
    build.objects.mkdir(parents=True)
    source = tmp_path / "a source.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    build.compile(source)
    build.link("answer", [source], [])
    assert (tmp_path / "a folder" / "libanswer.so").is_file()


def test_first_runs_at_the_same_time_build_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCANN_CACHE", str(tmp_path))
    builds = []
    both_wait = threading.Barrier(2)

    def build(compiler, packages, folder):
        builds.append(folder)
        folder.mkdir()
        (folder / "library").touch()

    def first_run(_):
        both_wait.wait()
        return simcann.libraries()

    monkeypatch.setattr(simcann, "build", build)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(first_run, range(2)))
    assert len(builds) == len(folders) == 1
    assert (folders.pop() / "library").is_file()
    assert not list(tmp_path.glob("*build*"))


def test_failed_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCANN_CACHE", str(tmp_path))

    def build(compiler, packages, folder):
        folder.mkdir()
        raise simcann.Unusable("no")

    monkeypatch.setattr(simcann, "build", build)
    with pytest.raises(simcann.Unusable):
        simcann.libraries()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_no_compiler(tmp_path):
    env = {"PATH": str(tmp_path), "SIMCANN_CACHE": str(tmp_path)}
    result = run("true", CXX="", **env)
    assert result.returncode == 1
    assert result.stderr.startswith("simcann: no C++ compiler: g++ is not on PATH")
    assert result.stderr.count("\n") == 1


def test_no_torch_npu():
    command = [sys.executable, "-S", HERE / "run.py", "true"]  # -S: without installed packages
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("simcann: ") and "has no torch" in result.stderr
    assert result.stderr.count("\n") == 1


# Devices and settings


def device_count(devices):
    return run("python3", "-c", "import torch, torch_npu; print(torch.npu.device_count())", SIMCANN_DEVICES=devices)


def test_device_counts():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = dict(zip(("0", "1", "16", "17"), pool.map(device_count, ("0", "1", "16", "17")), strict=True))
    for devices in ("0", "1", "16"):
        assert results[devices].stdout.strip() == devices, results[devices].stderr
    assert results["17"].stdout.strip() != "17"


# The chip decides whether numbers overflow to infinity, on which torch_npu's loss scaling depends.
def test_chip_with_infinities():
    code = """
import torch, torch_npu
x = torch.full((2,), 3e38, device="npu") * 10.0
print(torch_npu.npu.utils.is_support_inf_nan(), x.tolist())
"""
    result = run("python3", "-c", code, SIMCANN_CHIP="Ascend910B2")
    assert result.stdout == "True [inf, inf]\n", result.stderr


def test_chip_that_saturates():
    code = """
import torch, torch_npu
from torch_npu.npu import utils
torch.npu.config.allow_internal_format = False
flags = [utils.get_npu_overflow_flag()]
x = torch.full((2,), 3e38, device="npu") * 10.0
flags.append(utils.get_npu_overflow_flag())
utils.clear_npu_overflow_flag()
flags.append(utils.get_npu_overflow_flag())
print(utils.is_support_inf_nan(), x.isfinite().all().item(), *flags)
"""
    result = run("python3", "-c", code, SIMCANN_CHIP="Ascend910A")
    assert result.stdout == "False True False True False\n", result.stderr


# Errors


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counters")
    result = script("errors", SIMCANN_DEVICES="2", SIMCANN_MEMORY_MB="100", SIMCANN_COUNTERS=str(folder))
    assert result.returncode == 5, result.stderr
    return {**answers(result), "files": list(folder.iterdir())}


def test_unknown_operator_is_an_error_with_its_name(errors):
    assert errors["unknown"].startswith("RuntimeError")
    assert "aclnnLinalgQr is not among the operators of the simulated CANN" in errors["unknown"]


def test_out_of_memory(errors):
    assert errors["memory"].startswith("OutOfMemoryError NPU out of memory. Tried to allocate 1.00 GiB")
    assert errors["alive"] == "no error, 136.0"


def test_device_that_does_not_exist(errors):
    assert "device 2 does not exist, the machine has 2 (SIMCANN_DEVICES)" in errors["device"]


def test_counters_within_the_process(errors):
    assert errors["muls"] == "no error, 5"
    assert errors["copies"] == "no error, 5"
    assert errors["waits"] == "no error, 5"


def test_counters_in_a_file(errors):
    """The script ends through os._exit."""
    (file,) = errors["files"]
    counters = json.loads(file.read_text())
    assert set(counters) == {"host_waits", "copies", "operators", "collectives"}
    assert counters["operators"]["aclnnMuls"] >= 5
    assert counters["collectives"] == {}


def test_failure_on_the_device(errors):
    assert errors["index"].startswith("RuntimeError")


def test_wrong_argument_lists():
    result = answers(script("arguments"))
    refusal = "561103 simcann: aclnnRelu: "
    assert result["scalar"] == refusal + "argument 2 should be an aclTensor, torch_npu passes aclScalar"
    assert result["null"] == refusal + "argument 1 should be an aclTensor, torch_npu passes a null pointer"
    assert result["number"].startswith(refusal + "argument 1 should be an aclTensor")
    assert result["destroyed"].startswith(refusal + "argument 1 should be an aclTensor")
    assert result["too few"].startswith(refusal + "argument 2 should be an aclTensor")
    assert result["too many"] == refusal + "torch_npu does not pass 2 arguments"
    assert "not a live aclOpExecutor" in result["executor"]


def test_operator_that_fails():
    code = """
import torch, torch_npu
x = torch.ones(2, device="npu")
print((x * 2.0).tolist())
print((x * 2.0).tolist())
"""
    result = run("python3", "-c", code, SIMCANN_FAIL_OPERATOR="aclnnMuls:2")
    assert result.returncode == 1
    assert result.stdout == "[2.0, 2.0]\n"
    assert "aclnnMuls: call 2 fails because of SIMCANN_FAIL_OPERATOR" in result.stderr


# Collectives


def shared_memory():
    return set(Path("/dev/shm").iterdir())


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "store"
    result = script("collectives", store, SIMCANN_COLLECTIVE_TIMEOUT="60")
    return result, {line[3:] for line in result.stdout.splitlines() if line.startswith("ok ")}


def test_collectives_equal_gloos(collectives):
    result, done = collectives
    assert result.returncode == 0, result.stderr
    assert "all_to_all_uneven" in done and "all_reduce SUM torch.bfloat16" in done


def test_groups_do_not_hold_up_each_other(collectives):
    assert "interleaved groups" in collectives[1], collectives[0].stderr


def test_rank_that_dies(tmp_path):
    before = shared_memory()
    result = script("failing_rank", tmp_path / "store", SIMCANN_DIE_IN_COLLECTIVE="1:3")
    assert "exit statuses [3, -9]" in result.stdout, result.stderr
    assert "rank 1 has ended" in result.stdout
    assert "HcclAllReduce: rank 0 waits in vain, rank 1 (process" in result.stderr
    assert "has died" in result.stderr
    assert shared_memory() <= before


def test_rank_that_hangs(tmp_path):
    before = shared_memory()
    variables = {"SIMCANN_HANG_IN_COLLECTIVE": "1:3", "SIMCANN_COLLECTIVE_TIMEOUT": "2"}
    result = script("failing_rank", tmp_path / "store", **variables)
    assert "exit statuses [3, -9]" in result.stdout, result.stderr
    assert "rank 1 still runs" in result.stdout
    assert "rank 0 has waited for its peers for 2 s (SIMCANN_COLLECTIVE_TIMEOUT)" in result.stderr
    assert shared_memory() <= before
