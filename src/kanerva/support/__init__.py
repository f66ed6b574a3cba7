"""What has nothing to do with memory.

door     what does a public function do before and after its work?
checks   what must arguments be, and how is that said?
linalg   the small dense algebra that the memory and its kernels share
files    how is a file written whole, kept, locked or fetched?
tensors  how do tensors and what is said of them become one file?
say      how does a line, or progress, reach people?
configs  how do configs become JSON, and come back?
plain    which JSON can any program read?
jit      compiled functions for the CPU, and where they are kept
spelling which of the known words was meant?
"""
