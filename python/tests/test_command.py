"""The command inside the package."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from deltarelay import _command


def run(*arguments, **environment):
    command = [sys.executable, "-m", "deltarelay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_module_is_the_command():
    shown = run("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("deltarelay ")


def test_exit_codes_and_errors_come_through():
    shown = run("verify", "kda seqs=-1")
    assert shown.returncode != 0
    assert "seqs" in shown.stdout + shown.stderr


def test_a_case_is_verified():
    shown = run("verify", "kda bf16 hv=2 dk=64 seqs=300,65 init final segments=2")
    assert shown.returncode == 0, shown.stdout + shown.stderr


def test_the_command_that_the_environment_names(tmp_path):
    shown = run("info", DELTARELAY_COMMAND=str(tmp_path / "none"))
    assert shown.returncode == 1
    assert "DELTARELAY_COMMAND" in shown.stderr and str(tmp_path / "none") in shown.stderr


def test_path_is_a_program():
    assert os.access(_command.command_path(), os.X_OK)


def test_plugins_are_named_as_engines_look_for_them():
    try:
        found = importlib.metadata.distribution("deltarelay").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("deltarelay is on the path and not installed: it has no entry points")
    assert {(point.group, point.name) for point in found} >= {
        ("console_scripts", "deltarelay"),
        ("vllm.general_plugins", "deltarelay"),
        ("sglang.srt.plugins", "deltarelay"),
    }
