"""What the driver's management library says about a GPU while something runs on it, as evidence for or against samples.

Reading order: :mod:`binding` reaches the library, :mod:`device` reads it once, :mod:`sampler_process` reads it
again and again in a process of its own, :mod:`sampler` starts that and collects, :mod:`energy` and :mod:`evidence`
make figures of the records, :mod:`rejection` says which samples do not count.
"""
