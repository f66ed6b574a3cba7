"""What has nothing to do with memory.

door         what does a public function do before and after its work?
checks       what must arguments be, and how is that said?
linalg       the small dense algebra that the memory and its kernels share
pixels       what do the bytes of an image mean, and how far apart are two images?
files        how is a file written whole, and where is the cache?
tensors      how do tensors and what is said of them become one file?
say          how does a line, progress, or a guess at a misspelt word reach people?
strict_json  which JSON can any program read?
configs      how do configs become JSON, and come back?
loops        how are loops for the CPU compiled, and where are they kept?
"""
