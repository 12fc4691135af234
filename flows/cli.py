"""The `mempo` command: every flow from a shell.

Prefect, Ray, MLflow and torch are imported by the commands that need them, so `--help` is quick.
"""

from __future__ import annotations

import os
import sys

import typer

from flows.commands_around import doctor, fetch
from flows.commands_bench import bench
from flows.commands_compare import ablate, report, reproduce
from flows.commands_run import evaluate, export, sft, train
from flows.commands_services import deploy, down, serve, up
from flows.commands_sweep import sweep
from flows.listing import Command, Commands

app = typer.Typer(
    name="mempo",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """Entry point of the console command; modules in the working folder can be imported."""
    sys.path.append(os.getcwd())  # last, so that nothing there hides an installed module
    app(prog_name="mempo")


@app.callback()
def _mempo() -> None:
    """Train language-model agents to write their own memory, and compare them.

    \b
      mempo doctor                     is everything there that a run needs?
      mempo ablate demo                GRPO and MemPO from one start, and a page that compares them
      mempo sweep demo                 the best learning rate and memory weight of the demo
      mempo train --set loss.clip=0.3  one run of the demo, with another clip range
      mempo up                         Prefect and MLflow in the browser: start runs, compare them

    Everything that runs leave lies under MEMPO_HOME (default: ./runs).
    """


for _function in (train, sft, evaluate, ablate, sweep):
    app.command(cls=Command)(_function)
for _function in (report, reproduce):
    app.command()(_function)
app.command(cls=Command)(doctor)
for _function in (bench, export, fetch, up, down, serve, deploy):
    app.command()(_function)

if __name__ == "__main__":
    main()
