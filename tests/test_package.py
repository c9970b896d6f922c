"""What is installed: the wheel's content and metadata, and its doors run far from the checkout."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = [name for name in ("vit_jax", "torch_ref", "convert") if (ROOT / name).is_dir()]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11", "3.13")
DOORS = ("vit_jax", "vit_jax.train", "vit_jax.evaluate", "vit_jax.predict")
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "tensorflow_datasets", "sklearn", "matplotlib", "torch"}


def run(*command: str | Path, **options) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        **options,
    )


def top_level(importtime: str) -> set[str]:
    """The packages that `python -X importtime` saw."""
    lines = (line.rpartition("|")[2].strip() for line in importtime.splitlines() if line.startswith("import time:"))
    return {line.partition(".")[0] for line in lines}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    done = run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def away(installed, tmp_path) -> dict:
    """Where and how to start a process that sees the installed copy before the checkout."""
    return {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(installed)}}


def test_wheel_carries_every_package_and_nothing_else(wheel):
    carried = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    present = {p.relative_to(ROOT).as_posix() for package in PACKAGES for p in (ROOT / package).rglob("*.py")}
    assert carried == present | {f"{package}/py.typed" for package in PACKAGES} | {
        "convert/dialects/architectures.json",
        *(
            f"{room}/page.{kind}"
            for room in ("vit_jax/extras/report", "convert/write/program")
            for kind in ("html", "css", "js")
        ),
    }


def test_wheel_metadata(wheel):
    (found,) = metadata.distributions(path=[str(wheel)])
    assert (found.name, found.version) == ("vit-jax", PROJECT["version"])
    assert found.metadata["License-Expression"] == "Apache-2.0"
    assert found.metadata["Requires-Python"] == ">=3.11"
    assert any(str(file).endswith("licenses/LICENSE") for file in found.files or [])
    base = {canonicalize_name(r.name) for r in map(Requirement, found.requires or []) if "extra" not in str(r.marker)}
    assert {"jax", "flax", "optax", "tensorflow-datasets"} <= base
    assert not base & {"torch", "torchvision", "tensorflow", "tensorflow-cpu", "tensorboard", "wandb", "pytest"}
    extras = {"cuda12", "cuda13", "tpu", "torch", "parity", "hub", "text", "sweep", "captions", "onnx", "stablehlo"}
    extras |= {"fast-jpeg", "tensorboard", "wandb", "examples", "docs", "ray", "plan-cuda12", "plan-tpu"}
    assert extras | {"test", "dev"} == set(found.metadata.get_all("Provides-Extra"))


@pytest.mark.parametrize("door", DOORS)
def test_door_runs_from_another_folder_and_helps_without_jax(away, installed, door):
    done = run(sys.executable, "-X", "importtime", "-m", door, "--help", **away)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert not HEAVY & top_level(done.stderr)


def test_the_installed_copy_is_the_one_that_ran(away, installed):
    done = run(sys.executable, "-c", "import vit_jax; print(vit_jax.__file__); print(vit_jax.__version__)", **away)
    assert done.stdout.split() == [str(installed / "vit_jax" / "__init__.py"), PROJECT["version"]], done.stderr


def test_the_command(away, installed):
    script = installed / "bin" / "vit-jax"
    done = run(script if script.exists() else installed / "Scripts" / "vit-jax.exe", "predict", "--help", **away)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_import_is_free():
    """`import vit_jax` loads nothing from outside the standard library, and only its own __init__."""
    done = run(
        sys.executable,
        "-S",
        "-c",
        "import sys, vit_jax; print(*sys.modules)",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("vit_jax")} == {"vit_jax"}
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "__main__", "vit_jax"}


def test_public_names():
    import vit_jax

    for name in vit_jax.__all__:
        assert getattr(vit_jax, name) is not None
    assert set(vit_jax.__all__) <= set(dir(vit_jax))
    assert callable(vit_jax.train)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vit_jax.nothing


ORDERS = (  # of imports, each followed by what has to be callable
    "import vit_jax; vit_jax.train, vit_jax.evaluate, vit_jax.predict",
    "import vit_jax.train, vit_jax.predict, vit_jax.evaluate; vit_jax.train, vit_jax.evaluate, vit_jax.predict",
    "from vit_jax import predict, train, evaluate; train, evaluate, predict",
    "import vit_jax.train as t; import vit_jax.evaluate as e; from vit_jax import predict; t, e, predict",
    "import vit_jax.training.loop, vit_jax.commands.cli; import vit_jax.train; "
    "vit_jax.train, vit_jax.evaluate, vit_jax.predict",
    "from importlib import import_module; import_module('vit_jax.train'), import_module('vit_jax.evaluate'), "
    "import_module('vit_jax.predict')",
)


def test_commands_are_callable_whatever_was_imported_first():
    """With the signatures of their functions, and without loading jax."""
    script = """if True:
        import inspect, pickle, sys
        wanted = [["run"], ["path", "split"], ["path", "inputs"]]
        for order in sys.stdin.read().splitlines():
            for name in [name for name in sys.modules if name.partition(".")[0] == "vit_jax"]:
                del sys.modules[name]
            *imports, found = order.split("; ")
            scope = {}
            for line in imports:
                exec(line, scope)
            for function, names in zip(eval(found, scope), wanted, strict=True):
                assert callable(function) and list(inspect.signature(function).parameters)[: len(names)] == names, order
                assert pickle.loads(pickle.dumps(function)) is function, order
        assert "jax" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", script], input="\n".join(ORDERS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_imported_is_declared():
    """Every third-party import in the packages comes from a dependency or an extra."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(r).name) for group in groups for r in group}
    provided_by = metadata.packages_distributions()
    for file in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for top in {str(name).partition(".")[0] for name in names} - {
                *sys.stdlib_module_names,
                "vit_jax",
                "torch_ref",
                "convert",
            }:
                owners = {canonicalize_name(owner) for owner in provided_by.get(top, [top])}
                assert owners & declared, f"{file}: {top}"


def test_constraints_pin_the_base_within_its_bounds():
    lines = (
        line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    )
    pins = [Requirement(line) for line in lines if line]
    for requirement in map(Requirement, PROJECT["dependencies"]):
        for python in PYTHONS:
            (pin,) = [
                p
                for p in pins
                if canonicalize_name(p.name) == canonicalize_name(requirement.name)
                and (p.marker is None or p.marker.evaluate({"python_version": python}))
            ]
            (version,) = [s.version for s in pin.specifier if s.operator == "=="]
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {pin}"
    assert not [p for p in pins if "+" in str(p.specifier)], "a local build, such as +cpu, cannot be had from the index"


FAKE = """#!/bin/sh
case "$*" in
  *ensurepip*) echo "VERSION $0" ;;
  "-m venv --clear .venv-newest") mkdir -p .venv-newest/bin && cp "$0" .venv-newest/bin/python ;;
  "-c import sys; sys.exit("*) exit 1 ;;
  *) echo "VERSION does $*" ;;
esac
"""


def test_the_newest_python_that_starts_is_chosen_without_our_pins_of_jax(tmp_path):
    """Of scripts that answer as interpreters do; a shim of one that is not there fails."""
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name, version in (("old", "3.9.20"), ("new", "3.13.0"), ("middle", "3.12.11")):
        (tmp_path / name).write_text(FAKE.replace("VERSION", version))
    (tmp_path / "shim").write_text("#!/bin/sh\nexit 127\n")
    for name in ("old", "new", "middle", "shim"):
        (tmp_path / name).chmod(0o755)
    pythons = "NEWEST=./old ./new ./middle ./shim ./missing"
    done = run("make", "test-newest", "ARGS=-k what", pythons, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "./new is Python 3.13.0" in done.stdout
    install, *_, tests = [line for line in done.stdout.splitlines() if line.startswith("3.13.0 does")]
    assert "-e .[test] jax flax optax orbax-checkpoint" in install and tests.endswith("-k what")
    kept = (tmp_path / ".venv-newest" / "constraints.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in kept}
    assert {"torch<0", "pytest", "tyro", "pillow"} <= names and not {"jax", "jaxlib", "flax", "numpy"} & names
    skipped = run("make", "test-newest", "NEWEST=./shim ./missing", cwd=tmp_path)
    assert skipped.returncode == 0 and "test-newest is skipped" in skipped.stdout


COMPILERS = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  *install*plan-tpu*) exit 1 ;;
  *) echo "$0 does $*" ;;
esac
"""


def test_steps_are_compiled_with_each_compiler_that_can_be_installed(tmp_path):
    """In an environment each; of one that cannot be, tests are skipped, with a sentence."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(COMPILERS)
    python.chmod(0o755)
    (tmp_path / ".venv/.base").touch()
    done = run("make", "test-accelerators", "ARGS=-k what", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tests = [line for line in done.stdout.splitlines() if "-m pytest" in line]
    assert len(tests) == 1 and tests[0].startswith(".venv-plan-cuda12/") and tests[0].endswith("-k what")
    assert "the extra plan-tpu cannot be installed here, so its tests are skipped" in done.stderr
