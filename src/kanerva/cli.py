"""The command `kanerva`: help and lists, for which PyTorch is not imported; commands.py has the commands."""

import os
import re
import sys
import traceback
from typing import NoReturn

from . import __version__, lab
from .spelling import nearest
from .support.say import end_output, prepare, printable, say

# name: what it does, and what to make smaller where memory runs out
COMMANDS = {
    "train": ("Train a model.", "--batch, --lengths or --filters"),
    "evaluate": ("Score a trained model on test classes: nats per image, lower is better.", "--length"),
    "experiment": (
        "Make one of the paper's experiments: numbers, and figures of them.",
        "--length, --lengths or --episodes",
    ),
    "plot": ("Draw the figures of an experiment again, from its file of results alone.", "the file of results"),
    "report": (
        "Put a run's curve, scores and figures on one HTML page, which opens without a network.",
        "the files of results",
    ),
    "recall": (
        "Store your own pictures in one memory, ask for them with damaged copies, and see what comes back.",
        "the number of pictures",
    ),
    "inspect": (
        "Look into a saved memory: find the images that it holds, without a cue, and put them on a sheet.",
        "nothing: the memory is too large",
    ),
    "play": (
        "Open a page in the browser on which memories are written, recalled from and looked into.",
        "the number of models",
    ),
    "info": (
        "Say which versions, devices and presets there are, or what a checkpoint holds.",
        "nothing: the checkpoint is too large",
    ),
    "data": ("Load a data set and describe it; omniglot is fetched if it is not at hand.", "--size"),
}

# The packages of the extra app, which brings what the commands need.
APP = ("jinja2", "matplotlib", "starlette", "tyro", "uvicorn")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; an error is one line on the error stream, and an exit code that is not 0."""
    prepare()
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        answer(command, rest)
        sys.stdout.flush()  # what cannot be printed is noticed here and not when Python ends
    except KeyboardInterrupt:
        end_output()
        say("kanerva: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        end_output()
        sys.exit(0 if command == "train" else 1)  # a trained model is saved, whoever reads its score
    except Exception as error:
        fail(command, error)


def answer(command: str, arguments: list[str]) -> None:
    """Do what a command says."""
    if command in ("-h", "--help"):
        print(usage())
    elif command == "--version":
        print(f"kanerva {__version__}")
    elif command not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ValueError(f"command: expected one of {known}, got {command!r}{nearest(command, COMMANDS)}")
    elif command == "experiment" and (not arguments or arguments[0] in ("-h", "--help")):
        print(f"{names()}\n\nkanerva experiment NAME --help lists the flags of one.")
    elif command == "experiment" and arguments[0] not in lab.EXPERIMENTS:
        known, close = ", ".join(lab.EXPERIMENTS), nearest(arguments[0], lab.EXPERIMENTS)
        raise ValueError(f"experiment: expected one of {known}, got {arguments[0]!r}{close}")
    else:
        from .commands import parse

        parse(command, arguments).run()


def fail(command: str, error: Exception) -> NoReturn:
    """End with one line; KANERVA_TRACEBACK=1 shows where an error comes from."""
    end_output()
    if os.environ.get("KANERVA_TRACEBACK"):
        say("".join(traceback.format_exception(error)))
    text = re.sub(r"^\[Errno \d+\] ", "", str(error))
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").split(".")[0]) in APP:
        text = f"this command needs {package}: pip install 'kanerva[app]'"
    elif is_memory(error):
        text = f"out of memory ({first_line(error)}); make smaller: {COMMANDS[command][1]}"
    elif isinstance(error, RuntimeError):
        text = first_line(error)
    elif not isinstance(error, ValueError | TypeError | OSError | ModuleNotFoundError):
        text = f"{first_line(error)}; this was not foreseen: KANERVA_TRACEBACK=1 shows where it happened"
    sys.exit(f"kanerva: {printable(text)}")


def is_memory(error: Exception) -> bool:
    """Whether memory ran out, of the machine or of a GPU; PyTorch has several ways to say so."""
    said = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("can't allocate memory" in said or "not enough memory" in said))
    )


def first_line(error: Exception) -> str:
    """The first line of an error, with its kind where that says more."""
    text = (str(error).splitlines() or [""])[0].strip()
    return (
        text if isinstance(error, RuntimeError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")
    )


def names() -> str:
    """The experiments, one a line."""
    return "\n".join(f"  {name:12} {line}" for name, line in lab.EXPERIMENTS.items())


def usage() -> str:
    rows = "\n".join(f"  {name:10} {line}" for name, (line, _) in COMMANDS.items())
    return (
        f"kanerva {__version__}: the Dynamic Kanerva Machine, a generative memory\n\n{rows}\n\n"
        "kanerva COMMAND --help lists the flags of a command; kanerva train PRESET --help those of a preset, and "
        "kanerva experiment NAME --help those of an experiment."
    )
