"""What the binding costs over an empty kernel. Printed; judged only where it cannot be the machine's fault."""

from __future__ import annotations

import overhead
import pytest
from conftest import FRAMEWORKS

from deltarelay import _call


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_overhead(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    if _call._core is None:
        pytest.skip("no extension here")
    found = overhead.measure(framework)
    with capsys.disabled():
        for name, us in found.items():
            print(f"\n  {framework}, empty kernel, {name}: {us:.1f} us", end="")
        print()
    assert max(found.values()) < 200, (
        "ten times what a slow machine needs: something is done in every call that should not be"
    )
