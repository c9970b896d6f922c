"""What the launcher of a cluster says of a process that it has started, by the variables that it sets.

jax reads some of them too, but gives a process of Slurm or Open MPI one GPU, however many there are, and knows neither
Open MPI 5 nor MPICH. Nothing here imports jax.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import Field, UserError

Environment = Mapping[str, str]
PORTS = range(61440, 65536)  # for process 0, by the number of the job


@dataclass(frozen=True)
class Launched:
    """A process among all that a launcher has started."""

    count: int
    index: int
    local_count: int
    local_index: int
    address: str = ""  # HOST:PORT of process 0; empty: the launcher does not say
    own_gpus: bool = False  # the launcher lets each process see its own GPUs only


def read_launched(environment: Environment) -> Launched | None:
    """What the launcher of this process says, if one that is known here has started it. Raises UserError."""
    mpi = _open_mpi(environment) or _mpich(environment)
    slurm = _slurm(environment)
    # mpiexec may start its own daemons by srun, whose variables its processes inherit; and srun may set those of MPI.
    same = mpi and slurm and (mpi.count, mpi.index) == (slurm.count, slurm.index)
    return slurm if same else mpi or slurm


def read_number(text: str, name: str) -> int:
    """The number that a variable states. Raises UserError."""
    if not re.fullmatch(r"\s*\d{1,18}\s*", text, re.ASCII):
        raise UserError(Field(name), f"is {text[:80]!r}", "give a whole number, 0 or more")
    return int(text)


def _slurm(environment: Environment) -> Launched | None:
    """A task of a step of Slurm, started by srun."""
    names = ("JOB_ID", "STEP_NODELIST", "STEP_NUM_TASKS", "NTASKS", "PROCID", "LOCALID", "NODEID", "STEP_ID")
    given = {name: environment.get(f"SLURM_{name}", "") for name in names}
    tasks = "STEP_NUM_TASKS" if given["STEP_NUM_TASKS"] else "NTASKS"
    if not all(given[name] for name in ("JOB_ID", "STEP_NODELIST", tasks, "PROCID", "LOCALID")):
        return None
    job, count, index, local = (
        read_number(given[name], f"SLURM_{name}") for name in ("JOB_ID", tasks, "PROCID", "LOCALID")
    )
    nodes, by_node = _expand_nodes(given["STEP_NODELIST"]), _expand_counts(environment)
    node = int(given["NODEID"]) if given["NODEID"].isdecimal() else 0
    step = int(given["STEP_ID"]) if given["STEP_ID"].isdecimal() else 0
    return Launched(
        count=count,
        index=index,
        local_count=by_node[node] if node < len(by_node) else -(-count // len(nodes)),
        local_index=local,
        address=f"{nodes[0]}:{PORTS[(job + step) % len(PORTS)]}",
        own_gpus=_binds_gpus(environment),
    )


def _binds_gpus(environment: Environment) -> bool:
    """Whether Slurm lets each task see its own GPUs only, as its options of that kind ask for."""
    if bind := environment.get("SLURM_GPU_BIND"):
        return not bind.endswith("none")
    asked = {"SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"} & environment.keys()
    return bool(asked) or "gpu" in environment.get("SLURM_TRES_PER_TASK", "")


def _expand_nodes(text: str) -> list[str]:
    """The names in a list of Slurm's: a[1,07-09],b has a1, a07, a08, a09 and b. At least one."""
    found = []
    for prefix, inside, suffix in re.findall(r"([^\[\],]+)(?:\[([^\]]*)\])?([^\[\],]*)", text):
        for part in inside.split(","):
            first, _, last = part.partition("-")
            numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if last else [first]
            found += [f"{prefix}{number}{suffix}" for number in numbers]
    return found or [text]


def _expand_counts(environment: Environment) -> list[int]:
    """How many tasks each node of a step of Slurm has: 4(x2),1 is 4, 4 and 1; [] if it does not say."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    return [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]


def _open_mpi(environment: Environment) -> Launched | None:
    """A process of Open MPI 4 or 5, started by mpirun."""
    given = {name: environment.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("SIZE", "RANK")}
    if not all(given.values()):
        return None
    given["LOCAL_SIZE"] = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    given["LOCAL_RANK"] = environment.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    count, index, local_count, local_index = (read_number(x, f"OMPI_COMM_WORLD_{name}") for name, x in given.items())
    # Both name the machine of mpirun itself, which starts process 0 beside it unless it is told otherwise.
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")  # of 4, such as 1314521088.0;tcp://10.96.0.1,10.148.0.1:34911
    job = environment.get("PMIX_NAMESPACE", "")  # of 5, such as prterun-node1-11068@1
    address = ""
    if match := re.match(r"(\d+)\.\d+;.*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri):
        port = PORTS[int(match[1]) // len(PORTS) % len(PORTS)]  # a job's number is a multiple of 2^12
        address = f"{match[2]}:{port}" if match[2] else f"[{match[3]}]:{port}"
    elif match := re.fullmatch(r"prte(?:run)?-(.+)-(\d+)@\d+", job):
        address = f"{match[1]}:{PORTS[int(match[2]) % len(PORTS)]}"
    if address and local_count == count:
        address = "127.0.0.1:" + address.rpartition(":")[2]
    return Launched(count, index, local_count, local_index, address)


def _mpich(environment: Environment) -> Launched | None:
    """A process of MPICH or Intel MPI, started by their mpiexec, Hydra."""
    if "PMI_RANK" not in environment or "PMI_SIZE" not in environment:
        return None
    count, index = (read_number(environment[name], name) for name in ("PMI_SIZE", "PMI_RANK"))
    local_count = read_number(environment.get("MPI_LOCALNRANKS", "1"), "MPI_LOCALNRANKS")
    local_index = read_number(environment.get("MPI_LOCALRANKID", "0"), "MPI_LOCALRANKID")
    # It does not say where process 0 is, unless all are here.
    address = f"127.0.0.1:{PORTS[_common_parent() % len(PORTS)]}" if local_count == count else ""
    return Launched(count, index, local_count, local_index, address)


def _common_parent() -> int:
    """The number of the process that has started the sessions of all processes of a job on this machine."""
    try:
        status = Path(f"/proc/{os.getsid(0)}/stat").read_text(encoding="utf-8", errors="replace")
        return int(status.rpartition(")")[2].split()[1])  # after the name, which may be anything: state, parent
    except (OSError, ValueError, AttributeError):  # no Linux
        return os.getppid()


FORMS = "auto, or ADDRESS:PORT,COUNT,INDEX such as 10.0.0.1:5000,2,0 on the first of two hosts"
STATED = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
COMMAND = "python -m vit_jax.train ... --hosts auto"


@dataclass(frozen=True)
class Place:
    """Where process 0 listens, how many processes there are, and which of them this is, from 0."""

    address: str
    port: int
    count: int
    index: int


def read_place(text: str) -> Place:
    """The place that a value of --hosts states; of auto, what the environment says. Raises UserError."""
    if text == "auto":
        return _find_place(os.environ)
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^\s:,\[\]]+):(\d{1,5}),(\d{1,6}),(\d{1,6})", text, re.ASCII)
    if not match:
        raise UserError(Field("hosts"), f"is {text[:80]!r}", f"give {FORMS}")
    address, (port, count, index) = match[1], map(int, match.groups()[1:])
    if not 0 < port < 2**16:
        raise UserError(Field("hosts"), f"is {text}", f"its port is {port}; give one of 1 to 65535")
    if not count:
        raise UserError(Field("hosts"), f"is {text}", "its COUNT is 0; give the number of processes")
    if index >= count:
        raise UserError(
            Field("hosts"), f"is {text}", f"its INDEX is {index}; give one of 0 to {count - 1} to each process"
        )
    return Place(address, port, count, index)


def find_gpus() -> list[int] | None:
    """The GPUs of this process, as numbers among those it sees, shared evenly on one machine; None: all."""
    name, environment = "JAX_LOCAL_DEVICE_IDS", os.environ
    if stated := environment.get(name, "").strip():
        return [read_number(part, name) for part in stated.split(",")]
    launched = read_launched(environment)
    if launched is None or launched.own_gpus or launched.local_count == 1:
        return None
    there = _count_gpus(environment)
    if there is None:
        return [launched.local_index]  # as jax does
    each = there // launched.local_count
    return [*range(launched.local_index * each, (launched.local_index + 1) * each)] or None


def _count_gpus(environment: Environment) -> int | None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environment:
            return len([part for part in environment[name].split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]) or None


def _find_place(environment: Environment) -> Place:
    """What JAX_* state of the place of this process, and for the rest its launcher. Raises UserError."""
    stated = [environment.get(name, "").strip() for name in STATED]
    launched = read_launched(environment)
    found: tuple[str | int | None, ...] = (None, None, None)
    if not all(stated):
        if launched:
            found = launched.address, launched.count, launched.index
        elif "SLURM_JOB_ID" not in environment:
            found = _ask_jax()
    both = zip(stated, found, strict=True)
    address, count, index = (text or ("" if x is None else str(x)) for text, x in both)
    if (port := environment.get("JAX_COORDINATOR_PORT")) and address and not re.search(r":\d+$", stated[0]):
        address = f"{re.sub(r':[0-9]+$', '', address)}:{port}"
    if not (address and count and index):
        raise UserError(*_why_unknown(environment, launched))
    for name, text in zip(STATED[1:], (count, index), strict=True):
        read_number(text, name)
    if not re.search(r":\d+$", address):
        raise UserError(Field(STATED[0]), f"is {address[:80]!r}", "give ADDRESS:PORT of the first process")
    return read_place(f"{address},{int(count)},{int(index)}")


def _ask_jax() -> tuple[str | None, int | None, int | None]:
    """(address, count, index) as jax finds them on a TPU pod or in Kubernetes; None where it does not."""
    # The name is private: jax.distributed.initialize finds the same, but waits for a process that is missing and then
    # aborts, where `Watch` says who is not there.
    from jax._src.clusters import ClusterEnv

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kubernetes is not installed: `_why_unknown` says it
        try:
            return ClusterEnv.auto_detect_unset_distributed_params(None, None, None, (), None, 120)[:3]
        except Exception as error:  # of the clients of Kubernetes and of the server of metadata, which have many kinds
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(
                f"hosts is auto, but jax cannot tell which process of this cluster this is ({reason})",
                remedy=f"give {FORMS}",
            ) from error


def _why_unknown(environment: Environment, launched: Launched | None) -> tuple[str, str, str]:
    """The arguments of the UserError for a place that is not known."""
    stated = [name for name in STATED if environment.get(name, "").strip()]
    everything = f"set {', '.join(STATED[:2])} and {STATED[2]}"
    if launched:
        what = "hosts is auto, but this mpiexec does not say where process 0 runs"
        remedy = f"set {STATED[0]} for all processes to ADDRESS:PORT of its host, such as node1:5000"
    elif "SLURM_JOB_ID" in environment:
        what = f"hosts is auto, but this process of Slurm's job {environment['SLURM_JOB_ID']} was not started by srun"
        remedy = f"write srun before it, in a script of sbatch too: srun {COMMAND}"
    elif stated:
        what = f"hosts is auto, and of {', '.join(STATED)} only {' and '.join(stated)} is set"
        remedy = "set all three"
    elif "PRTE_LAUNCHED" in environment:
        what = "hosts is auto, but prterun does not say how many processes there are"
        remedy = f"start them by mpirun -n COUNT {COMMAND}, or set JAX_NUM_PROCESSES"
    elif "KUBERNETES_SERVICE_HOST" in environment and not find_spec("kubernetes"):
        what = "hosts is auto in Kubernetes, which jax asks by a package that is not installed"
        remedy = f"pip install 'jax[k8s]' and give the Job completionMode: Indexed, or {everything}"
    else:
        what = "hosts is auto, but no srun, mpirun, TPU pod or Kubernetes has started this process"
        remedy = f"give {FORMS}; or {everything}"
    return what, "", remedy
