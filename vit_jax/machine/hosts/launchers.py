"""What the launcher of a cluster says of a process that it has started, by the variables that it sets.

jax reads some of them too, but gives a process of Slurm or Open MPI one GPU, however many there are, and knows neither
Open MPI 5 nor MPICH. Nothing here imports jax.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import Field, UserError

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
