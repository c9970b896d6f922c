"""The command `python -m vit_jax.train`: alone or with other hosts, a run, a group of runs, or a dry run."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

from .. import runs
from ..config import flags
from ..config.run import RunConfig
from ..data.images.config import FittedImages
from ..errors import DONE, Field, UserError
from ..files.terminal import lasting_output, run_command, version
from ..machine import backend
from ..machine.hosts import ALONE, Hosts, join_hosts
from ..machine.numerics import fixed_settings
from ..runs.check import check_run
from ..runs.several import members_of, of_folds
from ..runs.values import from_dict, to_dict
from ..training.announce import announce, estimate
from ..training.finish import sum_up
from ..training.job import OF_A_HOST, Origin, choose_folder, open_job, preflight
from ..training.state import describe_rate, new_state, noted_anew, run_now
from ..training.train import exhausted, steps_with, train_group
from ..weights.fitting import describe_tuning
from .train_options import Options, check_options, parse

# Flags that each host may give in its own way.
OF_A_COMMAND = {"hosts", *OF_A_HOST}


def command(arguments: list[str]) -> int:
    """Train, or print, what arguments ask for."""
    given = flags.given_texts(arguments)
    place = "" if {"-h", "help", "version"} & given.keys() else flags.value_of(given, "hosts")
    if not place:
        return _command_alone(arguments)
    minutes = flags.value_of(given, "stall-minutes")
    with join_hosts(
        place, float(minutes) if re.fullmatch(r"\d{1,6}(\.\d*)?", minutes) else RunConfig.stall_minutes
    ) as hosts:
        return _command_with(hosts, arguments)


def _command_with(hosts: Hosts, arguments: list[str]) -> int:
    """`command` on these hosts. The owner alone reads a config, weights and the run's folder; the others ask it."""
    given = flags.given_texts(arguments)
    hosts.compare({name: value for name, value in given.items() if name not in OF_A_COMMAND})
    told: Any = None
    folder = None
    if hosts.owner:
        name, options, folder = parse(arguments)
        for other in ("dry_run", "print_config", "seeds", "folds"):
            if getattr(options, other):
                raise UserError(
                    f"{other} is {getattr(options, other)} and hosts is {options.hosts}", remedy="leave one of them out"
                )
        told = {"preset": name, "run": to_dict(check_options(options, folder))}
        _show_tuning(options)
    told = hosts.share(told)
    run = from_dict(RunConfig, told["run"])
    own = flags.value_of(given, "data.dir")
    if own and not hosts.owner and isinstance(run.data, FittedImages):
        run = replace(run, data=replace(run.data, dir=own))
    exhausted(steps_with(hosts, run, told["preset"], folder, folder is not None))
    return DONE


def _command_alone(arguments: list[str]) -> int:
    """`command` in one process."""
    if inside := _resumed_group(arguments):
        return _resume_group(inside, arguments)
    name, options, folder = parse(arguments)
    if options.version:
        print(f"vit-jax {version()}")
        return DONE
    if options.print_config:
        print(json.dumps(to_dict(check_options(options)), indent=1))
        return DONE
    run = check_options(options, folder)
    _show_tuning(options)
    group = "seed" if options.seeds else "fold" if options.folds else ""
    if options.seeds and options.folds:
        raise UserError(Field("folds"), f"is {options.folds} and seeds is {options.seeds}", "leave one of them out")
    if group and folder:
        raise UserError(
            Field(f"{group}s"),
            f"is {options.seeds or options.folds} and resume is {options.resume}",
            f"leave one of them out; to continue runs that were started with --{group}s, repeat their command",
        )
    if options.folds:
        run = check_run(of_folds(run, options.folds))
    if options.dry_run:
        return dry_run(run, name, folder, folder is not None, group)
    if group:
        train_group(run, group, options.seeds or options.folds, name)
    else:
        exhausted(steps_with(ALONE, run, name, folder, folder is not None))
    return DONE


def _resumed_group(arguments: list[str]) -> list[runs.Run]:
    """The runs of the group that --resume names; empty if it names none."""
    given = flags.given_texts(arguments)
    resume = flags.value_of(given, "resume")
    return members_of(resume, flags.value_of(given, "dir") or RunConfig.dir) if resume else []


def _resume_group(inside: list[runs.Run], arguments: list[str]) -> int:
    """The command for each run of a group, and then their sum; returns the exit code."""
    summaries = []
    for member in inside:
        name, options, folder = parse([*arguments, "--resume", str(member.path)])  # what is given last counts
        run = check_options(options, folder)
        if options.dry_run:
            dry_run(run, name, folder, True)
        else:
            summaries.append(exhausted(steps_with(ALONE, run, name, folder, True)))
    if summaries:
        sum_up(inside, summaries)
    return DONE


def _show_tuning(options: Options) -> None:
    """Print what --tune decides, if that is given."""
    if options.tune != "none":
        print(describe_tuning(options.run(), options.tune))


def dry_run(run: RunConfig, preset: str, folder: runs.Run | None, resumed: bool, group: str = "") -> int:
    """Set a run up and print it, without training or writing anything."""
    division, teacher, hooks = preflight(run)
    origin = Origin(fetch=False)
    folder = choose_folder(run, preset, folder, group, difference=origin.difference)
    if not group:
        run, _ = run_now(folder, run, resumed)
    backend.configure_jax(division.devices)
    with fixed_settings(run.compute_dtype):
        job = open_job(run, origin.open(run, folder), folder, preset, teacher, hooks)
        announce(job)
        if not folder.complete_steps():
            state, _ = new_state(job)
            if minutes := estimate(job, job.engine.put(state)):
                print(f"time     {minutes}")
        if folder.exists() and noted_anew(job):
            print(f"goes on  {describe_rate(job)}")
    print(f"dry run  {job.epochs} epochs of {job.order.steps_per_epoch} steps; nothing was written")
    return DONE


def main() -> int:
    """The command `python -m vit_jax.train`; returns an exit code of errors.py."""

    def lasting() -> int:
        with lasting_output():
            return command(sys.argv[1:])

    return run_command(lasting)
