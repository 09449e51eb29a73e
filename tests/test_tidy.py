"""The repository held against STYLE.md: words, docstrings, layers, links."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "catchwater"
MODULES = sorted(SRC.rglob("*.py"))

MAX_DOCSTRING_LINES = 25

BANNED_FILE_NAMES = {
    "utils": "name what it does",
    "helpers": "name what it does",
    "manager": "name what it manages, as a noun",
    "common": "put it where its first user is",
    "misc": "name what it does",
}
BANNED_TEXT = {
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "finish it, or say in NOT.md that it is not built",
    r"raise NotImplementedError": "build it or leave it out",
    r"except BaseException": "name the failure",
}
BROAD_EXCEPT_ALLOWED = {
    "broker/server.py": "the connection loop",
    "cli/__init__.py": "the command line",
    "catalog/sqlite.py": "errors of one change must not fail the others of its transaction",
    "pipeline/calls/answers.py": "the user's code is called",
    "pipeline/change/upgrade.py": "the user's code is called",
    "pipeline/process/epoch.py": "the user's code is called",
    "pipeline/run/versions.py": "the user's code is imported",
}


def relative(path: Path) -> str:
    return str(path.relative_to(SRC))


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_introduces_itself(path: Path) -> None:
    for name in (path.stem, path.parent.name):
        assert name not in BANNED_FILE_NAMES, BANNED_FILE_NAMES[name]
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "a module says what it does, relies on, promises and leaves out"
    assert docstring.count("\n") < MAX_DOCSTRING_LINES


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_free_of_words_that_promise_later(path: Path) -> None:
    text = path.read_text()
    for pattern, instead in BANNED_TEXT.items():
        found = re.search(pattern, text)
        assert not found, f"{found.group() if found else ''}: {instead}"
    if relative(path) not in BROAD_EXCEPT_ALLOWED:
        assert not re.search(r"except( Exception( as \w+)?)?:", text), "name the failure"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_public_names_have_docstrings(path: Path) -> None:
    missing = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not missing, f"without a docstring: {missing}"


def test_packages_hold_only_their_docstring() -> None:
    for path in SRC.glob("*/**/__init__.py"):
        if path.parent.name == "cli":
            continue  # the console script's entry point
        body = ast.parse(path.read_text()).body
        assert len(body) == 1, f"{relative(path)}: importing a package must drag nothing in"


def test_the_map_in_the_package_docstring_names_every_chapter() -> None:
    docstring = ast.get_docstring(ast.parse((SRC / "__init__.py").read_text())) or ""
    for child in SRC.iterdir():
        if child.suffix == ".py" or (child / "__init__.py").exists():
            name = child.stem
            if name not in ("__init__", "__pycache__"):
                assert re.search(rf"\b{name}\b", docstring), f"{name} is not on the map"


def test_the_layers_hold() -> None:
    lint = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert lint.returncode == 0, lint.stdout


def test_no_registry_and_no_machine_is_named() -> None:
    # Written in pieces, so that this page does not name what it looks for.
    names = ["pypi|.org", "python|hosted", "repo1|.maven", "repo|.maven", "npm|js", "proxy|.golang"]
    names += ["deb|.debian", "crates|.io", "/work|/", "/ro|ot/"]
    hosts = re.compile("|".join(re.escape(name.replace("|", "")) for name in names))
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found = hosts.search(text)
        assert not found, f"{path.relative_to(ROOT)} names {found.group() if found else ''}"


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"]


def anchors(page: Path) -> set[str]:
    """The names by which a page's headings are linked."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in headings)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in shown}


def test_every_link_in_the_documents_leads_somewhere() -> None:
    for page in documents():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            if "://" in target:
                continue
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} points at {target}"
            if anchor:
                assert anchor in anchors(there), f"{page.name} points at {target}#{anchor}"


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in documents():
        for target in re.findall(r"`make ([a-z0-9-]+)", page.read_text()):
            assert target in targets, f"{page.name} says make {target}"
