"""Triton kernels: on CUDA, and in main memory through Triton's interpreter (``backend.py`` first; decision 0019)."""
