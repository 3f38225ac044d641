"""`python -m deltarelay` is the command `deltarelay`."""

from ._command import main

main()
