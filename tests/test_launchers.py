"""What launchers say of their processes: each trains on all devices of its machine, or is refused with the remedy."""

import json
import os
import re
import sys
import types
from pathlib import Path

import pytest

from tests.test_hosts import Two
from vit_jax.errors import UserError
from vit_jax.machine import launchers
from vit_jax.machine.hosts import join_hosts
from vit_jax.machine.launchers import find_gpus, read_place

LAUNCHERS = ("JAX_", "SLURM_", "OMPI_", "PMI", "MPI_", "PRTE_", "KUBERNETES_", "TPU_", "MEGASCALE_", "JOB_COMPLETION")
LAUNCHERS += ("CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE")


def without_launcher() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


@pytest.fixture
def given(monkeypatch):
    """Sets variables, in an environment without those of any launcher."""

    def give(variables: dict[str, object]) -> None:
        for name in os.environ.keys() - without_launcher().keys():
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return give


def srun(index: int, count: int = 2, local: int = 0, nodes: str = "node[3-4]", **more: object) -> dict[str, object]:
    """The variables of a task of Slurm."""
    given = {"JOB_ID": 7, "STEP_ID": 0, "STEP_NODELIST": nodes, "STEP_NUM_TASKS": count, "NTASKS": count}
    given |= {"PROCID": index, "LOCALID": local, "NODEID": 0, **more}
    return {f"SLURM_{name}": value for name, value in given.items()}


def open_mpi(index: int, count: int = 2, local: int = 0, beside: int = 1, **more: object) -> dict[str, object]:
    """The variables that Open MPI 4 and 5 have in common."""
    given = {"SIZE": count, "RANK": index, "LOCAL_SIZE": beside, "LOCAL_RANK": local}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in given.items()} | more


def mpich(index: int, count: int = 2, local: int = 0, beside: int = 1) -> dict[str, object]:
    return {"PMI_RANK": index, "PMI_SIZE": count, "MPI_LOCALRANKID": local, "MPI_LOCALNRANKS": beside, "PMI_FD": 9}


def stated(address: str = "a:5000", count: object = 2, index: object = 1) -> dict[str, object]:
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": count, "JAX_PROCESS_ID": index}


OF_4 = {"OMPI_MCA_orte_hnp_uri": "1314521088.0;usock;tcp://10.96.0.1,10.148.0.1:34911"}
OF_4_IPV6 = {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370"}
OF_5 = {"PRTE_LAUNCHED": 1, "PMIX_NAMESPACE": "prterun-login-node-11068@1", "PMIX_RANK": 1}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (srun(1), ("node3", 2, 1)),
        (srun(5, 6, nodes="a[1,07-09],b"), ("a1", 6, 5)),
        (srun(0, 2, nodes="rack2-gpu[07-10]"), ("rack2-gpu07", 2, 0)),
        (srun(3, 9, NTASKS=64) | {"SLURM_NTASKS": 64}, ("node3", 9, 3)),  # a step of a larger job
        (open_mpi(1, 4) | OF_4, ("10.96.0.1", 4, 1)),
        (open_mpi(1, 4) | OF_4_IPV6, ("[fe80::b9b]", 4, 1)),
        (open_mpi(1, 4) | OF_5, ("login-node", 4, 1)),
        (open_mpi(1, 2, 1, 2) | OF_5, ("127.0.0.1", 2, 1)),
        (open_mpi(3, 4) | OF_5 | srun(1), ("login-node", 4, 3)),  # mpirun has started its daemons by srun
        (mpich(1, 2, 1, 2), ("127.0.0.1", 2, 1)),
        (mpich(1, 2) | srun(1), ("node3", 2, 1)),  # srun --mpi=pmi2
        (mpich(3, 4) | {"JAX_COORDINATOR_ADDRESS": "head:5000"}, ("head", 4, 3)),
        (stated(), ("a", 2, 1)),
        (stated() | srun(3, 4), ("a", 2, 1)),
        ({"JAX_COORDINATOR_ADDRESS": "b:5000"} | srun(3, 4), ("b", 4, 3)),
        ({"JAX_PROCESS_ID": 2} | srun(3, 4), ("node3", 4, 2)),
    ],
)
def test_the_place_is_what_the_variables_of_a_launcher_say(given, variables, expected):
    given(variables)
    found = read_place("auto")
    assert (found.address, found.count, found.index) == expected and found.port > 1023


def test_processes_of_one_job_have_one_port_and_those_of_others_another(given):
    ports = []
    for variables in (srun(0), srun(1), srun(1, JOB_ID=8), srun(1, STEP_ID=1), open_mpi(0) | OF_5, open_mpi(1) | OF_5):
        given(variables)
        ports.append(read_place("auto").port)
    assert ports[0] == ports[1] != ports[2] and ports[3] != ports[1] and ports[4] == ports[5]
    given(srun(1) | {"JAX_COORDINATOR_PORT": 1234})
    assert read_place("auto").port == 1234


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "give auto, or ADDRESS:PORT,COUNT,INDEX"),
        ({"SLURM_JOB_ID": 7, "SLURM_NTASKS": 2, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_JOB_NODELIST": "a[1-2]"},
         "Slurm's job 7 was not started by srun; write srun before it"),
        (mpich(1), "this mpiexec does not say where process 0 runs; set JAX_COORDINATOR_ADDRESS"),
        (open_mpi(1) | {"PMIX_NAMESPACE": "slurm.pmix.7.0"}, "set JAX_COORDINATOR"),
        (OF_5, "start them by mpirun -n COUNT"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "pip install 'jax[k8s]'"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "only JAX_COORDINATOR_ADDRESS is set; set all three"),
        ({"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2"}, "only JAX_NUM_PROCESSES and JAX_PROCESS_ID is set"),
        (stated("a"), "JAX_COORDINATOR_ADDRESS is 'a': give ADDRESS:PORT"),
        (stated(count="two"), "JAX_NUM_PROCESSES is 'two': give a whole number"),
        (stated(index=-1), "JAX_PROCESS_ID is '-1': give a whole number"),
        (stated(index=2), "its INDEX is 2; give one of 0 to 1"),
        (srun("x"), "SLURM_PROCID is 'x': give a whole number"),
        ({"JAX_LOCAL_DEVICE_IDS": "0;1"} | srun(0, 1, nodes="a"), "JAX_LOCAL_DEVICE_IDS is '0;1': give"),
    ],
)  # fmt: skip
def test_a_process_without_a_place_is_told_what_gives_it_one(given, monkeypatch, variables, why):
    given(variables)
    monkeypatch.setattr(launchers, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # not installed
    with pytest.raises(UserError, match=re.escape(why)) as caught, join_hosts("auto"):
        pass
    assert "\n" not in str(caught.value)


EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (srun(1) | EIGHT, None),  # a task on each node: all eight
        (srun(1, STEP_TASKS_PER_NODE="1(x2)") | EIGHT, None),
        (srun(9, 16, 1, STEP_TASKS_PER_NODE="8(x2)", NODEID=1) | EIGHT, [1]),
        (srun(3, 4, 1) | EIGHT, [4, 5, 6, 7]),  # two tasks on a node of eight
        (srun(2, 3, 1, STEP_TASKS_PER_NODE="1,2", NODEID=1) | EIGHT, [4, 5, 6, 7]),
        (srun(0, 3, 0, STEP_TASKS_PER_NODE="1,2", NODEID=0) | EIGHT, None),
        (srun(3, 4, 1) | {"CUDA_VISIBLE_DEVICES": "3"}, None),  # bound already
        (srun(3, 4, 1, GPUS_PER_TASK=2) | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (srun(3, 4, 1, TRES_PER_TASK="gres/gpu:2") | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (srun(3, 4, 1, GPU_BIND="single:1") | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (srun(3, 4, 1, GPUS_PER_TASK=2, GPU_BIND="none") | {"CUDA_VISIBLE_DEVICES": "0,1"}, [1]),
        (srun(3, 4, 1), [1]),  # how many there are is not known
        (srun(3, 4, 1) | {"CUDA_VISIBLE_DEVICES": ""}, None),
        (open_mpi(1, 8, 1, 4) | OF_4 | EIGHT, [2, 3]),
        (open_mpi(1, 2, 0, 1) | OF_5 | EIGHT, None),
        (mpich(1, 2, 1, 2) | {"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),
        (srun(1) | EIGHT | {"JAX_LOCAL_DEVICE_IDS": "2, 3"}, [2, 3]),
        ({"JAX_LOCAL_DEVICE_IDS": "5"}, [5]),
    ],
)
def test_processes_of_a_machine_share_its_gpus_evenly_and_one_alone_takes_all(monkeypatch, given, variables, expected):
    given(variables)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))  # a machine whose /dev tells nothing
    assert find_gpus() == expected


def test_gpus_are_counted_by_their_files_where_no_variable_lists_them(monkeypatch, given, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(launchers, "Path", lambda folder: tmp_path)
    given(srun(3, 4, 1))
    assert find_gpus() == [2, 3]


def test_kubernetes_is_asked_by_jax(given, monkeypatch):
    """An indexed job of four pods with a headless service, as its API would answer."""
    from jax._src.clusters import k8s_cluster

    labels = types.SimpleNamespace(name="train", labels={})
    job = types.SimpleNamespace(metadata=labels, spec=types.SimpleNamespace(parallelism=4))
    pod = types.SimpleNamespace(spec=types.SimpleNamespace(subdomain="pods"))
    owner = types.SimpleNamespace(kind="Job", controller=True)
    api = types.SimpleNamespace(CoreV1Api=dict, BatchV1Api=dict, exceptions=types.SimpleNamespace(ApiException=OSError))
    config = types.SimpleNamespace(load_incluster_config=dict)
    monkeypatch.setitem(sys.modules, "kubernetes", types.SimpleNamespace(client=api, config=config))
    for name, value in {"_controller": owner, "_job": job, "_pod": pod}.items():
        monkeypatch.setattr(k8s_cluster.K8sCluster, name, lambda value=value: value)
    monkeypatch.setattr(k8s_cluster.socket, "gethostbyname", str)
    given({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": 2})
    found = read_place("auto")
    assert (found.address, found.count, found.index) == ("train-0.pods", 4, 2)
    given({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    with pytest.raises(UserError, match='jobs must be indexed by setting `completionMode: "Indexed"`'):
        read_place("auto")


# Two processes, which a launcher may well have started.

PORT = 20000 + os.getpid() % 20000  # and the next two
TRAIN = ["digits", "--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--model.hidden", "16"]
TRAIN += ["--batch", "32", "--max-steps", "3", "--hosts", "auto"]
INITIALIZED = """
import dataclasses, os, threading, jax, vit_jax
place = os.environ["PLACE"].split(",")
jax.distributed.initialize(place[0], 2, int(place[1]))
def work():
    run = dataclasses.replace(vit_jax.preset("digits").run, max_steps=3, name="run")
    try:
        vit_jax.train(run)
    except vit_jax.UserError as error:
        print(error)
    print("ended at", vit_jax.train(run, hosts="auto")["step"])
worker = threading.Thread(target=work)  # as Ray does
worker.start(), worker.join()
"""


def two(tmp_path: Path, variables, *words: str, devices: int = 1) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of two processes with the variables of each."""
    both = Two(tmp_path)
    for index in (0, 1):
        given = {name: str(value) for name, value in variables(index).items()}
        environment = without_launcher() | {"JAX_PLATFORMS": "cpu"} | given
        both.spawn(index, *(words or ("-m", "vit_jax.train", *TRAIN)), devices=devices, given=environment)
    return both.end(300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        (lambda i: srun(i, nodes="127.0.0.1", STEP_TASKS_PER_NODE="1(x2)", JOB_ID=os.getpid()), 8),
        (lambda i: srun(i, local=i, nodes="127.0.0.1", JOB_ID=os.getpid()), 1),
        (lambda i: open_mpi(i, OMPI_MCA_orte_hnp_uri=f"{os.getpid() << 12}.0;tcp://127.0.0.1:99"), 8),
        (lambda i: open_mpi(i, 2, i, 2, PMIX_NAMESPACE=f"prterun-nowhere-{os.getpid()}@1"), 1),
        (lambda i: mpich(i, 2, i, 2), 1),
        (lambda i: mpich(i) | {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{PORT}"}, 2),
        (lambda i: stated(f"127.0.0.1:{PORT + 1}", index=i), 1),
    ],
    ids=["srun, eight devices", "srun, two a node", "Open MPI 4", "Open MPI 5", "MPICH", "MPICH, address", "JAX_*"],
)
def test_two_processes_of_a_launcher_train_together_on_all_their_devices(tmp_path, launcher, devices):
    found = two(tmp_path, launcher, devices=devices)
    assert [code for code, _, _ in found] == [0, 0], found
    environment = json.loads((tmp_path / "0/runs/digits/config.json").read_text())["environment"]
    assert (environment["devices"], environment["hosts"]) == (2 * devices, 2) and not (tmp_path / "1/runs").exists()


@pytest.mark.slow
def test_processes_whose_jax_is_initialized_already_train_together(tmp_path):
    found = two(tmp_path, lambda i: {"PLACE": f"127.0.0.1:{PORT + 2},{i}"}, "-c", INITIALIZED)
    assert [code for code, _, _ in found] == [0, 0], found
    for _, out, _ in found:
        assert "ended at 3" in out and 'initialized with 2 processes; give hosts="auto"' in out, found
