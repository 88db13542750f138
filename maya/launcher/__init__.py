"""maya-torchrun: torchrun on virtual GPUs. Reads the command line, runs the job, returns the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from maya.devices import Device, DeviceError, load_device
from maya.launcher.arguments import LaunchOptions, UsageError, parse
from maya.launcher.attempt import AttemptOutcome, SurveyFailed
from maya.launcher.giving_up import GaveUp
from maya.launcher.injection_options import Injection
from maya.launcher.job import Job
from maya.launcher.logs import discard_run_folder, make_run_folder
from maya.launcher.outer_session import note_own_job
from maya.launcher.recorded_settings import make_settings
from maya.replay.run_settings import RunSettings
from maya.util import standard_streams
from maya.util.working_folder import missing_working_folder
from rank_runtime.build import Build, BuildError, ensure_built
from rank_runtime.variables import VariableError

if TYPE_CHECKING:
    from maya.launcher.machines import JobMachines

FAILED, USAGE, GAVE_UP = 1, 2, 3


# Opens the machines that a job is to run on.
OpenMachines = Callable[[LaunchOptions, Build, Callable[[str], None]], "AbstractContextManager[JobMachines]"]


def main(words: Sequence[str] | None = None, open_machines: OpenMachines | None = None) -> int:
    """Run a job; return torchrun's exit code: 0 success, 1 a worker failed, 2 the job could not be started; or 3 if it
    was given up (--give-up-above).

    Without `words` this is the main function of a process, with that process's command line and standard streams.
    `open_machines`: run the job on other machines than this one.
    """
    if words is None:
        standard_streams.begin_launcher()
        words = sys.argv[1:]
    problem = missing_working_folder()
    if problem is not None:
        _say(problem)
        return USAGE
    launch = parse(words, os.environ)
    try:
        device = load_device(launch.gpu, launch.timing.of_gpu())
        build = ensure_built(_say)
        if build.observer is None:
            _say(f"no op observer, so ops are neither named nor computed: {build.observer_problem}")
        settings = make_settings(launch, device, build, os.environ)
        folder = make_run_folder(launch)
        try:
            note_own_job(os.environ)
            with _machines(launch, build, open_machines) as machines:
                if launch.finds_representatives or (machines is None and _needs_representatives(launch)):
                    launch = _with_representatives(launch, device, build, settings, folder, machines)
                return Job(launch, device, build, settings, folder, _say, machines).run()
        except UsageError:
            discard_run_folder(folder)
            raise
    except (UsageError, DeviceError, BuildError, VariableError) as error:
        _say(str(error))
        return USAGE
    except SurveyFailed as error:
        if str(error):
            _say(str(error))
        return FAILED
    except GaveUp as error:
        _say(f"gave up: {error}")
        return GAVE_UP
    except KeyboardInterrupt:  # no rank is running: otherwise the job passes the signal on
        _say("interrupted")
        return FAILED


def _machines(
    launch: LaunchOptions, build: Build, open_machines: OpenMachines | None
) -> AbstractContextManager[JobMachines | None]:
    """The machines of the job; None: it runs on this one alone."""
    if open_machines is None and launch.ray is not None:
        from maya.launcher.ray_machines import open_ray_machines

        open_machines = open_ray_machines
    return nullcontext() if open_machines is None else open_machines(launch, build, _say)


def _needs_representatives(launch: LaunchOptions) -> bool:
    """Whether this machine has not enough memory for all ranks, and the user has not said which to run."""
    if not launch.may_find_representatives:
        return False
    from maya.doctor import Verdict, available_memory  # imported here, so that a job of one rank starts faster
    from maya.launcher.capacity import check_memory

    check = check_memory(launch.world_size, available_memory(), shared=launch.shares_modules)
    if check.verdict is Verdict.OK:
        return False
    _say(
        f"this machine has not enough memory for {launch.world_size} ranks ({check.found}), so one of each kind "
        "represents the others, as with --represent auto"
    )
    return True


def _with_representatives(
    launch: LaunchOptions,
    device: Device,
    build: Build,
    settings: RunSettings,
    folder: Path,
    machines: JobMachines | None,
) -> LaunchOptions:
    """The job with the ranks present that represent it."""
    from maya.launcher.survey import find_representatives  # imports numpy

    def attempt(chosen: LaunchOptions, round_folder: Path) -> tuple[AttemptOutcome, Path]:
        return Job(chosen, device, build, settings, round_folder, _say, machines).survey()

    without_faults = replace(launch, injection=Injection(seed=launch.injection.seed))
    return launch.with_present(find_representatives(without_faults, folder, attempt, _say))


def _say(line: str) -> None:
    print(f"maya-torchrun: {line}", file=sys.stderr, flush=True)
