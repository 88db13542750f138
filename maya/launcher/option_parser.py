"""The options of maya-torchrun and their help: torchrun's, with torchrun's habits, and Maya's own.

In: PET_<OPTION> variables, the defaults of torchrun's options. Out: an argument parser; arguments.py makes
`LaunchOptions` of what it reads. docs/cli.md is made from it (scripts/make_cli_docs).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maya.launcher import hang, injection_options, timing_options
from maya.launcher.giving_up import GiveUpLimit
from maya.version import __version__

GPU = "h100"
RECORDED_STEPS = 1000  # of an optimizer: a step is like those before it long before

DESCRIPTION = (
    "Run a PyTorch training script on virtual GPUs, and predict its step time, memory and traffic on a GPU cluster."
)
_USAGE = "maya-torchrun [OPTION ...] SCRIPT [ARGUMENT OF THE SCRIPT ...]"
_EXAMPLE = "maya-torchrun --nproc 64 --cluster dgx-h100 train.py --batch-size 4"
_EPILOG = (
    "maya clusters, maya gpus and maya hosts list the catalogues; maya env lists environment variables. maya whatif "
    "and maya report work on a recorded run."
)


class _Parser(argparse.ArgumentParser):
    """argparse looks at all words first, also those after the script, and gives up on a word that could be the
    beginning of several options. Such a word is the script's."""

    def _get_option_tuples(self, option_string: str) -> list[tuple[argparse.Action, str, str | None]]:
        found = super()._get_option_tuples(option_string)
        return found if len(found) == 1 else []


class _HelpFormatter(argparse.HelpFormatter):
    """Shows torchrun's options with dashes only; they may be written with underscores as well."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        spellings = action.option_strings
        try:
            action.option_strings = [name for name in spellings if "_" not in name]
            return super()._format_action_invocation(action)
        finally:
            action.option_strings = spellings


def make_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of the command line; `environment` has PET_<OPTION> variables."""
    parser = _Parser(
        prog="maya-torchrun",
        usage=_USAGE,
        description=f"{DESCRIPTION} Example: {_EXAMPLE}",
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
        add_help=False,
    )
    common = parser.add_argument_group("common options")
    torchrun = parser.add_argument_group("options of torchrun (defaults from PET_<OPTION> in the environment)")
    time = parser.add_argument_group("time model")
    results = parser.add_argument_group("results")
    values = parser.add_argument_group("values of tensors")
    hangs = parser.add_argument_group("hangs")
    faults = parser.add_argument_group("faults")
    imports = parser.add_argument_group("imports")
    machines = parser.add_argument_group("several machines")
    other = parser.add_argument_group("other options")

    options = _TorchrunOptions(parser, environment)
    common.add_argument("--nproc", type=whole_number_from_1, metavar="N", help="world size: ranks in all (default: 1)")
    options.add(common, "--nnodes", metavar="N", help="number of nodes, as with torchrun")
    options.add(
        common, "--nproc-per-node", metavar="N", help="ranks per node, as with torchrun: a number, gpu, auto or cpu"
    )
    common.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="cluster to predict for: a name in the catalogue, or a TOML file (default: one that has the GPU)",
    )
    common.add_argument(
        "--gpu",
        metavar="NAME|FILE",
        help=f"GPU of every rank: a name in the catalogue, or a TOML file (default: the cluster's, or {GPU})",
    )
    common.add_argument(
        "--represent",
        metavar="auto|all|RANKS|FILE",
        help="which ranks are processes: all; auto (find one of each kind, and check them); or e.g. 0,8,16, 0-3, or a "
        "file with such a list. The others are absent, and one of these represents each (default: all if they fit on "
        "this machine, otherwise auto)",
    )
    timing_options.add_set_option(common)
    common.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for logs, traces and results (default: a new one, maya-runs/<script>-<n>)",
    )
    options.flag(common, "-m", "--module", help="SCRIPT is the name of a module, as in python -m")
    hang.add_options(common, hangs)
    timing_options.add_options(time, results)
    results.add_argument(
        "--stop-after",
        type=whole_number_from_1,
        metavar="N",
        help="end the job after N optimizer steps, as sys.exit() would, and predict from these (default: let it end by "
        "itself)",
    )
    results.add_argument(
        "--record-steps",
        type=_steps,
        default=RECORDED_STEPS,
        metavar="N|all",
        help="record and predict from the first N optimizer steps; the job goes on and its clocks stay right (default: "
        f"{RECORDED_STEPS})",
    )
    results.add_argument(
        "--give-up-above",
        type=_limit,
        metavar="TIME[/N]",
        help="with --represent auto: end the job with exit code 3 after the first round of its survey if a step, or N "
        "tokens, certainly take longer: 2.1s, 2.1s/1048576, or 2.1s/=1048576 if a step has that many",
    )
    results.add_argument("--no-trace", action="store_true", help="record nothing and predict nothing")
    values.add_argument(
        "--compute",
        choices=["none", "small", "all"],
        help="which ops are really computed: none, those on small tensors, or all (default: small)",
    )
    _add_values(values)
    injection_options.add_options(faults)
    imports.add_argument(
        "--preload", default="", metavar="A,B", help="more modules to import once, before the ranks are forked"
    )
    imports.add_argument("--no-preload", action="store_true", help="let every rank import its modules itself")
    _add_machines(machines)
    _add_torchrun(options, torchrun)
    other.add_argument("-h", "--help", action="help", help="show this help and exit")
    other.add_argument(
        "--version", action="version", version=f"maya-torchrun {__version__}", help="show the version and exit"
    )
    parser.add_argument("training_script", help=argparse.SUPPRESS)
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def option_actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that choose something about a job, by name with underscores: "nproc", "host_time"."""
    return {
        action.dest: action for action in parser._actions if action.option_strings and action.dest not in _NOT_OF_A_JOB
    }


_NOT_OF_A_JOB = ("help", "version")


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def whole_number_from_1(text: str) -> int:
    if whole_number(text) == 0:
        raise argparse.ArgumentTypeError("expected at least 1")
    return int(text)


def _steps(text: str) -> int:
    """A number of steps; 0: all."""
    return 0 if text == "all" else whole_number_from_1(text)


def _limit(text: str) -> GiveUpLimit:
    try:
        return GiveUpLimit.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _skew(text: str) -> float:
    try:
        skew = float(text)
    except ValueError:
        skew = 0.0
    if not 1 <= skew <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return skew


def _resources(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, amount = part.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            equals = ""
        if not equals or not name.strip() or not 0 < found[name.strip()] < float("inf"):
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=AMOUNT")
    return found


def _add_machines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ray",
        metavar="ADDRESS|auto",
        help="run the ranks on the nodes of this Ray cluster: <host>:<port> of its head, or auto for the cluster that "
        "this machine is in",
    )
    group.add_argument(
        "--ray-resources",
        type=_resources,
        metavar="NAME=AMOUNT,...",
        help="with --ray: use only nodes that have these resources (CPU, GPU, memory, or a name from ray start "
        "--resources), and reserve them on each",
    )


def _add_values(group: argparse._ArgumentGroup) -> None:
    for name, details in (
        ("--compute-bytes", "with --compute small, compute ops whose tensors have at most N bytes (default: 65536)"),
        ("--copy-bytes", "keep the contents of copies of up to N bytes; small ones always (default: 16777216)"),
        ("--collective-bytes", "carry the contents of collectives of up to N bytes; small ones always (default: "
         "1048576)"),
    ):  # fmt: skip
        group.add_argument(name, type=whole_number, metavar="N", help=details)
    group.add_argument(
        "--host-tensors",
        choices=("placeholder", "real"),
        help="placeholder: large host tensors of random numbers, and whatever is computed from them, take neither time "
        "nor memory; real: they are computed (default: placeholder)",
    )
    group.add_argument(
        "--strict-values", action="store_true", help="make it an error to read a value that was not computed"
    )
    group.add_argument(
        "--moe-skew",
        type=_skew,
        metavar="FACTOR",
        help="in a mixture of experts, let the expert that is chosen most often get FACTOR times the mean number of "
        "tokens, and the others fewer and fewer (default: 1, the same for each)",
    )
    group.add_argument(
        "--moe-seed",
        type=whole_number,
        metavar="N",
        help="with --moe-skew: decides which experts are chosen more often than others (default: 0)",
    )


class _TorchrunOptions:
    """Adds options of torchrun's: spelt with dashes or underscores, with a PET_<OPTION> variable as default."""

    def __init__(self, parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
        self._parser = parser
        self._environment = environment

    def add(self, group: argparse._ArgumentGroup, *names: str, default: object = None, **details: Any) -> None:
        """An option with a value; argparse converts a default that is text."""
        default = self._environment.get(_variable(names[-1]), default)
        group.add_argument(*_spellings(names), default=default, **details)

    def flag(self, group: argparse._ArgumentGroup, *names: str, **details: Any) -> None:
        """An option without a value."""
        variable = _variable(names[-1])
        text = self._environment.get(variable, "0")
        if not re.fullmatch(r"\d+", text):
            self._parser.error(f"{variable}={text}: expected 0 or 1")
        group.add_argument(*_spellings(names), action="store_true", default=int(text) != 0, **details)


def _add_torchrun(options: _TorchrunOptions, group: argparse._ArgumentGroup) -> None:
    no_effect, refused = "no effect: all nodes are on this machine", "not supported: refused unless left out"
    streams = "0 none, 1 stdout, 2 stderr, 3 both, or by local rank, e.g. 0:3,1:2 (default: 0)"

    def option(*names: str, metavar: str, help: str, **details: Any) -> None:
        options.add(group, *names, metavar=metavar, help=help, **details)

    option("-r", "--redirects", default="0", metavar="CODE", help=f"write output streams to files: {streams}")
    option("-t", "--tee", default="0", metavar="CODE", help="the same, and show them on the console as well")
    option("--log-dir", metavar="DIR", help="folder for these files (default: logs in the run's folder)")
    text = "show the output of these local ranks of every node only: 0,1"
    option("--local-ranks-filter", default="", metavar="LIST", help=text)
    option("--ranks-filter", default="", metavar="RANKS", help="show the output of these ranks of the job only: 0-3,8")
    option(
        "--max-restarts", type=whole_number, default=0, metavar="N", help="restart failed ranks N times (default: 0)"
    )
    option("--role", default="default", metavar="NAME", help="role of the ranks, in log prefixes (default: default)")
    options.flag(group, "--no-python", help="SCRIPT is a program of its own, not a Python script")
    options.flag(group, "--run-path", help="run SCRIPT with runpy.run_path")
    options.flag(group, "--standalone", help="choose the rendezvous address and id")
    option("--rdzv-backend", default="static", metavar="NAME", help="static or c10d (default: static)")
    option("--rdzv-endpoint", default="", metavar="HOST:PORT", help="where rank 0 hosts its store")
    option("--rdzv-id", default="none", metavar="ID", help="id of the job")
    option("--rdzv-conf", default="", metavar="K=V,...", help=no_effect)
    option("--master-addr", default="127.0.0.1", metavar="HOST", help="MASTER_ADDR of the ranks (default: 127.0.0.1)")
    option("--master-port", type=whole_number, metavar="PORT", help="MASTER_PORT of the ranks (default: a free one)")
    option("--local-addr", metavar="HOST", help=no_effect)
    option("--node-rank", type=whole_number, default=0, metavar="N", help="only 0: all nodes are virtual and run here")
    option("--monitor-interval", type=float, default=0.1, metavar="SECONDS", help="no effect: ranks are always watched")
    option(
        "--start-method", choices=["spawn", "fork", "forkserver"], default="spawn", metavar="NAME",
        help="no effect: ranks are forked",
    )  # fmt: skip
    option(
        "--signals-to-handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT", metavar="LIST",
        help="signals to forward to the ranks (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )  # fmt: skip
    option(
        "--shutdown-timeout", type=whole_number, metavar="SECONDS",
        help="time between such a signal and SIGKILL (default: 30)",
    )  # fmt: skip
    options.flag(group, "--virtual-local-rank", help="set LOCAL_RANK to 0 and show each rank its own GPU only")
    option("--event-log-handler", default="null", metavar="NAME", help=refused)
    option("--logs-specs", metavar="NAME", help=refused)
    option("--numa-binding", metavar="NAME", help=refused)
    option("--duplicate-stdout-filters", default="", metavar="LIST", help=refused)
    option("--duplicate-stderr-filters", default="", metavar="LIST", help=refused)


def _variable(option: str) -> str:
    return "PET_" + option.lstrip("-").replace("-", "_").upper()


def _spellings(names: Sequence[str]) -> list[str]:
    *short, long = names
    return [*short, *dict.fromkeys([long, "--" + long[2:].replace("-", "_")])]
