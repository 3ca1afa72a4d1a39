"""Lets vLLM run its Triton kernels on the CPU, in Triton's interpreter.

vLLM uses Triton on the CPU only where Triton has a backend of that name. Interpreted kernels are compiled by none, so one that
does nothing will do.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from types import SimpleNamespace

    from triton.backends import backends

    backends.setdefault("cpu", SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True)))
