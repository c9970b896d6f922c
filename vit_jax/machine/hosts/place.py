"""The place of this process among several, and the GPUs that it takes: what `--hosts` states, or its environment."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...errors import Field, UserError
from .launchers import Environment, Launched, read_launched, read_number

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
    """The GPUs that this process takes, as numbers among those that it sees; None: all.

    Processes that a launcher has started on one machine share its GPUs evenly. Raises UserError.
    """
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
    """How many GPUs this process sees; None: that is not known."""
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
