"""Mutants: small deliberate faults in source files, one at a time.

A mutant replaces one node of the syntax tree, or the operator between two nodes. The rest of the file keeps its text.

    comparison   == ↔ !=, < → >=, is ↔ is not, in ↔ not in
    boundary     < ↔ <=, > ↔ >=
    boolean      and ↔ or, one operand dropped
    arithmetic   + ↔ -, * ↔ //, // → *, % → *, << ↔ >>, & ↔ |, also in augmented assignments
    constant     a number + 1, − 1 or × 10; True ↔ False
    string       a string constant with one more character
    removal      a call, raise, del, augmented assignment, break or continue, or an assignment to an attribute or item,
                 replaced by `pass`
    arguments    the first two positional arguments swapped, or one keyword argument dropped
    return       return None in place of a value
    condition    the condition of if, while, a conditional expression or a comprehension negated
    not          `not` dropped
    await        `await` dropped
    lock         one context manager of a `with` dropped, if it binds no name

Not mutated: the arguments of isinstance, min and max (swapped, they fail at once or mean the same), zip's `strict`,
annotations, docstrings, f-strings, `__slots__`, `if TYPE_CHECKING`, log calls, and texts for people (arguments of
exceptions, and strings of three or more words in lower case): no program depends on them.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
LOGGERS = ("log", "logger", "logging", "warnings")
PROSE = re.compile(r"[A-Za-z][a-z'-]*(?:[,;:]? [a-z0-9'(-][a-z0-9'().-]*){2,}.*")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. Lines are counted from 1, and are those of the whole statement."""

    file: str
    """Relative to the package."""
    function: str
    """Qualified name; empty for module level."""
    operator: str
    line: int
    first_line: int
    last_line: int
    at_import: bool
    """The statement is in no function: it runs once, when the module is imported."""
    text: str
    """The source line, without indentation."""
    change: str
    """Old and new text of the node."""
    start: int
    end: int
    new: str
    """Replaces the bytes from start to end."""

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Return the fields that identify the mutant in the list of equivalent ones. They contain no line number."""
        return self.file, self.function, self.operator, self.text, self.change

    def apply(self, source: bytes) -> bytes:
        """Return the source with this fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class Generator:
    """Finds the mutants of one source file."""

    def __init__(self, file: str, source: bytes, seed: int) -> None:
        self._file, self._source, self._seed = file, source, seed
        self._lines = source.split(b"\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.found: list[Mutant] = []
        self._function: list[str] = []
        self._statement: ast.stmt | None = None
        self._depth = 0  # functions around

    def run(self) -> list[Mutant]:
        """Return all mutants, in source order."""
        for statement in ast.parse(self._source).body:
            self._visit(statement)
        seen: Counter[tuple[str, ...]] = Counter()
        for k, mutant in enumerate(self.found):
            seen[mutant.identity] += 1
            if (number := seen[mutant.identity]) > 1:  # the same change at another place of the line
                self.found[k] = replace(mutant, change=f"{mutant.change} ({number})")
        return self.found

    def _add(self, operator: str, node: ast.AST, new: ast.AST | str, end: int | None = None) -> None:
        assert isinstance(node, (ast.expr, ast.stmt, ast.keyword))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        assert self._statement is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset if end is None else end
        if isinstance(new, ast.expr):
            text = ast.unparse(ast.fix_missing_locations(new))
            text = f"({text})" if not isinstance(new, (ast.Constant, ast.Name, ast.Call)) else text
        else:
            text = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
        old = " ".join(self._source[start:end].decode().split())
        last = self._statement.end_lineno or node.lineno
        if isinstance(self._statement, (ast.If, ast.While, ast.For, ast.With, ast.AsyncWith, ast.AsyncFor)):
            last = max(node.lineno, self._statement.body[0].lineno - 1)
        self.found.append(
            Mutant(
                file=self._file,
                function=".".join(self._function),
                operator=operator,
                line=node.lineno,
                first_line=self._statement.lineno,
                last_line=last,
                at_import=not self._depth,
                text=self._lines[node.lineno - 1].decode().strip(),
                change=f"{old} → {text}",
                start=start,
                end=end,
                new=text,
            )
        )

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = node
            if skipped(node):
                return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._visit_body(node)
            return
        if isinstance(node, ast.JoinedStr) or is_log_call(node):
            return  # Python 3.11 has no positions inside f-strings
        self._mutate(node)
        if isinstance(node, ast.Raise):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._visit(child)
                if isinstance(node, ast.stmt):
                    self._statement = node

    def _visit_body(self, node: Function | ast.ClassDef) -> None:
        self._function.append(node.name)
        self._depth += not isinstance(node, ast.ClassDef)
        for statement in node.body:
            self._visit(statement)
        self._statement = node
        if not isinstance(node, ast.ClassDef):  # default arguments are tested by the tests of the body
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self._visit(default)
        self._depth -= not isinstance(node, ast.ClassDef)
        self._function.pop()

    def _mutate(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._mutate_statement(node)
        elif isinstance(node, ast.Compare):
            self._mutate_comparison(node)
        elif isinstance(node, ast.BoolOp):
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            self._add("boolean", node, ast.BoolOp(other, node.values))
            for k in range(len(node.values)):
                rest = node.values[:k] + node.values[k + 1 :]
                self._add("boolean", node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            self._add("arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._add("not", node, node.operand)
        elif isinstance(node, ast.Constant):
            self._mutate_constant(node)
        elif isinstance(node, ast.Call):
            self._mutate_call(node)
        elif isinstance(node, ast.Await):
            self._add("await", node, node.value)
        elif isinstance(node, ast.IfExp):
            self._negate(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                self._negate(test)

    def _negate(self, test: ast.expr) -> None:
        if not has_own_negation(test):
            self._add("condition", test, ast.UnaryOp(ast.Not(), test))

    def _mutate_statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.If, ast.While)):
            self._negate(node.test)
        elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
            self._add("return", node, "return None")
        elif isinstance(node, ast.AugAssign):
            self._add("removal", node, "pass")
            if type(node.op) in ARITHMETIC:
                self._add("arithmetic", node, ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value))
        elif is_removable(node):
            self._add("removal", node, "pass")
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for k, item in enumerate(node.items):
                if item.optional_vars is None:
                    rest = ", ".join(ast.unparse(other) for other in node.items[:k] + node.items[k + 1 :])
                    kind = "async with" if isinstance(node, ast.AsyncWith) else "with"
                    self._add("lock", node, f"{kind} {rest}:" if rest else "if True:", self._header_end(node))

    def _header_end(self, node: ast.With | ast.AsyncWith) -> int:
        last = node.items[-1].optional_vars or node.items[-1].context_expr
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        end = self._starts[last.end_lineno - 1] + last.end_col_offset
        return self._source.index(b":", end) + 1

    def _mutate_comparison(self, node: ast.Compare) -> None:
        for k, op in enumerate(node.ops):
            for operator, table in (("comparison", NEGATED), ("boundary", BOUNDARY)):
                if type(op) in table:
                    ops = [*node.ops[:k], table[type(op)](), *node.ops[k + 1 :]]
                    self._add(operator, node, ast.Compare(node.left, ops, node.comparators))

    def _mutate_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", node, ast.Constant(not value))
        elif isinstance(value, (int, float)):
            choices = [value + 1, value - 1] + [value * 10] * bool(value)
            line = self._lines[node.lineno - 1]
            self._add("constant", node, ast.Constant(choices[draw(self._seed, line, value) % len(choices)]))
        elif isinstance(value, str) and not PROSE.fullmatch(value):
            self._add("string", node, ast.Constant(value + "~"))
        elif isinstance(value, bytes):
            self._add("string", node, ast.Constant(value + b"~"))

    def _mutate_call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        starred = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
        same = len(node.args) < 2 or ast.dump(node.args[0]) == ast.dump(node.args[1])
        if not starred and not same and name not in ("isinstance", "max", "min"):
            self._add(
                "arguments", node, ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
            )
        for k, keyword in enumerate(node.keywords):
            if keyword.arg is not None and (name, keyword.arg) != ("zip", "strict"):
                rest = node.keywords[:k] + node.keywords[k + 1 :]
                self._add("arguments", node, ast.Call(node.func, node.args, rest))


def skipped(node: ast.stmt) -> bool:
    """Return whether a statement is not mutated: imports, docstrings, declarations of names and types."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Assert)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    names = node.targets if isinstance(node, ast.Assign) else []
    if any(isinstance(name, ast.Name) and name.id in ("__slots__", "__all__") for name in names):
        return True
    value = getattr(node, "value", None)
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("TypeVar", "ParamSpec")
    )


def is_removable(node: ast.stmt) -> bool:
    """Return whether a statement can be left out, and what follows still finds the names that it needs."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await, ast.Yield))
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.Raise, ast.Delete, ast.Break, ast.Continue))


def has_own_negation(test: ast.expr) -> bool:
    """Return whether another operator negates a condition already."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return negated or isinstance(test, ast.Constant) or (isinstance(test, ast.Compare) and len(test.ops) == 1)


def is_none(node: ast.expr) -> bool:
    """Return whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_log_call(node: ast.AST) -> bool:
    """Return whether a call, or a statement of one, writes to a log."""
    node = node.value if isinstance(node, ast.Expr) else node
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in LOGGERS


def shortened(text: str, limit: int = 60) -> str:
    """Return text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit // 2] + " … " + text[3 - limit // 2 :]


def mutants_of(file: str, source: bytes, seed: int) -> list[Mutant]:
    """Return the mutants of a source file. The seed selects how each number changes."""
    return Generator(file, source, seed).run()


def draw(*words: object) -> int:
    """Return a number that looks random and follows from the words."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big")


def changes_code(source: bytes, mutated: bytes) -> bool:
    """Return whether a mutant is valid Python and compiles to other bytecode."""
    try:
        return fingerprint(compile(mutated, "m", "exec")) != fingerprint(compile(source, "m", "exec"))
    except (SyntaxError, ValueError):
        return False


def fingerprint(code: CodeType) -> tuple[Any, ...]:
    """Return what a code object does, without line numbers."""
    constants = [fingerprint(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts]
    return code.co_code, tuple(constants), code.co_names, code.co_varnames, code.co_freevars


def sample(
    areas: dict[str, list[Mutant]], sources: dict[str, bytes], size: int, seed: int, least: int = 8
) -> dict[str, list[Mutant]]:
    """Draw mutants from every area: in proportion to its number of mutants, but at least `least`.

    Those with the lowest hashes are drawn, so a change of the source leaves most of a sample as it was.
    """
    total = sum(map(len, areas.values())) or 1
    shares = {area: max(min(least, size // len(areas)), size * len(found) // total) for area, found in areas.items()}
    while sum(shares.values()) > size:
        shares[max(shares, key=lambda area: shares[area])] -= 1
    while sum(shares.values()) < size and any(shares[area] < len(areas[area]) for area in areas):
        shares[max(areas, key=lambda area: len(areas[area]) / (1 + shares[area]))] += 1
    drawn: dict[str, list[Mutant]] = {}
    for area, found in areas.items():
        drawn[area] = []
        for mutant in sorted(found, key=lambda mutant: draw(seed, mutant.identity)):
            if len(drawn[area]) == shares[area]:
                break
            source = sources[mutant.file]
            if changes_code(source, mutant.apply(source)):
                drawn[area].append(mutant)
    return drawn


def read_equivalents(path: Path) -> dict[tuple[str, str, str, str, str], str]:
    """Return the reasons of the listed equivalent mutants, by identity."""
    found = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []):
        reason = entry.pop("reason")
        if set(entry) != {"file", "function", "operator", "text", "change"} or not reason:
            raise ValueError(f"an entry needs file, function, operator, text, change and reason: {entry}")
        found[entry["file"], entry["function"], entry["operator"], entry["text"], entry["change"]] = reason
    return found


def names_assigned(statement_source: str) -> set[str]:
    """Return the names that a module-level statement assigns."""
    try:
        tree = ast.parse(statement_source)
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def lines_using(names: Iterable[str], source: bytes) -> Iterator[int]:
    """Yield the lines inside functions of a file that read one of these names."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    pattern = re.compile(rb"\b(" + b"|".join(re.escape(name.encode()) for name in names) + rb")\b")
    for number, line in enumerate(source.split(b"\n"), 1):
        if number in inside and pattern.search(line):
            yield number
