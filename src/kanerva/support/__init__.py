"""What has nothing to do with memory.

pixels   what do the bytes of an image mean, and how far apart are two images?
"""
