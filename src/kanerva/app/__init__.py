"""What people run on one machine. Nothing below imports it.

commands.py    what does each command of `kanerva` take, do and print?
flags.py       how are flags read, and what is said of a wrong one?
train.py       what is `kanerva train` asked to train?
pictures.py    what becomes of the user's own pictures in a memory?
inspect.py     what does a saved memory say of itself?
sheets.py      how do images come onto a PNG file?
report/        what was trained, and how well, on one HTML page?
play/          what can a visitor do to a memory, on a page in the browser?
"""
