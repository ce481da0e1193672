#!/usr/bin/env python3
"""Set hloinspect up and run it, in one command. Needs Python 3.11 or newer and pip's network access, nothing else.

usage: python3 dev.py demo [OPTION]...   inspect the example step for a GB200; options go to `hloinspect inspect`
       python3 dev.py test [OPTION]...   all tests on the newest Python found; on this one, where it is another, those
                                         that do not compile and a few that do; options go to pytest
       python3 dev.py test --thorough [OPTION]...
                                         all tests on both and with older versions of jax, on the newest Python
                                         many more examples a property; takes half an hour or
                                         more; without options it writes docs/thorough.md
       python3 dev.py lint               ruff check, ruff format --check, mypy, lint-imports

Environments are made beside this file: .venv (the newest Python found), .venv-py3.X (the one that runs this file,
where it is another) and .venv-jaxX (older versions of jax). They are used again while pyproject.toml and the Python
stay the same.
"""
# No `from __future__ import annotations` and nothing else that Python 3.6 cannot parse: an old Python must get far
# enough to print the message below.

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("dev.py: needs Python 3.11 or newer; this is Python %d.%d (%s)" % (*sys.version_info[:2], sys.executable))

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = 11, 14  # minor versions of Python 3 that are looked for
MAIN_JOB = ["inspect", "examples/dense.py:offload_scan", "--target", "gb200"]
STAMP = "hloinspect-dev.json"
LINTERS = {
    "ruff check .": ["-m", "ruff", "check", "."],
    "ruff format --check .": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    # Its package cannot be run with -m.
    "lint-imports": ["-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-logo"],
}
# A file's tests stay together: they share what they compile. tests/conftest.py puts the longest files first.
SHARED_OUT = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
# What the code does on another Python is seen without compiling; that compiling works there, in a few tests.
ON_THE_SECOND = ["-m", "not slow or smoke"]
TEST_EXTRAS = ["cuda", "dev", "maxtext"]  # MaxText: from Python 3.12 on
OTHER_JAX = ["0.9.2", "0.11.1"]  # beside those that pip chooses for the two Pythons
THOROUGH = ROOT / "docs" / "thorough.md"
THOROUGH_TIMEOUT_S = 6 * 3600  # a test

# Run in a candidate: prints its version if it is a finished, ordinary build that can make virtual environments.
PROBE = """
import ensurepip, sys, sysconfig, venv
if sys.version_info[3] == "final" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("%d.%d.%d" % sys.version_info[:3])
"""


def say(message: str) -> None:
    print("dev.py: " + message, file=sys.stderr, flush=True)


def version_of(python: str) -> str:
    """Return the version ("3.13.0") of an interpreter that really runs and can make environments, else ""."""
    try:
        # A pyenv shim may exist and refuse to run; -I keeps the user's site and environment out of it.
        done = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def candidates(minor: int) -> "list[str]":
    """Return the paths where a Python 3.``minor`` may be: this one, PATH, pyenv and uv."""
    name = "python3.%d" % minor
    found = [sys.executable] if sys.version_info[1] == minor else []
    found += [os.path.join(folder, name) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for pattern in (".pyenv/versions/3.%d.*", ".local/share/uv/python/cpython-3.%d.*"):
        found += [str(home / "bin" / name) for home in sorted(Path.home().glob(pattern % minor), reverse=True)]
    return [path for path in found if os.path.exists(path)]


def newest_python() -> "tuple[str, str]":
    """Return the path and version of the newest Python that works."""
    for minor in range(NEWEST, OLDEST - 1, -1):
        for python in candidates(minor):
            version = version_of(python)
            if version.startswith("3.%d." % minor):
                return python, version
    sys.exit("dev.py: no Python from 3.%d to 3.%d found that has venv and pip" % (OLDEST, NEWEST))


def environment(folder: str, python: str, version: str, extras: "list[str]", jax: str = "") -> Path:
    """Return the interpreter of the environment ``folder``, made or completed if need be to hold ``extras``, with this
    version of jax where one is named.

    A stamp in the folder says what is installed; it is written before and after, so that an interrupted installation is
    known as such, and a folder without one is somebody else's.
    """
    home = ROOT / folder
    stamp = home / STAMP
    inside = home / "bin" / "python"
    pyproject = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    wanted = {"python": version, "from": os.path.realpath(python), "pyproject": pyproject}
    made, have = read_stamp(stamp)
    if home.exists() and not made:
        sys.exit("dev.py: %s exists and was not made by dev.py: move it away first" % folder)
    if made != wanted or not inside.exists():
        say("making %s with Python %s (%s)" % (folder, version, python))
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        have = []
        write_stamp(stamp, wanted, have)
        run([python, "-m", "venv", str(home)])
    if set(extras) <= set(have):
        say("using %s (Python %s)" % (folder, version))
        return inside
    extras = sorted({*have, *extras})
    say("installing hloinspect[%s] into %s" % (",".join(extras), folder))
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = ["%s==%s" % (package, jax) for package in ("jax", "jaxlib", "jax-cuda13-plugin")] if jax else []
    run([*pip, "--editable", "%s[%s]" % (ROOT, ",".join(extras)), *pins])
    compile_bytecode(inside)
    write_stamp(stamp, wanted, extras)
    return inside


def compile_bytecode(inside: Path) -> None:
    """Compile what is installed, so that the first process that imports it need not. pip does it in most versions and
    settings; what has its bytecode is passed over."""
    installed = inside.parents[1] / "lib"
    # A package may hold files that are no Python of this version, as templates: that is no error here.
    subprocess.call([str(inside), "-m", "compileall", "-qq", "-j", "0", str(installed)], stdout=subprocess.DEVNULL)


def read_stamp(stamp: Path) -> "tuple[dict[str, str], list[str]]":
    """Return what an environment was made from, and the extras in it; both empty if it has no stamp."""
    try:
        found = json.loads(stamp.read_text())
        return dict(found["made"]), list(found["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []


def write_stamp(stamp: Path, made: "dict[str, str]", extras: "list[str]") -> None:
    stamp.write_text(json.dumps({"made": made, "extras": extras}, indent=1) + "\n")


def run(command: "list[str]") -> None:
    """Run a step of the set-up; its own errors are on the screen when this exits."""
    code = subprocess.call(command, cwd=ROOT)
    if code != 0:
        sys.exit("dev.py: failed (exit code %d): %s" % (code, " ".join(command)))


def demo(options: "list[str]") -> int:
    inside = environment(".venv", *newest_python(), ["cuda"])
    say("hloinspect " + " ".join(MAIN_JOB + options))
    return subprocess.call([str(inside.with_name("hloinspect")), *MAIN_JOB, *options], cwd=ROOT)


def pythons() -> "list[tuple[str, str, str]]":
    """Return folder, path and version of the newest Python that works, and of this one where it is another."""
    python, version = newest_python()
    found = [(".venv", python, version)]
    own = version_of(sys.executable)
    if own and own.split(".")[1] != version.split(".")[1]:
        found.append((".venv-py3." + own.split(".")[1], sys.executable, own))
    return found


def test(options: "list[str]") -> int:
    if "--thorough" in options:
        return thorough([option for option in options if option != "--thorough"])
    codes: list[int] = []
    for folder, path, number in pythons():
        inside = environment(folder, path, number, TEST_EXTRAS)
        chosen = ON_THE_SECOND if codes else []
        say("pytest on Python " + " ".join([number, *chosen]))
        codes.append(pytest(inside, [*chosen, *options]))
    return next((code for code in codes if code != 0), 0)


def pytest(inside: Path, options: "list[str]", more: "dict[str, str] | None" = None) -> int:
    """Run pytest in an environment. Its processes read the bytecode of this project, which is compiled before."""
    ours = [str(ROOT / name) for name in ("hloinspect", "tests/support")]
    subprocess.call([str(inside), "-m", "compileall", "-qq", *ours], stdout=subprocess.DEVNULL)
    command = [str(inside), "-m", "pytest", *SHARED_OUT, *options]
    return subprocess.call(command, cwd=ROOT, env={**os.environ, **(more or {})})


def thorough(options: "list[str]") -> int:
    """Run all tests in all environments, in the first one on many examples, and write down what came of them."""
    where = [(folder, path, number, TEST_EXTRAS, "") for folder, path, number in pythons()]
    _, newest, number = where[0][:3]
    # MaxText needs the newest jax.
    where += [(".venv-jax" + jax, newest, number, ["cuda", "dev"], jax) for jax in OTHER_JAX]
    codes: list[int] = []
    rows: list[list[str]] = []
    for folder, path, number, extras, jax in where:
        inside = environment(folder, path, number, extras, jax)
        say("pytest on Python %s, thoroughly" % number)
        results = ROOT / folder / "thorough.xml"
        if results.exists():
            results.unlink()
        began, at = time.monotonic(), commit()
        own = ["--junitxml", str(results), "--timeout", str(THOROUGH_TIMEOUT_S)]
        # What an example finds depends on the value that was drawn, hardly ever on the Python or jax.
        many = "0" if codes else "1"
        codes.append(pytest(inside, [*own, *options], {"HLOINSPECT_THOROUGH": many}))
        minutes = (time.monotonic() - began) / 60
        rows.append([number, version_inside(inside, "jax"), *counts_in(results), "%.0f min" % minutes, at])
    if options:
        say("docs/thorough.md is left as it is: not all tests ran")
    else:
        THOROUGH.write_text(as_document(rows))
        say("wrote docs/thorough.md")
    return next((code for code in codes if code != 0), 0)


def commit() -> str:
    """Return the commit of the working tree, and whether something in it differs from that."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    others = ["status", "--porcelain", "--", ".", ":!docs/thorough.md"]
    changed = subprocess.run([*git, *others], capture_output=True, text=True, check=False).stdout.strip()
    return head.stdout.strip() + (", with changes that are not committed" if changed else "")


def version_inside(inside: Path, package: str) -> str:
    code = "import importlib.metadata as m; print(m.version(%r))" % package
    return subprocess.run([str(inside), "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def counts_in(results: Path) -> "list[str]":
    """Return how many tests passed, were skipped and failed by a JUnit file, and how many examples were tried."""
    if not results.exists():
        return ["none", "none", "none", "none"]
    tree = xml.etree.ElementTree.parse(results)
    total = dict.fromkeys(("tests", "skipped", "failures", "errors"), 0)
    for suite in tree.iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, "0"))
    failed = total["failures"] + total["errors"]
    found = [p.get("value", "0") for p in tree.iter("property") if p.get("name") == "hypothesis_examples"]
    numbers = [total["tests"] - total["skipped"] - failed, total["skipped"], failed, sum(int(each) for each in found)]
    return ["{:,}".format(number) for number in numbers]


def as_document(rows: "list[list[str]]") -> str:
    """Return docs/thorough.md."""
    head = ["Python", "jax", "passed", "skipped", "failed", "examples", "took", "commit"]
    lines = [head, ["---", "---", *["---:"] * 5, "---"], *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    text = """# The last thorough run

`python3 dev.py test --thorough` runs all tests, with those that compile, on each Python and jax below. On the first it
tries properties on many more examples than `python3 dev.py test` does (*examples*: all that were tried). It writes this
file; whoever ran it commits it.

%s
"""
    return text % table


def lint(options: "list[str]") -> int:
    if options:
        sys.exit("dev.py: lint takes no options")
    inside = environment(".venv", *newest_python(), ["cuda", "dev"])
    codes = []
    for name, command in LINTERS.items():
        say(name)
        codes.append(subprocess.call([str(inside), *command], cwd=ROOT))
    return max(codes)


COMMANDS = {"demo": demo, "test": test, "lint": lint}


def main(arguments: "list[str]") -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return COMMANDS[arguments[0]](arguments[1:])
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
