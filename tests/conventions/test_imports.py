"""The house of the design as a test: who may import whom, and what the deciding packages never touch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "brim"
PURE = ("core", "beliefs", "policies", "engine")
CLOCKS = {"time", "datetime", "random", "secrets", "uuid", "socket", "asyncio", "threading", "subprocess", "requests"}
OUTSIDE = {"torch", "polars", "pyarrow", "rich", "typer"}
READS_FILES = {
    "core/cluster.py": "cluster TOML", "policies/loading.py": "policy files", "beliefs/library.py": "fitted profiles",
    "beliefs/measured_sets.py": "measured slowdowns", "beliefs/power.py": "power curves",
    "beliefs/parameter_servers.py": "step times of models", "beliefs/predictability.py": "the classifier",
    "beliefs/toml_files.py": "files that users give",
}
"""The places in deciding packages that open a file, and what they read."""


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Top-level names imported anywhere in a file, inside functions and type-checking blocks too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def calls(path: Path, *words: str) -> set[str]:
    """Dotted names that are called and have one of these words in them: ``open``, ``np.random.default_rng``."""
    text = path.read_text(encoding="utf-8")
    if not any(word in text for word in words):
        return set()  # without the second that it takes to parse all files
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
    return {name for name in called if any(word in name for word in words)}


def test_the_import_contracts_hold():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()",
         "--config", str(ROOT / ".importlinter"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_what_benchmarks_import_is_there():
    """Nothing else runs most of them: a name that has gone would be found by those who measure again."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (module := _module_of_ours(node.module or "")):
                missing = {alias.name for alias in node.names} - _names(module)
                assert not missing, f"{path.name} imports {sorted(missing)} from {node.module}"


def _module_of_ours(name: str) -> Path | None:
    """File of a module or package in this repository, None for those of others."""
    for folder in (ROOT / "src", ROOT, ROOT / "benchmarks"):
        for path in (folder / f"{name.replace('.', '/')}.py", folder / name.replace(".", "/") / "__init__.py"):
            if path.is_file():
                return path
    return None


def _names(module: Path) -> set[str]:
    """What can be imported from a module: what it defines, imports and assigns, and the modules of a package."""
    found: set[str] = set()
    if module.name == "__init__.py":
        found |= {path.stem for path in module.parent.iterdir()}
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("package", PURE)
def test_what_decides_has_no_clock_no_randomness_and_no_heavy_imports(package):
    for path in modules(package):
        assert not imports(path) & (CLOCKS | OUTSIDE), path


@pytest.mark.parametrize("package", PURE)
def test_what_decides_draws_nothing_prints_nothing_and_opens_no_file(package):
    for path in modules(package):
        named = calls(path, "random", "print", "open", "_text")
        drawn = {name for name in named if ".random." in name or name.startswith("random.")}
        assert not drawn, (path, drawn)
        assert "print" not in named, path
        if path.relative_to(SOURCE).as_posix() not in READS_FILES:
            opened = {name for name in named if name == "open" or name.endswith((".read_text", ".write_text", ".open"))}
            assert not opened, (path, opened)


@pytest.mark.cases(8)
@pytest.mark.parametrize("package", sorted(p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "cli"))
def test_only_the_command_line_prints(package):
    allowed = {"train", "gang", "live"}  # programs of their own, which talk on their standard streams
    for path in modules(package):
        assert package in allowed or "print" not in calls(path, "print"), path


def test_no_random_state_without_a_seed():
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "random" in text else ():
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.endswith("random.default_rng"):
                    assert node.args or node.keywords, f"{path}:{node.lineno} draws without a seed"
                assert not name.startswith(("np.random.seed", "np.random.rand", "random.seed")), f"{path}:{node.lineno}"


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "words", [["--help"], ["sim", "compare", "--help"], ["policy", "list"], ["policy", "list", "--json"],
              ["policy", "list", "-o", "json"], ["--version"]]
)
def test_the_command_line_answers_without_heavy_imports(words):
    code = f"""
import sys
from brim.cli.main import app
sys.argv[1:] = {words}
try:
    app(prog_name="brim")
except SystemExit as end:
    assert not end.code, end.code
"""
    heavy = {"numpy", "numba", "polars", "pyarrow", "torch", "scipy", "sklearn", "rich", "asyncio", "pydantic"}
    assert not loaded_by(code) & heavy


def test_a_controller_answers_before_the_engine_is_loaded():
    """After a kill it shows and takes jobs at once; numpy, numba and the policies would add two thirds to that."""
    assert not loaded_by("import brim.api.serve") & {"numpy", "numba", "scipy", "polars", "pyarrow"}


def test_a_submission_does_not_load_the_messages_of_agents():
    """They are 40 dataclasses, which take Python a quarter of the time that a submission has."""
    code = "import sys, brim.cli.submit, brim.cli.capture, brim.cli.agents; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"brim.agent.protocol", "brim.gang.messages"} & set(done.stdout.split())


def test_a_verb_that_asks_whether_all_is_compiled_does_not_load_the_compiler():
    assert not loaded_by("import brim.kernel_cache") & {"numpy", "numba"}


def test_testing_needs_hypothesis_only_when_a_policy_is_checked():
    assert "hypothesis" not in loaded_by("import brim.testing")


def test_gang_needs_the_standard_library_alone():
    """A zygote starts with whatever the user's environment has, and must not hide a module of another version."""
    for path in modules("gang"):
        assert imports(path) <= {*sys.stdlib_module_names, "brim"}, path


def test_every_compiled_module_is_in_the_digest_of_the_cache():
    """numba runs stale code where a callee in another file has changed; the digest of all sources prevents it."""
    from brim.kernel_cache import SOURCES

    decorators = re.compile(r"from brim.compiled import .*\b(njit|in_place|inline|internal)\b")
    compiled = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")
                if decorators.search(path.read_text(encoding="utf-8"))}
    assert compiled == set(SOURCES)
    for path in SOURCE.rglob("*.py"):
        if "numba" in path.read_text(encoding="utf-8") and path.name != "compiled.py":
            assert "numba" not in imports(path), f"{path} compiles past brim.compiled"


def test_compiled_code_alone_calls_internal_functions():
    """A call from Python would jump to address 0, because nothing was compiled that translates its arguments."""
    from brim.kernel_cache import SOURCES

    modules = {f"brim.{source.removesuffix('.py').replace('/', '.')}": SOURCE / source for source in SOURCES}
    trees = {path: ast.parse(text) for folder in (SOURCE, ROOT / "tests", ROOT / "benchmarks")
             for path in folder.rglob("*.py") for text in [path.read_text(encoding="utf-8")]
             if path in modules.values() or any(module in text for module in modules)}
    internal = {(module, function.name) for module, path in modules.items()
                for function in compiled_functions(trees[path], {"internal"})}
    assert internal
    for path, tree in trees.items():
        reachable = {name for module, name in internal if modules[module] == path}
        reachable |= {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                      for alias in node.names if (node.module, alias.name) in internal}
        compiled = {id(node) for function in compiled_functions(tree, {"njit", "in_place", "inline", "internal"})
                    for node in ast.walk(function)}
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in compiled}
        assert not named & reachable, path


def compiled_functions(tree, decorators):
    """The functions of a module that have one of these decorators."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and any(
        isinstance(mark, ast.Name) and mark.id in decorators for mark in node.decorator_list)]


def test_the_digest_covers_every_module_whose_constants_compiled_code_reads():
    """The place of a column is a constant in machine code: a new column must not leave old code behind."""
    from brim.kernel_cache import CONSTANTS, SOURCES

    for source in SOURCES:
        tree = ast.parse((SOURCE / source).read_text(encoding="utf-8"))
        names = {name.id for node in compiled_functions(tree, {"njit", "in_place", "inline", "internal"})
                 for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
        names |= {name.id for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
                  for name in ast.walk(node.value) if isinstance(name, ast.Name)}  # constants made of others
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("brim."):
                read = names & {alias.asname or alias.name for alias in node.names}
                module = (node.module or "").removeprefix("brim.").replace(".", "/") + ".py"
                known = (*SOURCES, *CONSTANTS, "errors.py", "compiled.py")  # exceptions and decorators are no constants
                assert not read or module in known, f"{source} reads {sorted(read)} of {module}"
