"""What has nothing to do with memory.

door     what does a public function do before and after its work?
checks   what must arguments be, and how is that said?
linalg   the small dense algebra that the memory and its kernels share
"""
