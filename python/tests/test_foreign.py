"""Tensors that are more than memory: each is handled, or refused by a message that names it. Both bindings."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy
import pytest

torch = pytest.importorskip("torch")

from conftest import Case, to

import deltarelay

pytestmark = pytest.mark.usefixtures("binding")
ROWS = ("q", "k", "v", "g", "beta")


@pytest.fixture
def x() -> dict[str, Any]:
    """Tensors of a packed GDN call by their names."""
    case = Case("gdn", [20, 0, 17])
    tensors = {name: to("torch", getattr(case, name)) for name in (*ROWS, "initial")}
    return {**tensors, "seq_offsets": to("torch", case.offsets)}


def forward(x: dict[str, Any], **changes: Any) -> Any:
    given = {**x, **changes}
    rows = [given.pop(name) for name in ROWS]
    return deltarelay.forward("gdn", *rows, state_layout="key_major", final=True, **given)


def same(found: Any, expected: Any) -> None:
    for mine, other in zip(found[:2], expected[:2]):
        assert torch.equal(mine, other)


def refused(x: dict[str, Any], name: str, value: Any, words: str, error: Any = deltarelay.WrongType) -> None:
    with pytest.raises(error, match=rf"^{name}: expected .*{words}"):
        forward(x, **{name: value})


# ---- of torch, and read


def test_parameters(x: dict[str, Any]) -> None:
    frozen = {name: torch.nn.Parameter(x[name], requires_grad=False) for name in (*ROWS, "initial")}
    same(forward(x, **frozen), forward(x))


@pytest.mark.parametrize("name", [*ROWS, "initial"])
def test_tensors_that_require_grad(x: dict[str, Any], name: str) -> None:
    expected = forward(x)
    x[name].requires_grad_()
    with pytest.raises(
        deltarelay.Unsupported, match=f"^{name}: expected a tensor that does not require grad.*no backward yet"
    ):
        forward(x)
    with torch.no_grad():
        same(forward(x), expected)
    with torch.inference_mode():
        same(forward(x), expected)


def test_results_of_no_grad_do_not_require_grad(x: dict[str, Any]) -> None:
    with torch.no_grad():
        found = forward(x, q=torch.nn.Parameter(x["q"]))
    assert not found.o.requires_grad and found.o.is_leaf


def test_a_frozen_model_under_grad_mode(x: dict[str, Any]) -> None:
    assert torch.is_grad_enabled()
    projection = torch.nn.Linear(16, 16).requires_grad_(False)
    found = forward(x, q=projection(x["q"]))
    with torch.no_grad():
        same(found, forward(x, q=projection(x["q"])))


def test_given_outputs_come_back(x: dict[str, Any]) -> None:
    o, pool = torch.empty_like(x["v"]), x["initial"].clone()
    with torch.no_grad():
        found = deltarelay.forward(
            "gdn",
            torch.nn.Parameter(x["q"]),
            *(x[name] for name in ROWS[1:]),
            seq_offsets=x["seq_offsets"],
            initial=pool,
            final=pool,
            o=o,
            state_layout="key_major",
        )
    assert found.o is o and found.final is pool
    same((o, pool), forward(x))


def test_inference_tensors(x: dict[str, Any]) -> None:
    expected = forward(x)
    with torch.inference_mode():
        inside = {name: value.clone() for name, value in x.items()}
        found = forward(inside)
        assert found.o.is_inference()
    same(forward(inside), expected)
    same(found, expected)


@pytest.mark.parametrize("name", [*ROWS, "initial"])
def test_negations_that_are_put_off(x: dict[str, Any], name: str) -> None:
    view = torch.complex(torch.zeros_like(x[name]), -x[name]).conj().imag
    assert view.is_neg()
    same(forward(x, **{name: view}), forward(x))


def test_negated_outputs(x: dict[str, Any]) -> None:
    view = torch.zeros(*x["v"].shape, dtype=torch.complex64).conj().imag
    refused(x, "o", view, "negation put off")


def test_expanded_tensors_are_copied(x: dict[str, Any]) -> None:
    for name, axis in (("beta", 1), ("g", 1), ("initial", 0), ("v", 0)):
        one = x[name].narrow(axis, 0, 1)
        wide = one.expand(x[name].shape)
        same(forward(x, **{name: wide}), forward(x, **{name: wide.contiguous()}))
        forward(x, **{name: wide})
        assert deltarelay.last_call().copies == (name,)


def test_expanded_outputs_are_refused(x: dict[str, Any]) -> None:
    refused(x, "o", torch.empty(1, *x["v"].shape[1:]).expand(x["v"].shape), "distinct elements", deltarelay.Invalid)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_transposed_rows_are_copied(x: dict[str, Any], name: str) -> None:
    moved = x[name].transpose(-1, -2).contiguous().transpose(-1, -2)
    if x[name].shape[1] == 1:  # an axis with one index has no order
        moved = x[name].transpose(0, -1).contiguous().transpose(0, -1)
    assert not moved.is_contiguous()
    same(forward(x, **{name: moved}), forward(x))
    forward(x, **{name: moved})
    assert deltarelay.last_call().copies == (name,)


def test_slices_of_one_tensor_are_read_as_they_lie(x: dict[str, Any]) -> None:
    both = torch.cat([x["q"], x["k"]], dim=-1)
    q, k = both.split(16, dim=-1)
    same(forward(x, q=q, k=k), forward(x))
    forward(x, q=q, k=k)
    assert deltarelay.last_call().copies == ()


# ---- of torch, without memory or with more


class Named(torch.Tensor):
    """A subclass that is memory."""


class Wrapped(torch.Tensor):
    """A subclass without memory of its own, that sees every operator."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(function))
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda value: value.inner, (args, kwargs or {}))
        return function(*args, **kwargs)


def test_subclasses(x: dict[str, Any]) -> None:
    expected = forward(x)
    found = forward(x, q=x["q"].as_subclass(Named))
    assert type(found.o) is Named
    same([value.as_subclass(torch.Tensor) for value in found[:2]], expected)
    Wrapped.seen.clear()
    same(forward(x, k=Wrapped(x["k"])), expected)
    assert "deltarelay.forward_o_final.default" in Wrapped.seen


def test_buffers_of_modules(x: dict[str, Any]) -> None:
    same(forward(x, beta=torch.nn.Buffer(x["beta"])), forward(x))


def test_fake_and_meta(x: dict[str, Any]) -> None:
    expected = forward(x)
    with torch._subclasses.FakeTensorMode() as mode:
        found = forward({name: mode.from_tensor(value) for name, value in x.items()})
        assert (found.o.shape, found.final.shape) == (expected.o.shape, expected.final.shape)
    found = forward({name: value.to("meta") for name, value in x.items()})
    assert found.final.is_meta and found.final.stride() == expected.final.stride()


def test_one_meta_tensor_among_others(x: dict[str, Any]) -> None:
    refused(x, "k", x["k"].to("meta"), "found meta")
    with pytest.raises(deltarelay.WrongType, match="^k: expected device meta as q, found cpu"):
        forward(x, q=x["q"].to("meta"))


def test_functional_tensors(x: dict[str, Any]) -> None:
    expected = forward(x)

    def call(q: Any) -> Any:
        return forward(x, q=q).o

    assert torch.equal(torch.func.functionalize(call)(x["q"]), expected.o)


def test_tracing(x: dict[str, Any]) -> None:
    """make_fx writes the operator into its graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda q: forward(x, q=q).o, tracing_mode="fake", _allow_non_fake_inputs=True)(x["q"])
    assert any("forward_o_final" in str(node.target) for node in graph.graph.nodes)


def test_export(x: dict[str, Any]) -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
            return deltarelay.forward("gdn", q, k, v, g, beta, final=True)[:2]

    rows = tuple(x[name] for name in ROWS)
    program = torch.export.export(Model(), rows)
    for mine, other in zip(program.module()(*rows), Model()(*rows)):
        assert torch.equal(mine, other)


# ---- of torch, and refused


def test_dtensors(x: dict[str, Any]) -> None:
    class DTensor(torch.Tensor):
        """Where torch.distributed is missing."""

    stand_in: Any = x["k"].as_subclass(DTensor)
    refused(x, "k", stand_in, "found a DTensor")
    refused(x, "k", stand_in, "to_local")


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo here"
)
def test_dtensors_of_a_mesh(x: dict[str, Any], tmp_path: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        value = distribute_tensor(x["beta"], init_device_mesh("cpu", (1,)), [Replicate()])
        refused(x, "beta", value, "found a DTensor")
        same(forward(x, beta=value.to_local()), forward(x))
    finally:
        torch.distributed.destroy_process_group()


def test_layouts_that_are_not_dense(x: dict[str, Any]) -> None:
    refused(x, "q", x["q"].to_sparse(), "found layout torch.sparse_coo")
    refused(x, "v", x["v"].flatten(1).to_sparse_csr(), "found layout torch.sparse_csr")


def test_quantized(x: dict[str, Any]) -> None:
    refused(x, "q", torch.quantize_per_tensor(x["q"], 0.1, 0, torch.qint8), "quantized")


def test_types(x: dict[str, Any]) -> None:
    refused(x, "q", x["q"].double(), "fp32 or bf16 or fp16, found float64")
    refused(x, "k", x["k"].bfloat16(), "found bf16")
    refused(x, "beta", x["beta"].to(torch.float8_e4m3fn), "found")
    refused(x, "v", torch.complex(x["v"], x["v"]), "found complex64")
    refused(x, "seq_offsets", x["seq_offsets"].float(), "int32 or int64", deltarelay.Error)


def test_transforms(x: dict[str, Any]) -> None:
    two = torch.stack([x["q"], x["q"]])
    with pytest.raises(deltarelay.WrongType, match="^q: expected .* found one of vmap"):
        torch.vmap(lambda q: forward(x, q=q).o)(two)
    with pytest.raises(deltarelay.WrongType, match="^g: expected .* found one of grad"):
        torch.func.grad(lambda g: forward(x, g=g).o.sum())(x["g"])


def test_nested(x: dict[str, Any]) -> None:
    nested = torch.nested.nested_tensor([x["q"][:20], x["q"][20:]], layout=torch.jagged)
    refused(x, "q", nested, "layout torch.jagged")


# ---- of others


@pytest.mark.parametrize("name", [*ROWS, "initial", "seq_offsets"])
def test_objects_that_are_no_tensors(x: dict[str, Any], name: str) -> None:
    for value in ([1.0, 2.0], 3, "text", object()):
        refused(x, name, value, f"found .*{type(value).__name__}")


@pytest.mark.parametrize("name", [*ROWS, "initial", "seq_offsets"])
def test_libraries_are_not_mixed(x: dict[str, Any], name: str) -> None:
    with pytest.raises(deltarelay.WrongType, match=r"^\w+: expected a tensor of the same library as q"):
        forward(x, **{name: x[name].numpy()})


def test_host_offsets_of_either_library(x: dict[str, Any]) -> None:
    expected = forward(x)
    same(forward(x, host_offsets=x["seq_offsets"].numpy()), expected)
    same(forward(x, host_offsets=x["seq_offsets"].long()), expected)
    every_second = torch.stack([x["seq_offsets"], x["seq_offsets"]], dim=1)[:, 0]
    same(forward(x, host_offsets=every_second), expected)


def test_masked_and_read_only_arrays() -> None:
    case = Case("gdn", [9])
    with pytest.raises(deltarelay.WrongType, match="^q: expected a plain array, found a masked array"):
        deltarelay.forward("gdn", numpy.ma.masked_array(case.q, mask=False), *case.rows[1:])
    o = numpy.zeros_like(case.v)
    o.flags.writeable = False
    with pytest.raises(deltarelay.WrongType, match="^o: expected an array that can be written"):
        deltarelay.forward("gdn", *case.rows, o=o)
