"""Adapters for serving engines. Each is an entry point that does nothing unless it is enabled:

    DELTARELAY_VLLM=1      deltarelay.engines.vllm.register
    DELTARELAY_SGLANG=1    deltarelay.engines.sglang.register

`status()` of each says what was taken over, and counts the calls that were taken and declined, and why. See
docs/python-engines.md.
"""
