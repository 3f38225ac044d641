#!/usr/bin/env python3
"""Generates the reference in docs/python.md from the docstrings of python/deltarelay, which is parsed and not imported.

scripts/python_reference.py              prints it
scripts/python_reference.py --check      says whether the document holds it
scripts/python_reference.py --update     writes it into the document
"""

import ast
import functools
import inspect
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "deltarelay"
DOCUMENT = ROOT / "docs" / "python.md"
BEGIN, END = "<!-- python reference -->\n", "<!-- end of python reference -->"
# Names of the package, or of one of its modules, in the order in which a reader needs them. "*": all names of the
# module.
GROUPS = {
    "The call": ["forward", "Outputs"],
    "Plans": ["plan", "explain", "Plan", "TensorSpec"],
    "What ran": ["last_call", "LastCall", "info"],
    "Stages": ["stages.*"],
    "FLA's functions": ["chunk_kda", "chunk_gated_delta_rule", "chunk_gdn", "fla.*"],
    "Pictures": ["plot.*"],
    "Errors": ["Error", "Invalid", "WrongType", "Unsupported", "DeviceError"],
}
SECTIONS = ("Args", "Attributes", "Returns", "Raises")


def parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def file_of(folder: pathlib.Path, module: str) -> pathlib.Path | None:
    """The file of a module below a folder; "" is the package itself."""
    base = folder.joinpath(*module.split(".")) if module else folder
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


def is_overload(node: ast.AST) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in getattr(node, "decorator_list", ()))


def find(path: pathlib.Path, name: str) -> ast.AST | None:
    """The definition of a name in a module, found through the modules it is imported from; None if there is none."""
    tree = parse(path)
    # What type checkers see alone is left out: overloads, and the first branch of a condition.
    for node in [*tree.body, *(each for node in tree.body if isinstance(node, ast.If) for each in node.orelse)]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name and not is_overload(node):
            return node
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return find(path, node.value.id) if isinstance(node.value, ast.Name) else None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = path.parent if node.level == 1 else path.parents[node.level - 1]
                    source = file_of(folder, node.module or "")
                    return find(source, alias.name) if source is not None else None
    return None


def public(path: pathlib.Path) -> list[str]:
    """__all__ of a module."""
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def names_of(group: list[str]) -> list[tuple[str, ast.AST]]:
    """(name as users call it, definition) of each existing name."""
    package, found = PACKAGE / "__init__.py", {}
    for entry in group:
        module, _, name = entry.rpartition(".")
        source = file_of(PACKAGE, module) if module else package
        if source is None:
            continue  # a module that does not exist yet
        for each in public(source) if name == "*" else [name]:
            definition = find(source, each)
            called = f"deltarelay.{module}.{each}" if module else f"deltarelay.{each}"
            if definition is not None and not (module and f"deltarelay.{each}" in found):
                found[called] = definition
    return list(found.items())


def missing_names() -> list[str]:
    """Public names of the package that are in no group."""
    package = PACKAGE / "__init__.py"
    grouped = {entry for group in GROUPS.values() for entry in group}
    return [
        name for name in public(package) if name != "__version__" and name not in grouped and f"{name}.*" not in grouped
    ]


def signature(name: str, arguments: ast.arguments, result: ast.AST | None, method: bool) -> str:
    """One argument per line if a line would be too long. Plain object types are left out, because they say nothing."""
    parts = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        if method and argument is positional[0]:
            continue
        parts.append(parameter(argument, default))
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [parameter(argument, default) for argument, default in keywords]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    gives = f" -> {written(result)}" if result is not None and written(result) not in ("Any", "None") else ""
    line = f"{name}({', '.join(parts)}){gives}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){gives}"


@functools.cache
def aliases() -> dict[str, str]:
    """Names of types in _types.py with what they stand for: the words of an argument, or nothing for a tensor."""
    found = {"Tensor": "Any", "AnyTensor": "Any"}
    for node in parse(PACKAGE / "_types.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            found[ast.unparse(node.targets[0])] = ast.unparse(node.value)
    return found


def written(node: ast.AST) -> str:
    """As written in the source: with double quotes, without the private module of a type, and with words in place of
    the name of their type."""
    text = re.sub(r"\b_\w+\.", "", ast.unparse(node))
    if not isinstance(node, ast.Constant):
        for name, meaning in aliases().items():
            text = re.sub(rf"\b{name}\b(?=$| \||\])", lambda _, meaning=meaning: meaning, text)
        text = re.sub(r"Literal\[([^\]]*)\]", lambda words: words[1].replace(", ", " | "), text)
        text = text.replace("Outputs[Any, Any, Any]", "Outputs")
    text = re.sub(r"'([^'\"]*)'", r'"\1"', text)
    says_nothing = text.split(" | ")[0] == "Any" or "Collection[" in text  # the words of a list are in the table below
    return "Any" if says_nothing else text


def parameter(argument: ast.arg, default: ast.AST | None) -> str:
    kind = written(argument.annotation) if argument.annotation else "Any"
    text = argument.arg if kind == "Any" else f"{argument.arg}: {kind}"
    if default is None:
        return text
    return f"{text} = {written(default)}" if kind != "Any" else f"{text}={written(default)}"


def sections(docstring: str) -> dict[str, str]:
    """The text before all sections under "", then each section without its indentation."""
    found, name = {"": []}, ""
    for line in docstring.splitlines():
        head = line.rstrip()[:-1] if line.rstrip().endswith(":") and not line.startswith(" ") else ""
        if head in SECTIONS:
            name = head
            found[name] = []
        else:
            found[name].append(line[4:] if name else line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def entries(text: str) -> list[tuple[str, str]]:
    """(names, words) of a section: a name, a colon, words that may continue in indented lines."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith(" ") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif line.strip():
            name, _, words = line.partition(": ")
            found.append((name, words.strip()))
    return found


def table(head: tuple[str, str], rows: list[tuple[str, str]]) -> list[str]:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for names, words in rows:
        name = ", ".join(f"`{name.strip()}`" for name in names.split(","))
        lines.append(f"| {name} | {escaped(words)} |")
    return [*lines, ""]


def escaped(words: str) -> str:
    """Escapes bars, which end a cell, and underscores and stars between letters, which would be emphasis."""
    return words.replace("``", "`").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def prose(docstring: str) -> list[str]:
    found = sections(docstring)
    lines = []
    if found[""]:
        paragraphs = [re.sub(r"\s*\n\s*", " ", part) for part in found[""].split("\n\n") if not part.startswith(">>>")]
        lines += [line for part in paragraphs for line in (part.replace("``", "`"), "")]
    if "Args" in found:
        lines += table(("argument", "meaning"), entries(found["Args"]))
    if "Attributes" in found:
        lines += table(("attribute", "meaning"), entries(found["Attributes"]))
    if "Returns" in found:
        lines += ["Returns: " + re.sub(r"\s+", " ", found["Returns"]).replace("``", "`"), ""]
    if "Raises" in found:
        lines += table(("raises", "when"), entries(found["Raises"]))
    return lines


def documented(node: ast.AST) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def of_function(called: str, node: ast.FunctionDef) -> list[str]:
    if called.rpartition(".")[2] != node.name:
        return [f"#### {called}", "", f"Another name of `{node.name}`.", ""]
    return [
        f"#### {called}",
        "",
        "```text",
        signature(called, node.args, node.returns, False),
        "```",
        "",
        *prose(documented(node)),
    ]


def of_class(called: str, node: ast.ClassDef) -> list[str]:
    lines, methods = [f"#### {called}", ""], []
    fields = [
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_")
    ]
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            if item.name == "__init__" and len(item.args.args) > 2:
                lines += ["```text", signature(called, item.args, None, True), "```", ""]
            is_property = any(ast.unparse(decorator) == "property" for decorator in item.decorator_list)
            if not item.name.startswith("_"):
                head = item.name if is_property else signature(item.name, item.args, item.returns, True)
                words = re.sub(r"\s*\n\s*", " ", documented(item).split("\n\n")[0])
                methods.append(f"- `{head}`" + (f": {words}" if words else ""))
    bases = [ast.unparse(base) for base in node.bases]
    built_in = [base for base in bases if base.endswith("Error") and base != "Error"]
    lines += prose(documented(node))
    if built_in:
        lines[-2] += f" Also a `{built_in[0]}`."
    if fields and "Attributes:" not in documented(node):
        lines += [f"Fields: {', '.join(f'`{field}`' for field in fields)}.", ""]
    return [*lines, *methods, ""] if methods else lines


def reference() -> str:
    """Markdown between the marks of the document."""
    unknown = missing_names()
    if unknown:
        raise SystemExit(f"GROUPS: expected every public name in a group, found {', '.join(unknown)} in none")
    lines = []
    for title, group in GROUPS.items():
        found = names_of(group)
        if not found:
            continue
        lines += [f"### {title}", ""]
        for called, node in found:
            lines += of_class(called, node) if isinstance(node, ast.ClassDef) else of_function(called, node)
    return "\n".join(lines).rstrip() + "\n"


def split() -> tuple[str, str, str]:
    before, mark, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    inside, end_mark, after = rest.partition(END)
    return before + mark, inside, end_mark + after


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in ("", "--check", "--update") or len(sys.argv) > 2:
        print(__doc__)
        return 2
    if what == "":
        print(reference(), end="")
        return 0
    before, inside, after = split()
    if not after:
        print(f"{DOCUMENT.relative_to(ROOT)}: expected the marks {BEGIN.strip()} and {END}, found none")
        return 1
    if what == "--update":
        DOCUMENT.write_text(before + reference() + after, encoding="utf-8")
        return 0
    if inside == reference():
        print("python reference: in order")
        return 0
    name = DOCUMENT.relative_to(ROOT)
    print(f"{name}: its reference is not what the docstrings say; scripts/python_reference.py --update writes it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
