"""What-if sweeps: one step under many policies, sizes, flags and links, compiled without a device and compared.

``axes`` reads what is to vary, ``work`` makes points of it, ``run`` compiles them side by side, ``judge`` says what
each is worth, ``front`` compares them, ``tensors`` and ``search`` find which tensor to keep, recompute or offload.
"""

from __future__ import annotations
