"""The rules of the repository that no linter knows. Each check counts what it looked at; one that saw nothing fails."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import acker

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/acker"

# Lowest first: a layer may import from itself and from the layers before it. The table of ARCHITECTURE.md.
LAYERS = (
    ("_engine", "errors"),
    ("_files",),
    ("offsets",),
    ("observe",),
    ("topology",),
    ("ui",),
    ("remote",),
    ("connectors",),
    ("local",),
    ("spark",),
    ("connectors.topologies",),
    ("testing",),
    ("cli", "__main__"),
)
# Parts that may not import some of those before them.
APART = {"connectors": {"topology"}, "remote": {"topology", "ui"}, "local": {"connectors"}, "spark": {"connectors"}}
# Who may import the compiled modules.
NATIVE = {"_core": {"_engine"}, "_flow": {"observe", "topology", "local", "spark"}, "_handles": {"connectors"}}
# The clients of brokers, which only their own connectors import.
CLIENTS = {"pika", "confluent_kafka", "redis", "boto3", "botocore", "nats", "psycopg"}
# Task queues and a client of HTTP, which only their own modules of acker.remote import.
QUEUES = {"celery", "dramatiq", "rq", "taskiq", "httpx"}
# What the live page runs on.
SERVERS = {"starlette", "uvicorn"}
EXPORTERS = {"prometheus_client", "opentelemetry"}
HEAVY = {"pyspark", "pyarrow", "pandas", "click", "rich", "matplotlib"} | EXPORTERS | CLIENTS | QUEUES | SERVERS

# The private attributes that modules may read of objects whose class stands in another module.
PRIVATE_ALLOWED = {
    # Of components, whose public names belong to those who derive from them: for runtimes.
    *("_bind_state", "_definition_error", "_finished", "_needs_journal", "_no_replay", "_on_dead_letter"),
    *("_inputs_error", "_next_due_ms", "_replay_due", "_replays", "_settle_held", "_settles_itself"),
    *("_in_batch", "_record_batch"),
    *("_has_due_windows", "_holds_windows", "_watermark"),
    # Of tuples, whose public names are those of fields: for runtimes.
    *("_ids", "_is_settled", "_owner", "_source"),
    # Of what a class has just made of itself.
    *("_read", "_slots"),
    # Of `NamedTuple`, which has no other names for them.
    *("_asdict", "_fields", "_make", "_replace"),
    # Of Python, PySpark, Py4J, pika and Celery, which have no public ones.
    *("_create_task_sender", "_current_frames", "_exit", "_gateway_client", "_get_running_loop", "_getframe"),
    *("_explain_string", "_instantiatedSession", "_jdf", "_jsc", "_jsparkSession", "_terminate_stream"),
}

LINE_LENGTH_MAX = 120
PRAGMA = re.compile(r"\s*# (?:noqa|type: ignore).*")  # not counted, as ruff does
FUNCTION_LINES_MAX = 70

# Written in two parts, so that this file does not break its own rule.
LEFTOVERS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$~}*-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me|Us" + r"ers)/[\w.]")


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Let the tests of this file share what they read and parse, and no later test's garbage collector go over it."""
    yield
    for cache in (tracked, lines_in, tree_of, imports_of):
        cache.cache_clear()


@functools.cache
def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks and that match the patterns, deleted ones left out."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    found = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    assert found, f"nothing matches {patterns}"
    return found


def lines_of(*patterns: str) -> Iterator[tuple[str, str]]:
    """Yield `file:number` and the text of each line of the tracked text files that match."""
    for path in tracked(*patterns):
        name = path.relative_to(ROOT)
        for number, line in enumerate(lines_in(path), 1):
            yield f"{name}:{number}", line


@functools.cache
def lines_in(path: Path) -> list[str]:
    """Return the lines of a file, none if it is not text."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return what Python makes of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def assert_none(places: Iterable[str]) -> None:
    """Fail with every place that breaks the rule, so that they can be mended in one go."""
    listed = "\n".join(places)
    assert not listed, listed


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to; see `part_named`."""
    return part_named(path.relative_to(PACKAGE).with_suffix("").parts)


def part_named(names: Sequence[str]) -> str:
    """Return the part that holds a module: its name or folder below acker, or a folder in this that has a layer."""
    inner = ".".join(names[:2])
    return inner if any(inner in layer for layer in LAYERS) else names[0]


@functools.cache
def imports_of(path: Path) -> list[tuple[str, int, bool]]:
    """Return (module, line, whether it happens when the module is imported) of each import but those for types only."""
    tree = tree_of(path)
    package = ["acker", *path.relative_to(PACKAGE).parts[:-1]]

    def walk(node: ast.AST, *, at_import: bool) -> Iterator[tuple[str, int, bool]]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.orelse:
                yield from walk(statement, at_import=at_import)
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from acker import columns` names a module, `from acker import Acker` does not: both are told.
            yield from ((f"{module}.{alias.name}", node.lineno, at_import) for alias in node.names)
        inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_import=inside)

    return list(walk(tree, at_import=True))


def layer_of(part: str) -> int:
    """Return the number of the layer that holds a part."""
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def test_every_module_has_a_layer() -> None:
    parts = {part_of(path) for path in tracked("src/acker/*.py", "src/acker/**/*.py")} - {"__init__"}
    assert len(parts) >= 8
    assert parts <= {part for layer in LAYERS for part in layer}, "give the new module a place in LAYERS"


def test_modules_import_downwards_only() -> None:
    seen = 0
    for path in tracked("src/acker/*.py", "src/acker/**/*.py"):
        part = part_of(path)
        if part == "__init__":
            continue
        for module, line, _ in imports_of(path):
            names = module.split(".")
            if names[0] != "acker" or len(names) < 2:
                continue
            seen += 1
            target, where = part_named(names[1:]), f"{path.relative_to(ROOT)}:{line} imports {module}"
            if target in NATIVE:
                assert part in NATIVE[target], f"{where}: not this module's business"
            elif not any(target in layer for layer in LAYERS):
                # A name of the package itself, which stands on everything below the runtimes.
                assert layer_of(part) >= layer_of("local"), f"{where}: the package itself stands above this module"
            else:
                assert layer_of(target) <= layer_of(part), f"{where}: upwards"
                assert target not in APART.get(part, ()), f"{where}: {part} knows nothing of {target}"
    assert seen > 20


def modules_imported_by(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of the package that a file names in an import, those for types alone included."""
    package = ["acker", *path.relative_to(PACKAGE).parts[:-1]]
    named = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from acker import offsets` names a module, `from acker import Acker` a name of the module `acker`.
            for alias in node.names:
                below = f"{module}.{alias.name}"
                named.add(below if below in modules else module)
    return named & modules


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes that lie on a circle: what is left when all ends have been taken away, again and again."""
    left = {node: set(ends) for node, ends in graph.items()}
    while True:
        begun = {end for ends in left.values() for end in ends}
        gone = {node for node, ends in left.items() if not ends or node not in begun}
        if not gone:
            return sorted(left)
        left = {node: ends - gone for node, ends in left.items() if node not in gone}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for types count too: a circle of them is as hard to read."""
    paths = {
        ".".join(["acker", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in tracked("src/acker/*.py", "src/acker/**/*.py")
    }
    modules = {*paths, *(f"acker.{name}" for name in NATIVE)}
    graph = {name: modules_imported_by(path, modules) - {name} for name, path in paths.items()}
    assert sum(map(len, graph.values())) > 200
    assert not circles(graph)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


# Class names that are defined more than once, and why that is right.
SAME_CLASS_NAME = {
    "Job": "one execution with a token, and that of RQ, which workers take in the place of their own by this name",
    "Message": "that of a broker, and that to the acker: acker.connectors and acker export each under its own name",
}


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in tracked("src/acker/*.py", "src/acker/**/*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 100
    doubled = {name: found for name, found in places.items() if len(found) > 1}
    assert_none(f"{name}: {', '.join(found)}" for name, found in doubled.items() if name not in SAME_CLASS_NAME)
    assert set(SAME_CLASS_NAME) <= set(doubled), "a reason without a doubled name"


def private_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each private attribute that is read of an object of another module's class."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), attr, ast.Store()):
                own.add(attr)
            case ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                own.add(name)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super"))):
                continue
            case ast.Attribute(_, attr) if re.fullmatch(r"_[a-z].*", attr) and attr not in own:
                yield node.lineno, ast.unparse(node)


def test_nobody_reaches_through_a_class() -> None:
    used, places = set(), []
    for path in tracked("src/acker/*.py"):
        for line, text in private_reads(tree_of(path)):
            attr = text.rpartition(".")[2]
            used.add(attr)
            if attr not in PRIVATE_ALLOWED:
                places.append(f"{path.relative_to(ROOT)}:{line}: {text}: give its class a method")
    assert_none(places)
    assert used >= PRIVATE_ALLOWED, f"nobody reads {PRIVATE_ALLOWED - used} any more: remove them from the list"


def test_a_reach_through_a_class_is_found() -> None:
    tree = ast.parse("class Mine:\n    def f(self, other):\n        return self._a, other._f, other.part._secret.x")
    assert [text for _, text in private_reads(tree)] == ["other._f", "other.part._secret"]


def test_nothing_below_spark_imports_what_is_optional() -> None:
    seen = set()
    for path in tracked("src/acker/*.py", "src/acker/**/*.py"):
        part = part_of(path)
        if part != "__init__" and layer_of(part) >= layer_of("local"):
            continue
        # Imported for exporters alone, and by a consumer that has a tracer.
        if path in {PACKAGE / name for name in ("observe/prometheus.py", "observe/otel.py", "connectors/tracing.py")}:
            continue
        for module, line, at_import in imports_of(path):
            top = module.split(".")[0]
            seen.add(top)
            where = f"{path.relative_to(ROOT)}:{line} imports {top}"
            assert top != "pyspark", where
            # Its modules that need a server are imported for a page alone: tests/ui/test_server.py. And each broker has
            # a module of its own: tests/connectors/test_imports.py.
            # `acker` itself imports the modules for files when they are called.
            wanted = {"_files": {"pyarrow"}, "ui": SERVERS, "connectors": CLIENTS, "remote": CLIENTS | QUEUES}
            heavy = HEAVY - wanted.get(part, set())
            assert not (top in heavy and at_import), f"{where} at import time"
    assert {"numpy", "acker"} <= seen


@pytest.mark.parametrize("module", ["acker", "acker._engine.tuple_tree", "acker._engine.ids"])
def test_importing_acker_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert {"acker", "numpy"} <= loaded
    assert not loaded & HEAVY


def test_version_has_one_place() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in pyproject["project"]["dynamic"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "acker.__version__"}
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == acker.__version__
    written = re.compile(rf"\bversion\b\W+{re.escape(acker.__version__)}\b|^__version__ = ", re.IGNORECASE)
    places = {
        where.split(":")[0] for where, line in lines_of("*.py", "*.toml", "*.md", "*.yml") if written.search(line)
    }
    assert places - {"tests/repository/test_repo.py"} == {"src/acker/__init__.py"}


def test_python_range_is_the_same_everywhere() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    classifiers = " ".join(pyproject["project"]["classifiers"])
    minors = [int(minor) for minor in re.findall(r"Python :: 3\.(\d+)", classifiers)]
    assert minors == list(range(min(minors), max(minors) + 1))
    oldest, newest = min(minors), max(minors)
    assert pyproject["project"]["requires-python"] == f">=3.{oldest}"
    assert pyproject["tool"]["mypy"]["python_version"] == f"3.{oldest}"
    assert pyproject["tool"]["ruff"]["target-version"] == f"py3{oldest}"
    assert pyproject["tool"]["cibuildwheel"]["build"] == [*(f"cp3{minor}-*" for minor in minors), f"cp3{newest}t-*"]
    finder = (ROOT / "scripts/find_python.sh").read_text()
    assert re.findall(r"^(?:newest|oldest)=(\d+)$", finder, re.MULTILINE) == [str(newest), str(oldest)]
    assert f"(3, {oldest}) <= sys.version_info[:2] <= (3, {newest})" in (ROOT / "scripts/setup.sh").read_text()
    matrix = re.findall(r'python: "3\.(\d+)", java', (ROOT / ".github/workflows/ci.yml").read_text())
    assert [int(minor) for minor in matrix] == minors


def test_lines_are_short_and_clean() -> None:
    # Prose is wrapped by whoever shows it, and libraries of others are as they are.
    lines = list(lines_of(":!LICENSE", ":!*.json", ":!*.svg", ":!*.md", ":!*/vendor/*"))
    assert len(lines) > 1000
    assert_none(where for where, line in lines if len(PRAGMA.sub("", line)) > LINE_LENGTH_MAX)
    assert_none(where for where, line in lines if line != line.rstrip())


def test_functions_are_short() -> None:
    seen, long = 0, []
    for path in tracked("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            seen += 1
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                text = node.body[0]
                assert text.end_lineno is not None
                lines -= text.end_lineno - text.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines without its docstring")
    assert seen > 100
    assert_none(long)


def test_nothing_is_left_for_later() -> None:
    lines = list(lines_of(":!LICENSE"))
    assert len(lines) > 1000
    assert_none(where for where, line in lines if LEFTOVERS.search(line))
    assert LEFTOVERS.search("# FIX" + "ME later")


def test_no_machine_paths() -> None:
    lines = list(lines_of(":!LICENSE"))
    assert len(lines) > 1000
    assert_none(where for where, line in lines if MACHINE_PATHS.search(line))
    assert MACHINE_PATHS.search('open("/ho' + 'me/somebody/x")')
    assert not MACHINE_PATHS.search("see docs/wo" + "rk/x.md")


def test_tests_are_not_skipped() -> None:
    skips = re.compile(r"\bpytest\.(?:mark\.)?(?:skip|skipif|xfail|importorskip)\b|unittest\.skip")
    lines = list(lines_of("tests/*.py", "tests/**/*.py", ":!tests/repository/test_repo.py"))
    assert len(lines) > 500
    found = [where for where, line in lines if skips.search(line)]
    # Two, with their reasons: no broker is there or can be downloaded; .ci/run has no time left for slow tests.
    assert_none(where for where in found if not where.startswith("tests/conftest.py:"))
    assert len(found) == 2, "one of the two skips that are allowed is gone, or another one came"


def test_headers_know_nothing_of_python() -> None:
    lines = list(lines_of("ext/*.h", "ext/**/*.h"))
    assert len(lines) > 100
    assert_none(where for where, line in lines if "Python.h" in line)


def test_workflows_pin_actions_by_commit() -> None:
    uses = [
        (where, line.partition("uses:")[2].strip()) for where, line in lines_of(".github/**/*.yml") if "uses:" in line
    ]
    assert len(uses) > 5
    for where, action in uses:
        if action.startswith("./"):
            assert (ROOT / action.split()[0]).is_file(), f"{where}: {action}"
            continue
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), f"{where}: {action}"


def test_links_in_the_documents_lead_somewhere() -> None:
    seen = 0
    for path in tracked("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            seen += 1
            if not re.match(r"[a-z]+:|#", target):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.relative_to(ROOT)}: {target}"
    assert seen > 0


def test_the_package_carries_its_types() -> None:
    assert (PACKAGE / "py.typed").is_file()
    for module in NATIVE:
        assert (PACKAGE / f"{module}.pyi").is_file()
