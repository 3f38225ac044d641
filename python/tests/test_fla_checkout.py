"""FLA's own test files, unchanged, through our pytest plug-in, where DELTARELAY_FLA_CHECKOUT names a checkout of FLA.

On a CPU most of the time goes into FLA's token loops; DELTARELAY_FLA_SELECT is a `-k` expression for fewer. The FLA
that is installed runs, not the checkout's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import has

CHECKOUT = os.environ.get("DELTARELAY_FLA_CHECKOUT", "")
# The chunk tests. Left out: FLA's own gate kernels, other backends, and fused_recurrent, where FLA asks no backend.
SELECT = "chunk and not fused_recurrent and not naive and not flash and not blackwell"
COMMAND = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "deltarelay.fla.pytest_plugin"]
COMMAND += ["-o", "pythonpath=", "-o", "log_cli=false"]

pytestmark = pytest.mark.skipif(not (has("torch") and has("fla")), reason="torch or fla-core is not installed")


def _run(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)}
    done = subprocess.run([*COMMAND, *arguments], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(not CHECKOUT, reason="DELTARELAY_FLA_CHECKOUT names no checkout of FLA")
@pytest.mark.parametrize("file", ["test_kda.py", "test_gdn.py"])
def test_file(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    select = os.environ.get("DELTARELAY_FLA_SELECT", "")
    path = Path(CHECKOUT).resolve() / "tests" / "ops" / file
    text = _run(str(path), "-k", f"({SELECT}) and ({select})" if select else SELECT, folder=tmp_path)
    with capsys.disabled():
        print(f"\n{file}: " + text[text.index("DeltaRelay in FLA") :].partition("\n")[2])
    assert re.search(r"chunk_\w+: [1-9]\d* calls reached us", text)


def test_plugin(tmp_path: Path) -> None:
    """The plug-in on a small file like FLA's: gradients, packing, a call that is declined, NaN in outputs."""
    (tmp_path / "test_small.py").write_text(SMALL)
    text = _run("test_small.py", folder=tmp_path)
    assert "3 passed" in text
    assert "chunk_kda: 2 calls reached us" in text and "chunk_gated_delta_rule: 1 calls reached us" in text
    assert "declined: 1 calls" in text and "1 x chunk_kda: chunk_size: expected 32 or 64, found 16" in text


SMALL = """
import pytest, torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.kda import chunk_kda
from fla.ops.kda.naive import naive_recurrent_kda
from fla.utils import device


def leaves(*tensors):
    return [x.to(device).requires_grad_(True) for x in tensors]


def test_gradients():
    torch.manual_seed(0)
    q, k, v = (torch.nn.functional.normalize(torch.randn(1, 70, 2, 16), dim=-1) for _ in range(3))
    q, k, v, g, beta, h0 = leaves(q, k, v, -torch.rand(1, 70, 2, 16), torch.rand(1, 70, 2), torch.randn(1, 2, 16, 16))
    want = naive_recurrent_kda(q, k, v, g, beta, None, h0, True)
    expected = torch.autograd.grad(sum(x.square().sum() for x in want), (q, k, v, g, beta, h0))
    got = chunk_kda(q, k, v, g, beta, initial_state=h0, output_final_state=True)
    found = torch.autograd.grad(sum(x.square().sum() for x in got), (q, k, v, g, beta, h0))
    for a, b in zip((*want, *expected), (*got, *found)):
        assert (a - b).abs().max() < 1e-4 * a.abs().max()


def test_packed_raw_gates_v_first():
    torch.manual_seed(1)
    rows = [torch.randn(1, 90, 2, 16) for _ in range(3)]
    q, k, v, g, beta, h0 = leaves(*rows, torch.randn(1, 90, 2), torch.randn(1, 90, 2), torch.randn(2, 2, 16, 16))
    a_log, bias = leaves(torch.rand(2), torch.rand(2))
    o, final = chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=h0, output_final_state=True, state_v_first=True, use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, use_gate_in_kernel=True, A_log=a_log, dt_bias=bias,
        cu_seqlens=torch.tensor([0, 20, 80], device=device),
    )
    assert o[:, 80:].eq(0).all() and not o.isnan().any()
    (o.sum() + final.sum()).backward()
    gate = -a_log.exp() * torch.nn.functional.softplus(g + bias)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    part = [x[:, 20:80] for x in (q, k, v, beta.sigmoid(), gate)]
    first = h0[1:].transpose(-1, -2)
    want, state = naive_recurrent_gated_delta_rule(*part, initial_state=first, output_final_state=True)
    assert (o[:, 20:80] - want).abs().max() < 1e-4 and (final[1:].transpose(-1, -2) - state).abs().max() < 1e-4
    assert a_log.grad.abs().sum() > 0 and bias.grad.abs().sum() > 0


def test_declined():
    rows = [torch.randn(1, 8, 1, 16, device=device) for _ in range(4)]
    with pytest.raises(ValueError, match="chunk_size"):
        chunk_kda(*rows, torch.rand(1, 8, 1, device=device), chunk_size=16)
    o, _ = chunk_kda(*rows, torch.rand(1, 8, 1, device=device))
    assert not o.isnan().any()
"""
