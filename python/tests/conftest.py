"""What tests share: frameworks, bindings, and the recurrence written down once, token by token."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import deltarelay
from deltarelay import _call


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


FRAMEWORKS = [
    "numpy",
    pytest.param("torch", marks=pytest.mark.skipif(not has("torch"), reason="torch is not installed")),
]


def pytest_report_header() -> list[str]:
    versions = [f"numpy {numpy.__version__}"]
    for module in ("torch", "fla", "transformers"):
        if has(module):
            import importlib.metadata

            name = {"fla": "fla-core"}.get(module, module)
            versions.append(f"{module} {importlib.metadata.version(name)}")
        else:
            versions.append(f"{module} none")
    about = deltarelay.info()
    return ["ran with: " + ", ".join(versions), f"library: {about['build']} ({about['library_from']})"]


@pytest.fixture(params=["extension", "ctypes"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to call, in one process."""
    if request.param == "ctypes":
        monkeypatch.setattr(_call, "_binding", _call._by_ctypes("a test asks for it"))
    elif _call._binding.name != "extension":
        pytest.skip(f"no extension here: {_call._binding.why}")
    yield request.param


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return request.param


def to(framework: str, array: Any) -> Any:
    """A NumPy array as a tensor of the framework, in memory of its own."""
    if array is None or framework == "numpy":
        return array
    import torch

    return torch.from_numpy(numpy.array(array))


def back(tensor: Any) -> numpy.ndarray:
    return (
        tensor
        if isinstance(tensor, numpy.ndarray)
        else tensor.float().numpy()
        if tensor.is_floating_point()
        else tensor.numpy()
    )


class Case:
    """Random tensors of one packed call, fp32, with what they should give. Log gates, states key-major."""

    def __init__(
        self, rule: str, lengths: list[int], hqk: int = 1, hv: int = 2, dk: int = 16, dv: int = 24, seed: int = 0
    ):
        draw = numpy.random.default_rng(seed)
        tokens = sum(lengths)

        def normal(*shape: int) -> numpy.ndarray:
            return draw.standard_normal(shape).astype(numpy.float32)

        def unit(*shape: int) -> numpy.ndarray:
            rows = normal(*shape)
            return rows / numpy.sqrt((rows * rows).sum(-1, keepdims=True))

        self.rule, self.lengths = rule, lengths
        self.offsets = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
        self.q, self.k, self.v = unit(tokens, hqk, dk), unit(tokens, hqk, dk), normal(tokens, hv, dv)
        self.g = -numpy.abs(normal(tokens, hv, dk) if rule == "kda" else normal(tokens, hv)) / 4
        self.beta = draw.uniform(0, 1, (tokens, hv)).astype(numpy.float32)
        self.initial = normal(len(lengths), hv, dk, dv)

    @property
    def rows(self) -> tuple[numpy.ndarray, ...]:
        return self.q, self.k, self.v, self.g, self.beta

    def expected(self, initial: bool = True) -> tuple[numpy.ndarray, numpy.ndarray]:
        """(o, final states), by the definition, in double precision."""
        group = self.v.shape[1] // self.q.shape[1]
        q, k = (numpy.repeat(x, group, axis=1).astype(float) for x in (self.q, self.k))
        decay = numpy.exp(self.g.astype(float))
        decay = decay if self.rule == "kda" else decay[..., None]
        o, final = numpy.zeros(self.v.shape), numpy.zeros(self.initial.shape)
        for n, (begin, end) in enumerate(zip(self.offsets, self.offsets[1:])):
            state = self.initial[n].astype(float) if initial else numpy.zeros(self.initial.shape[1:])
            for t in range(begin, end):
                state = decay[t][..., None] * state
                error = self.v[t] - numpy.einsum("hkv,hk->hv", state, k[t])
                state = state + numpy.einsum("hk,hv->hkv", k[t] * self.beta[t][:, None], error)
                o[t] = numpy.einsum("hkv,hk->hv", state, q[t]) * q.shape[-1] ** -0.5
            final[n] = state
        return o, final


def close(found: Any, expected: numpy.ndarray, tolerance: float = 2e-5) -> None:
    found = back(found).astype(float)
    assert found.shape == expected.shape
    scale = max(1e-6, float(numpy.sqrt((expected**2).mean())) if expected.size else 1.0)
    error = float(numpy.abs(found - expected).max()) / scale if expected.size else 0.0
    assert error < tolerance, f"largest error {error:.2e} of the rms, expected below {tolerance:.0e}"
