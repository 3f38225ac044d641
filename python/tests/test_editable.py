"""An editable installation has its modules in the sources and its compiled files in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deltarelay import _command, _library

PROGRAM = """
import importlib.util, sys
modules, compiled = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "deltarelay", modules + "/__init__.py", submodule_search_locations=[modules, compiled])
package = importlib.util.module_from_spec(spec)
sys.modules["deltarelay"] = package
spec.loader.exec_module(package)
from deltarelay import _command, _library
print(package.__file__, _library.origin()[1], _command.command_path(), sep="\\n")
package.info()
"""


def test_modules_and_compiled_files_in_two_folders(tmp_path: Path) -> None:
    modules, compiled = tmp_path / "modules", tmp_path / "compiled"
    modules.mkdir()
    (compiled / "bin").mkdir(parents=True)
    for path in Path(_library.__file__).parent.iterdir():
        if path.suffix == ".py" or path.is_dir():
            (modules / path.name).symlink_to(path)
    (modules / "bin").unlink(missing_ok=True)
    library, command = _library.origin()[1], Path(_command.command_path())
    (compiled / library.name).symlink_to(library)
    (compiled / "bin" / command.name).symlink_to(command)
    for path in library.parent.glob("_core*.so"):
        (compiled / path.name).symlink_to(path)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DELTARELAY_LIBRARY", "DELTARELAY_COMMAND")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(modules), str(compiled)],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [Path(line) for line in done.stdout.splitlines()[:3]]
    assert shown == [modules / "__init__.py", compiled / library.name, compiled / "bin" / command.name]
