"""Follows an engine's sources from a layer's forward to the functions that compute its prefill, without importing them.

Conditions are decided by facts (attribute or text of an expression -> value), such as which backend is chosen. What no
fact decides is followed both ways. A place is (module, name): where a replacement has to be put to be called.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Place = tuple[str, str]
UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "unknown"})()
# Functions that compute a prefill, as engines call theirs.
KERNEL = re.compile(r"(chunk|prefill|flashkda).*(delta_rule|kda)|kda_(with|prefill|chunk)|gdn_chunk")
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def value(node: ast.AST, facts: dict[str, Any]) -> Any:
    """What an expression is, or UNKNOWN."""
    if isinstance(node, ast.expr) and ast.unparse(node) in facts:
        return facts[ast.unparse(node)]
    if isinstance(node, ast.Attribute) and node.attr in facts:
        return facts[node.attr]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        items = [value(item, facts) for item in node.elts]
        return UNKNOWN if UNKNOWN in items else tuple(items)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = value(node.operand, facts)
        return UNKNOWN if inner is UNKNOWN else not inner
    if isinstance(node, ast.BoolOp):
        stops = isinstance(node.op, ast.Or)  # "or" is decided by one that is true, "and" by one that is false
        items = [value(item, facts) for item in node.values]
        if any(item is not UNKNOWN and bool(item) == stops for item in items):
            return stops
        return UNKNOWN if UNKNOWN in items else not stops
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = value(node.left, facts), value(node.comparators[0], facts)
        if left is not UNKNOWN and right is not UNKNOWN:
            return _COMPARE[type(node.ops[0])](left, right)
    return UNKNOWN


class Sources:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[str, ast.Module] = {}

    def module(self, name: str) -> ast.Module:
        if name not in self._parsed:
            file = self.root / (name.replace(".", "/") + ".py")
            file = file if file.exists() else self.root / name.replace(".", "/") / "__init__.py"
            self._parsed[name] = ast.parse(file.read_text(encoding="utf-8"))
        return self._parsed[name]

    def definition(self, module: str, name: str) -> Any:
        """A function or class, or None. `name` may be Class.method."""
        body: list[ast.stmt] = self.module(module).body
        found = None
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            found = next((node for node in body if isinstance(node, kinds) and node.name == part), None)
            if found is None:
                return None
            body = found.body
        return found

    def run(self, module: str, names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Functions of a module, compiled alone: what they need of the rest is given."""
        functions = [self.definition(module, name) for name in names]
        for function in functions:
            function.decorator_list = []
        future = ast.parse("from __future__ import annotations").body
        code = ast.Module([*future, *functions], type_ignores=[])
        space = dict(given)
        exec(compile(code, module, "exec"), space)
        return space


class Route:
    """One layer under facts. `reached()` are the places of prefill kernels that its forward comes to."""

    def __init__(self, sources: Sources, module: str, facts: dict[str, Any]) -> None:
        self.sources, self.module, self.facts = sources, module, facts
        self.chain: dict[Place, list[str]] = {}  # how each place was reached
        self.called: set[str] = set()  # every call that was seen, as it is written
        self._owner = ""  # the class of the method that is followed
        self._seen: set[str] = set()

    def reached(self, start: str, stop: set[Place]) -> set[Place]:
        """From a method or function. Places in `stop` are not entered: the adapter has replaced them."""
        self._function(start, stop, [start])
        return set(self.chain)

    def _function(self, name: str, stop: set[Place], chain: list[str]) -> None:
        definition = self.sources.definition(self.module, name)
        if definition is None or name in self._seen:
            return
        self._seen.add(name)
        before = self._owner
        self._owner = name.rpartition(".")[0] or before  # an operator's function calls methods of its layer
        self._block(definition.body, {}, stop, chain)
        self._owner = before

    def _block(self, body: list[ast.stmt], imported: dict[str, str], stop: set[Place], chain: list[str]) -> bool:
        """Does control leave the function in this block?"""
        for node in body:
            if isinstance(node, ast.If):
                decided = value(node.test, self.facts)
                self._calls(node.test, imported, stop, chain)
                taken = [node.body] * (decided is UNKNOWN or bool(decided))
                taken += [node.orelse] * (decided is UNKNOWN or not decided)
                left = [self._block(branch, imported, stop, chain) for branch in taken]
                if all(left):
                    return True
                continue
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            if isinstance(node, ast.ImportFrom):
                imported |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
                continue
            blocks = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
            for handler in getattr(node, "handlers", []):
                blocks.append(handler.body)
            if any(blocks):
                for field in ("iter", "test", "items"):
                    for expression in _listed(getattr(node, field, [])):
                        self._calls(expression, imported, stop, chain)
                for block in blocks:
                    self._block(block, imported, stop, chain)
                continue
            self._calls(node, imported, stop, chain)
            if isinstance(node, (ast.Return, ast.Raise)):
                return True
        return False

    def _calls(self, node: ast.AST, imported: dict[str, str], stop: set[Place], chain: list[str]) -> None:
        for call in [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]:
            text = ast.unparse(call.func)
            self.called.add(text)
            place = self._place(text, imported)
            names = [text, place[1] if place is not None else ""]
            if place in stop or any(KERNEL.search(name.split(".")[-1]) for name in names):
                self.chain.setdefault(place or (self.module, text), [*chain, text])
            elif place is not None and place[0] == self.module:
                self._function(place[1], stop, [*chain, text])

    def _place(self, text: str, imported: dict[str, str]) -> Place | None:
        head, _, rest = text.partition(".")
        if head in imported and not rest:
            module, _, name = imported[head].partition(":")
            return module, name
        if head in ("self", "layer") and rest:
            attribute, _, method = rest.partition(".")
            if self.sources.definition(self.module, f"{self._owner}.{rest}") is not None:
                return self.module, f"{self._owner}.{rest}"
            made = self._attribute(attribute)
            return None if made is None else (self.module, f"{made}.{method}" if method else made)
        if text.startswith("torch.ops."):
            function = self._operator(text.rsplit(".", 1)[1])
            return None if function is None else (self.module, function)
        return (self.module, head) if not rest and head in self._bound() else None

    def _attribute(self, name: str) -> str | None:
        """The class of an object that the constructor makes: self.name = Class()."""
        constructor = self.sources.definition(self.module, f"{self._owner}.__init__")
        for node in ast.walk(constructor) if constructor is not None else ():
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            if f"self.{name}" in map(ast.unparse, node.targets):
                return ast.unparse(node.value.func)
        return None

    def _operator(self, name: str) -> str | None:
        """The function that vLLM registers as an operator of torch."""
        for node in ast.walk(self.sources.module(self.module)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "direct_register_custom_op":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if given.get("op_name", "").strip("'\"") == name:
                    return given["op_func"]
        return None

    def _bound(self) -> set[str]:
        """Names that the module has as its own or by import: a replacement goes into this module."""
        names = set()
        for node in _decided(self.sources.module(self.module).body, self.facts):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
        return names


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _decided(body: list[ast.stmt], facts: dict[str, Any]) -> Iterator[ast.stmt]:
    """Statements of a module that are run under the facts."""
    for node in body:
        if isinstance(node, ast.If):
            decided = value(node.test, facts)
            if decided is UNKNOWN or decided:
                yield from _decided(node.body, facts)
            if decided is UNKNOWN or not decided:
                yield from _decided(node.orelse, facts)
        else:
            yield node


def modules_with_kernels(root: Path, package: str) -> dict[str, set[str]]:
    """Modules of a package that call functions named like prefill kernels, and those names."""
    found: dict[str, set[str]] = {}
    for file in sorted((root / package).rglob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if not KERNEL.search(text):
            continue
        calls = (ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        names = {call for call in calls if KERNEL.search(call.split(".")[-1])}
        if names:
            found[".".join(file.relative_to(root).with_suffix("").parts)] = names
    return found
