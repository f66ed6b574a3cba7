"""How a model is trained and scored. Read loop.py first.

config     what may be set?
presets    which runs have a name?
loop       what happens in a run, from its first step to its last?
step       what is one training step, on a CPU and as a CUDA graph?
run        what is in a run's folder, and when may a run go on?
metrics    what does a run report?
evaluate   how good is a model on images that it has not seen?
processes  what do several processes of a run share?
"""
