#!/usr/bin/env python3
"""Do the documents tell the truth?

    check_docs.py links                  relative links lead to files and headings that exist
    check_docs.py words                  kernel cards are short enough to be read at once
    check_docs.py results                generated tables equal what bench/results says
    check_docs.py support <command>      docs/support.md holds what `deltarelay support --markdown` prints
    check_docs.py tensors <command>      docs/tensors.md holds what `deltarelay tensors --markdown` prints
    check_docs.py tiling <command>       docs/tiling.md holds what `deltarelay tiling --markdown` prints
    check_docs.py pictures <command>     docs/pictures holds what the commands draw that documents name
                                         (all four: --update writes it)
    check_docs.py code --cc <c> --cxx <c++> --library <libdeltarelay.so>
                                         C and C++ programs in the documents compile, run and end with 0. Those with
                                         CUDA's header compile where a toolkit is, and run where there is a GPU
"""

import argparse
import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import results_table

ROOT = results_table.ROOT
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A kernel card (docs/kernels/*.md) has fewer words than this, as `wc -w` counts them
MOST_CARD_WORDS = 1500
# A command that a document names, and the picture in docs/pictures that it drew
DRAWN = re.compile(r"`deltarelay (plan [^`]*) --svg (\S+\.svg)`")
# Subcommand of `deltarelay` with --markdown -> name of the section that holds its output, documents that have it
PRINTED = {
    "support": ("support matrix", ["docs/support.md"]),
    "tensors": ("tensor list", ["docs/tensors.md"]),
    "tiling": ("tiling tables", ["docs/tiling.md"]),
}


def documents() -> list[pathlib.Path]:
    patterns = ("*.md", "docs/**/*.md", "bench/**/*.md", "src/**/*.md")
    return sorted(document for pattern in patterns for document in ROOT.glob(pattern))


def name_of(document: pathlib.Path) -> str:
    return document.relative_to(ROOT).as_posix()


def anchors(document: pathlib.Path) -> set[str]:
    """The names GitHub gives to headings."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", FENCE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links() -> list[str]:
    problems = []
    for document in documents():
        for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (document.parent / path).resolve() if path else document
            if not target.exists():
                problems.append(f"{name_of(document)}: link to '{link}', which does not exist")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                problems.append(f"{name_of(document)}: link to '{link}', which has no such heading")
    return problems


def check_words() -> list[str]:
    problems = []
    for card in sorted(ROOT.glob("docs/kernels/*.md")):
        words = len(card.read_text(encoding="utf-8").split())
        if words >= MOST_CARD_WORDS:
            problems.append(
                f"{name_of(card)}: expected fewer than {MOST_CARD_WORDS} words, found {words}; "
                "versions and what was tried belong into docs/notebooks"
            )
    return problems


def check_results() -> list[str]:
    problems = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        if results_table.regenerate(text) != text:
            problems.append(
                f"{name_of(document)}: a table differs from its results file; "
                f"scripts/results_table.py --update {name_of(document)} makes it anew"
            )
    for results in sorted(ROOT.glob("bench/results/*.json")):
        table = results.with_suffix(".md")
        expected = results_table.results_table(results_table.load(name_of(results)))
        if not table.exists() or expected not in table.read_text(encoding="utf-8"):
            writers = "scripts/bench_cpu.sh and scripts/gpu_check.sh write both"
            problems.append(f"{name_of(table)}: differs from {name_of(results)}; {writers}")
    return problems


def split_section(document: str, name: str) -> tuple[str, str, str]:
    """What stands before, inside and behind a section; its marks are of the outer two."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, mark, rest = (ROOT / document).read_text(encoding="utf-8").partition(begin)
    inside, end_mark, after = rest.partition(end)
    return before + mark, inside, end_mark + after


def print_markdown(command: str, what: str) -> str:
    return subprocess.run([command, what, "--markdown"], capture_output=True, text=True, check=True).stdout


def check_printed(command: str, what: str) -> list[str]:
    printed = print_markdown(command, what)
    if printed.count("|") < 10:
        return [f"{command} {what} --markdown: expected a table, found:\n{printed}"]
    name, documents_with = PRINTED[what]
    return [
        f"{document}: its section '{name}' is not what the command prints; "
        f"scripts/check_docs.py {what} <command> --update writes it"
        for document in documents_with
        if split_section(document, name)[1].strip() != printed.strip()
    ]


def update_printed(command: str, what: str) -> None:
    name, documents_with = PRINTED[what]
    for document in documents_with:
        before, _, after = split_section(document, name)
        (ROOT / document).write_text(before + print_markdown(command, what).strip() + "\n" + after, encoding="utf-8")


def draw(command: str, words: str) -> str:
    with tempfile.TemporaryDirectory() as work:
        picture = pathlib.Path(work) / "picture.svg"
        subprocess.run([command, *words.split(), "--svg", str(picture)], capture_output=True, check=True)
        return picture.read_text(encoding="utf-8")


def check_pictures(command: str, update: bool = False) -> list[str]:
    problems, drawn = [], set()
    for document in documents():
        for words, name in DRAWN.findall(document.read_text(encoding="utf-8")):
            picture, now = ROOT / "docs" / "pictures" / name, draw(command, words)
            drawn.add(name)
            if update:
                picture.write_text(now, encoding="utf-8")
            elif not picture.exists() or picture.read_text(encoding="utf-8") != now:
                writer = "scripts/check_docs.py pictures <command> --update writes it"
                problems.append(f"{name_of(picture)}: not what the command draws; {writer}")
    for picture in sorted(ROOT.glob("docs/pictures/*")):
        if picture.name not in drawn:
            problems.append(f"{name_of(picture)}: no document says which command drew it")
    return problems


def programs() -> list[tuple[str, str, str]]:
    """(document, language, text) of every block that is a whole program."""
    found = []
    for document in documents():
        for language, text in FENCE.findall(document.read_text(encoding="utf-8")):
            if language in ("c", "cpp") and re.search(r"\bint main\(", text):
                found.append((name_of(document), language, text))
    return found


def cuda_toolkit() -> pathlib.Path | None:
    """The folder of a CUDA toolkit; None where there is none."""
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), nvcc and pathlib.Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    folders = [pathlib.Path(place) for place in places if place]
    return next((folder for folder in folders if (folder / "include" / "cuda_runtime.h").exists()), None)


def finds_gpu(library: str) -> bool:
    """Whether the library was built with CUDA and finds a GPU on this machine."""
    device = ctypes.create_string_buffer(4096)  # a dr_device with room for the fields of later versions
    struct.pack_into("I", device, 0, len(device))
    return ctypes.CDLL(library).dr_device_find(b"cuda:0", device) == 0


def compile_program(compiler: list[str], source: pathlib.Path, folder: pathlib.Path, toolkit: pathlib.Path | None):
    """Makes `program` beside the source; returns what the compiler says if it fails."""
    command = [*compiler, "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(source)]
    command += ["-o", str(source.parent / "program"), f"-L{folder}", "-ldeltarelay", "-lm"]
    if toolkit is not None:
        command += [f"-isystem{toolkit / 'include'}", f"-L{toolkit / 'lib64'}"]
        command += ["-lcudart_static", "-ldl", "-lrt", "-pthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    return built.stderr if built.returncode != 0 else ""


def check_code(cc: str, cxx: str, library: str) -> list[str]:
    found = programs()
    if not any(document == "README.md" for document, _, _ in found):
        return ["README.md: expected a C or C++ program, found none"]
    problems, done = [], {}
    folder = pathlib.Path(library).resolve().parent
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    toolkit, gpu = cuda_toolkit(), finds_gpu(library)
    for document, language, text in found:
        with_cuda = "<cuda_runtime.h>" in text
        if with_cuda and toolkit is None:
            done.setdefault("not compiled: no CUDA toolkit", []).append(document)
            continue
        with tempfile.TemporaryDirectory() as work:
            source = pathlib.Path(work) / ("program.c" if language == "c" else "program.cpp")
            source.write_text(text, encoding="utf-8")
            compiler = [cc, "-std=c11"] if language == "c" else [cxx, "-std=c++20"]
            wrong = compile_program(compiler, source, folder, toolkit if with_cuda else None)
            if wrong:
                problems.append(f"{document}: a {language} program does not compile:\n{wrong}")
                continue
            if with_cuda and not gpu:
                done.setdefault("compiled, not run: no GPU", []).append(document)
                continue
            program = str(source.parent / "program")
            run = subprocess.run([program], capture_output=True, text=True, env=environment, timeout=120, cwd=work)
            if run.returncode != 0:
                words = run.stdout + run.stderr
                problems.append(f"{document}: a {language} program ended with {run.returncode}:\n{words}")
            else:
                done.setdefault("compiled and run", []).append(document)
    for verdict, where in done.items():
        print(f"{len(where)} programs {verdict} ({', '.join(where)})")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("links")
    what.add_parser("words")
    what.add_parser("results")
    for name in (*PRINTED, "pictures"):
        printed = what.add_parser(name)
        printed.add_argument("command")
        printed.add_argument("--update", action="store_true")
    code = what.add_parser("code")
    for option in ("--cc", "--cxx", "--library"):
        code.add_argument(option, required=True)
    arguments = parser.parse_args()
    if arguments.what in PRINTED and arguments.update:
        update_printed(arguments.command, arguments.what)
    problems = {
        "links": check_links,
        "words": check_words,
        "results": check_results,
        **{name: lambda: check_printed(arguments.command, arguments.what) for name in PRINTED},
        "pictures": lambda: check_pictures(arguments.command, arguments.update),
        "code": lambda: check_code(arguments.cc, arguments.cxx, arguments.library),
    }[arguments.what]()
    print("\n".join(problems) if problems else f"{arguments.what}: in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
