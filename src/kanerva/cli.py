"""The command `kanerva`: help, lists and errors, without importing torch; app/commands.py has the commands."""

import os
import re
import sys
import traceback
from typing import NoReturn

from . import __version__, lab
from .support.say import end_output, nearest, prepare, printable, say

COMMANDS = {
    "train": "Train a model.",
    "evaluate": "Score a trained model on test classes: nats per image, lower is better.",
    "experiment": "Make one of the paper's experiments: numbers, and figures of them.",
    "plot": "Draw the figures of an experiment again, from its file of results alone.",
    "report": "Put a run's curve, scores and figures on one HTML page, which opens without a network.",
    "recall": "Store your own pictures in one memory, ask for them with damaged copies, and see what comes back.",
    "inspect": "Look into a saved memory: find the images that it holds, without a cue, and put them on a sheet.",
    "play": "Open a page in the browser on which memories are written, recalled from and looked into.",
    "info": "Say which versions, devices, pretrained models and presets there are, or what a checkpoint holds.",
    "data": "Load a data set and describe it; omniglot is fetched if it is not at hand.",
}
# What to make smaller where memory runs out.
SMALLER = {"train": "--batch, --lengths or --filters", "evaluate": "--length", "data": "--size"}
# The packages of the extra app, which brings what the commands need.
APP = ("jinja2", "matplotlib", "starlette", "tyro", "uvicorn")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; an error is one line on the error stream, and an exit code that is not 0."""
    prepare()
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        answer(command, rest)
        sys.stdout.flush()  # what cannot be printed is noticed here and not when Python ends
    except (Exception, KeyboardInterrupt) as error:
        end_output()
        fail(command, error)


def answer(command: str, arguments: list[str]) -> None:
    """Do what a command says."""
    if command in ("-h", "--help"):
        print(f"kanerva {__version__}: the Dynamic Kanerva Machine, a generative memory\n\n{table(COMMANDS)}\n")
        print("kanerva COMMAND --help lists the flags of a command.")
    elif command == "--version":
        print(f"kanerva {__version__}")
    elif command == "experiment" and (not arguments or arguments[0] in ("-h", "--help")):
        print(f"{table(lab.EXPERIMENTS)}\n\nkanerva experiment NAME --help lists the flags of one.")
    else:
        check("command", command, COMMANDS)
        if command == "experiment":
            check("experiment", arguments[0], lab.EXPERIMENTS)
        from .app.commands import run

        run(command, arguments)


def table(names: dict[str, str]) -> str:
    return "\n".join(f"  {name:12} {line}" for name, line in names.items())


def check(what: str, name: str, names: dict[str, str]) -> None:
    """Refuse a name that is none of these."""
    if name not in names:
        raise ValueError(f"{what}: expected one of {', '.join(names)}, got {name!r}{nearest(name, names)}")


def fail(command: str, error: BaseException) -> NoReturn:
    """End with one line; KANERVA_TRACEBACK=1 shows where an error comes from."""
    if isinstance(error, KeyboardInterrupt):
        say("kanerva: interrupted")
        sys.exit(130)
    if isinstance(error, BrokenPipeError):
        sys.exit(0 if command == "train" else 1)  # a trained model is saved, whoever reads its score
    if os.environ.get("KANERVA_TRACEBACK"):
        say("".join(traceback.format_exception(error)))
    text, kind = re.sub(r"^\[Errno \d+\] ", "", str(error)), type(error).__name__
    line = (text.splitlines() or [""])[0].strip()
    full = "can't allocate memory" in text or "not enough memory" in text
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").split(".")[0]) in APP:
        text = f"this command needs {package}: pip install 'kanerva[app]'"
    elif isinstance(error, MemoryError) or kind == "OutOfMemoryError" or (isinstance(error, RuntimeError) and full):
        text = f"out of memory ({line or kind}); make smaller: {SMALLER.get(command, 'the number of images')}"
    elif isinstance(error, RuntimeError) and line:
        text = line
    elif not isinstance(error, ValueError | TypeError | OSError | ModuleNotFoundError):
        where = "this was not foreseen: KANERVA_TRACEBACK=1 shows where it happened"
        text = f"{kind}: {line}".removesuffix(": ") + f"; {where}"
    sys.exit(f"kanerva: {printable(text)}")
