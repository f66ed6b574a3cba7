"""What has nothing to do with memory.

door     what does a public function do before and after its work?
checks   what must arguments be, and how is that said?
linalg   the small dense algebra that the memory and its kernels share
pixels   what do the bytes of an image mean, and how far apart are two images?
files    how is a file written whole, and where is the cache?
tensors  named tensors and a description in one file
say      lines and progress, also where nobody listens
configs  configs as JSON, and back
plain    JSON that any program can read
jit      loops compiled by Numba
spelling which of the known words was meant
"""
