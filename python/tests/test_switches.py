"""The words that switches in the environment take, in one place for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from deltarelay import _switches

NAME = "DELTARELAY_VLLM"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *((word, True) for word in ("1", "true", "TRUE", "yes", "On", " 1 ")),
        *((word, False) for word in ("0", "false", "No", "off")),
        *((word, None) for word in (None, "", " ")),
    ],
)
def test_words(word: str | None, expected: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if word is not None:
        monkeypatch.setenv(NAME, word)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _switches.switch(NAME) is expected


def test_an_unknown_word_is_named_once_and_switches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_switches, "_warned", set())
    monkeypatch.setenv(NAME, "ture")
    with pytest.warns(RuntimeWarning, match=f"{NAME}: expected one of 1, true, .*, or nothing, found 'ture'"):
        assert _switches.switch(NAME) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _switches.switch(NAME) is None


def test_the_import_survives_an_unknown_word() -> None:
    environment = {**os.environ, "DELTARELAY_FLA": "ture"}
    code = "import sys, deltarelay; print('fla' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr
    assert "DELTARELAY_FLA: expected one of" in done.stderr
