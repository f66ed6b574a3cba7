"""Other memories for images, in the same harness, one file each.

nearest    what does one get who keeps every image?
hopfield   what does attention over all that was kept find?
vae        how hard are the images without a memory?
km         what do learned keys do in place of addresses from the memory?
gpm        what do pseudo-inverses do in place of Bayesian inference?
dnc        what does a controller learn to write?
gaussian   what they draw and infer
"""
