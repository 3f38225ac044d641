"""`deltarelay.fla.enable()` with FLA's dispatch as recorded (fakes), and with the FLA that is installed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from conftest import Case, has
from fla_witness import fakes

import deltarelay
from deltarelay.fla import Drift, _backend


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Any]:
    """Puts a fake FLA in place of any other, for one test."""

    def put(modules: dict[str, Any]) -> Any:
        for name in [name for name in sys.modules if name == "fla" or name.startswith("fla.")]:
            monkeypatch.delitem(sys.modules, name)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(_backend, "state", _backend._State())
        monkeypatch.delenv("DELTARELAY_FLA", raising=False)
        return modules

    return put


def _rows(rule: str) -> list[numpy.ndarray]:
    return [x[None] for x in Case(rule, [70]).rows]


def _functions(modules: dict[str, Any]) -> tuple[Any, Any]:
    return modules["fla.ops.kda"].chunk_kda, modules["fla.ops.gated_delta_rule"].chunk_gated_delta_rule


@pytest.mark.parametrize("make", [fakes.older, fakes.newer])
def test_both_registries(install: Any, make: Any) -> None:
    kda, gdn = _functions(install(make()))
    assert not deltarelay.fla.status().enabled and "not registered" in str(deltarelay.fla.status())
    assert kda(*_rows("kda")) == "FLA"
    report = deltarelay.fla.enable()
    pieces = 6 if make is fakes.older else 7
    assert report.enabled and len(report.registered) == 2 + pieces and not report.problems
    assert any("gla.chunk_gla_fwd_o_gk: FLA" in text for text in report.unreachable) == (pieces == 6)
    assert "fused_recurrent" in str(report) and "enabled" in str(report)
    o, final = kda(*_rows("kda"), output_final_state=True)
    assert numpy.array_equal(o, deltarelay.chunk_kda(*_rows("kda"))[0]) and final.shape == (1, 2, 16, 24)
    assert numpy.array_equal(gdn(*_rows("gdn"))[0], deltarelay.chunk_gdn(*_rows("gdn"))[0])
    assert deltarelay.fla.status().taken == {"chunk_kda": 1, "chunk_gated_delta_rule": 1}
    deltarelay.fla.disable()
    assert kda(*_rows("kda")) == "FLA" and not deltarelay.fla.status().enabled
    deltarelay.fla.enable()
    assert kda(*_rows("kda")) != "FLA"


def test_declined_calls_go_on(install: Any) -> None:
    kda, gdn = _functions(install(fakes.newer()))
    deltarelay.fla.enable()
    assert kda(*_rows("kda"), cp_context=object()) == "FLA"
    assert deltarelay.last_call().declined == (
        "chunk_kda: cp_context: expected None, found object: context parallelism over several GPUs is not supported "
        "(inside one GPU it is automatic)"
    )
    assert deltarelay.last_call().plan is None
    assert gdn(*_rows("gdn"), head_first=True) == "FLA"
    assert gdn(*_rows("gdn"), chunk_size=48) == "FLA"
    status = deltarelay.fla.status()
    assert status.taken == {} and sum(status.declined.values()) == 3
    assert "declined: chunk_gated_delta_rule: chunk_size: expected 16, 32 or 64, found 48 (1 calls)" in str(status)
    kda(*_rows("kda"))
    assert deltarelay.last_call().declined == "" and deltarelay.last_call().backend


def test_unknown_keywords(install: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that is not used is left out, and said once; one that is used is a reason to decline."""
    kda, _ = _functions(install(fakes.newer()))
    deltarelay.fla.enable()
    with caplog.at_level(logging.INFO, "deltarelay.fla"):
        for _ in range(2):
            assert kda(*_rows("kda"), added_later=None, another=False) != "FLA"
    assert [record.message for record in caplog.records].count(
        "chunk_kda: the keyword added_later=None is not known here and was left out"
    ) == 1
    assert kda(*_rows("kda"), added_later=1) == "FLA"
    assert "added_later" in deltarelay.last_call().declined


def test_errors_of_the_device_are_raised(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLA takes an exception in a verifier for a refusal; one of the device must not be lost."""
    kda, _ = _functions(install(fakes.newer()))
    deltarelay.fla.enable()

    def fail(*_: Any, **__: Any) -> Any:
        raise deltarelay.DeviceError("out of order")

    monkeypatch.setitem(_backend.OURS, ("kda", "chunk_kda"), fail)
    with pytest.raises(deltarelay.DeviceError, match="out of order"):
        kda(*_rows("kda"))


def test_position_that_moved(install: Any) -> None:
    """0.5.2 has cp_context where 0.6.0 has chunk_indices."""
    _, gdn = _functions(install(fakes.older()))
    deltarelay.fla.enable()
    options = (None, None, False, False, False, False, False, None, None)
    assert gdn(*_rows("gdn"), *options, object()) == "FLA"
    assert "cp_context" in deltarelay.last_call().declined
    assert gdn(*_rows("gdn"), *options, None) != "FLA"


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (lambda: fakes.newer(kda=fakes.KDA_060.replace("safe_gate=False, ", "")), "no parameter safe_gate"),
        (lambda: fakes.newer(gdn="x, " + fakes.GDN_060), "wants x, which is not known"),
        (
            lambda: fakes.newer(gdn=fakes.GDN_060.replace("state_v_first=False", "state_v_first=True")),
            "defaults changed: state_v_first",
        ),
        (lambda: fakes.newer(deaf=True), "registered with fla.backends, but FLA fake does not ask us"),
        (lambda: fakes.older(operations=("kda", "common")), "no registry 'gated_delta_rule'"),
    ],
)
def test_drift(install: Any, monkeypatch: pytest.MonkeyPatch, modules: Any, message: str) -> None:
    import importlib.metadata

    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    install(modules())
    with pytest.raises(Drift, match=message):
        deltarelay.fla.enable()
    assert not deltarelay.fla.status().enabled


def test_added_parameters_are_named(install: Any) -> None:
    kda, _ = _functions(install(fakes.newer(kda=fakes.KDA_060.replace("cu_seqlens=None", "window=0, cu_seqlens=None"))))
    with pytest.warns(RuntimeWarning, match="chunk_kda: FLA's parameters window are not known here"):
        report = deltarelay.fla.enable()
    assert "window" in str(report)
    assert kda(*_rows("kda"), window=3) == "FLA"
    assert kda(*_rows("kda"), cu_seqlens=numpy.array([0, 70])) != "FLA"


def _piece(key: tuple[str, str], change: Any) -> Any:
    module, parameters = fakes.PIECES_060[key]
    return fakes.newer(pieces={**fakes.PIECES_060, key: change(module, parameters)})


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        (("common", "chunk_fwd_o"), lambda m, p: (m, p + ", window=0"), "new parameters window"),
        (("kda", "recompute_w_u_fwd"), lambda m, p: (m, p.replace("gk, ", "")), "no parameter gk any more"),
        (
            ("common", "chunk_gated_delta_rule_fwd_h"),
            lambda m, p: (m, p.replace("chunk_size=64", "chunk_size=128")),
            "defaults changed: chunk_size",
        ),
        (("gla", "chunk_gla_fwd_o_gk"), lambda m, p: ("fla.ops.gla.elsewhere", p), "has no fla.ops.gla.chunk"),
    ],
)
def test_a_piece_that_changed_is_left_to_fla(install: Any, key: tuple[str, str], change: Any, message: str) -> None:
    """FLA's inner functions change often: one that did is left alone, loudly, and the rest stays ours."""
    kda, _ = _functions(install(_piece(key, change)))
    with pytest.warns(RuntimeWarning, match=f"{message}.*; this piece is left to FLA"):
        report = deltarelay.fla.enable()
    (problem,) = report.problems
    assert problem.startswith(".".join(key)) and len(report.registered) == 8
    assert not any(text.startswith(".".join(key)) for text in report.registered)
    assert kda(*_rows("kda")) != "FLA"


def test_pieces_without_a_registry(install: Any) -> None:
    install(fakes.older(operations=("kda", "gated_delta_rule")))
    with pytest.warns(RuntimeWarning, match="common.chunk_gated_delta_rule_fwd_h, common.chunk_fwd_o: FLA .* has no r"):
        report = deltarelay.fla.enable()
    assert report.enabled and len(report.registered) == 6


def test_two_functions_of_one_name(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """recompute_w_u_fwd is in two registries; each call reaches its own."""
    modules = install(fakes.newer())
    deltarelay.fla.enable()
    for operation in ("kda", "gated_delta_rule"):
        monkeypatch.setitem(
            _backend.OURS, (operation, "recompute_w_u_fwd"), lambda *args, ours=operation, **kwargs: (ours, args)
        )
    assert modules["fla.ops.kda.wy_fast"].recompute_w_u_fwd(1, 2, 3, 4, 5) == ("kda", (1, 2, 3, 4, 5))
    assert modules["fla.ops.gated_delta_rule.wy_fast"].recompute_w_u_fwd(1, 2, 3, 4) == (
        "gated_delta_rule",
        (1, 2, 3, 4),
    )
    assert deltarelay.fla.status().taken == {"kda.recompute_w_u_fwd": 1, "gated_delta_rule.recompute_w_u_fwd": 1}
    deltarelay.fla.disable()
    with pytest.raises(AttributeError):  # FLA's own looks at its tensor
        modules["fla.ops.kda.wy_fast"].recompute_w_u_fwd(1, 2, 3, 4, 5)


def test_neither_registry(install: Any) -> None:
    modules = fakes.newer()
    del modules["fla.backends"]
    install(modules)
    with pytest.raises(Drift, match=r"neither fla.backends .* nor fla.ops.backends"):
        deltarelay.fla.enable()


def test_dispatch_switched_off(install: Any) -> None:
    kda, _ = _functions(install(fakes.newer(disabled=True)))
    report = deltarelay.fla.enable()
    assert not report.enabled and "FLA_DISABLE_BACKEND_DISPATCH=1" in str(report)
    assert kda(*_rows("kda")) == "FLA"


def test_switched_off_by_environment(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fakes.newer())
    monkeypatch.setenv("DELTARELAY_FLA", "0")
    assert "DELTARELAY_FLA=0 is set" in str(deltarelay.fla.enable())
    assert not deltarelay.fla.status().enabled


@pytest.mark.parametrize("word", ["false", "No", "off"])
def test_switched_off_by_other_words(install: Any, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    install(fakes.newer())
    monkeypatch.setenv("DELTARELAY_FLA", word)
    assert f"DELTARELAY_FLA={word} is set" in str(deltarelay.fla.enable())


# An empty folder named fla on the path is a package for Python. It gives way to one that is installed.
FOLDER = """
import importlib.machinery, importlib.util, sys
spec = importlib.machinery.ModuleSpec("fla", None, is_package=True)
spec.submodule_search_locations = ["/somewhere/fla"]
folder = importlib.util.module_from_spec(spec)
folder.__file__ = None
sys.modules["fla"] = folder
"""


def test_a_folder_named_fla(install: Any) -> None:
    import types

    folder = types.ModuleType("fla")
    folder.__file__, folder.__path__ = None, ["/somewhere/fla"]  # type: ignore[assignment]
    install({"fla": folder})
    expected = "expected flash-linear-attention or fla-core .*, found a folder .* without __init__.py: /somewhere/fla"
    with pytest.raises(ModuleNotFoundError, match=expected) as caught:
        deltarelay.fla.enable()
    assert caught.value.name == "fla"


@pytest.mark.parametrize("word", ["1", "true"])
def test_importing_with_a_folder_named_fla(word: str) -> None:
    done = _run(FOLDER + "import deltarelay; print(deltarelay.fla.status())", DELTARELAY_FLA=word)
    assert done.returncode == 0 and "not registered" in done.stdout, done.stderr
    assert "FLA is not installed: nothing was registered" in done.stderr


def test_importing_with_an_fla_that_has_drifted() -> None:
    code = "import sys, types; sys.modules['fla'] = types.ModuleType('fla'); import deltarelay; print('imported')"
    done = _run(code, DELTARELAY_FLA="yes")
    assert done.stdout.strip() == "imported", done.stderr
    assert "nothing was registered: FLA" in done.stderr


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=everything, capture_output=True, text=True, timeout=300)


def test_importing_changes_nothing() -> None:
    done = _run(
        "import sys, deltarelay, deltarelay.fla; print(sorted({'fla', 'torch'} & set(sys.modules)))", DELTARELAY_FLA=""
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.skipif(not (has("torch") and has("fla")), reason="torch or fla-core is not installed")
def test_environment_with_the_installed_fla() -> None:
    code = "import deltarelay; print(deltarelay.fla.status())"
    done = _run(code, DELTARELAY_FLA="1")
    assert "registered: chunk_kda" in done.stdout and "registered: chunk_gated_delta_rule" in done.stdout, done.stderr
    done = _run(code, DELTARELAY_FLA="1", FLA_DISABLE_BACKEND_DISPATCH="1")
    assert "FLA_DISABLE_BACKEND_DISPATCH=1" in done.stdout and "disabled" in done.stdout, done.stderr
    assert "RuntimeWarning" in done.stderr


@pytest.mark.skipif(not (has("torch") and has("fla")), reason="torch or fla-core is not installed")
def test_recorded_signatures_are_those_of_the_installed_fla() -> None:
    """Against the release this adapter was written for, in full; others are compared by `enable()` itself."""
    import importlib.metadata
    import inspect

    from deltarelay.fla import _registry, _signatures

    if importlib.metadata.version("fla-core") != "0.6.0":
        pytest.skip(f"fla-core {importlib.metadata.version('fla-core')} is installed, not 0.6.0")
    for hook in _signatures.HOOKS.values():
        parameters = inspect.signature(inspect.unwrap(_registry.function_of(hook))).parameters.values()
        found = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
        assert list(found.items()) == list(hook.recorded.items()), hook.label
    assert not deltarelay.fla.enable().problems
