"""python -m kanerva, as torchrun needs it."""

from .cli import main

main()
