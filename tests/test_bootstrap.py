"""The two commands: how they find, make, repair and fill an environment, what they say, and what they pass on."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import _bootstrap
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = ("docs/__main__.py", "docs/_bootstrap.py", "tests/__main__.py")
PYTHONS = ("3.11.7", "3.12.1", "3.13.0", "3.14.0")


def load(entry, name):
    """The module of an entry file, under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, ROOT / entry)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docs = load("docs/__main__.py", "docs_command")
tests = load("tests/__main__.py", "tests_command")


def sentence(error):
    """The message of a SystemExit, which is one sentence."""
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert ". " not in message.replace("...", "")
    return message


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty checkout, in a folder with a space in its name, with no environment active."""
    root = tmp_path / "soft lookup"
    (root / "docs").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (root / "docs/constraints.txt").write_text("numpy==2.4.6\n", encoding="utf-8")
    monkeypatch.setattr(_bootstrap, "ROOT", root)
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    return root


def fake_environment(folder, /, **stamp):
    """A folder that looks like an environment, with a stamp if one is given."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    (folder / "pyvenv.cfg").touch()
    if stamp:
        _bootstrap.write_stamp(folder, stamp)
    return python


class TestOldPython:
    @pytest.mark.parametrize("entry", ENTRIES)
    def test_the_file_parses_on_it(self, entry):
        ast.parse((ROOT / entry).read_text(encoding="utf-8"), feature_version=(3, 8))

    def test_says_what_to_type(self, monkeypatch):
        monkeypatch.setattr(sys, "version_info", (3, 9, 18))
        with pytest.raises(SystemExit) as error:
            runpy.run_path(str(ROOT / "docs/_bootstrap.py"))
        assert "3.11 or newer and this is Python 3.9" in sentence(error)
        assert "`python3.13 docs`" in sentence(error)


class TestActiveEnvironment:
    def test_none(self, checkout):
        assert _bootstrap.active_environment() is None

    def test_the_running_python_belongs_to_one(self, checkout, monkeypatch):
        monkeypatch.setattr(sys, "base_prefix", "elsewhere")
        assert _bootstrap.active_environment() == Path(sys.prefix)

    @pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
    def test_a_variable_names_one(self, checkout, monkeypatch, variable):
        fake_environment(checkout / "mine")
        monkeypatch.setenv(variable, str(checkout / "mine"))
        assert _bootstrap.active_environment() == checkout / "mine"

    def test_a_variable_names_a_folder_that_is_gone(self, checkout, monkeypatch):
        monkeypatch.setenv("VIRTUAL_ENV", str(checkout / "gone"))
        assert _bootstrap.active_environment() is None

    def test_the_base_environment_of_conda_is_left_alone(self, checkout, monkeypatch):
        fake_environment(checkout / "conda")
        monkeypatch.setenv("CONDA_PREFIX", str(checkout / "conda"))
        monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
        assert _bootstrap.active_environment() is None


class TestOwnEnvironment:
    @pytest.fixture
    def made(self, checkout, monkeypatch):
        """The folders that were made, in place of making them; every Python answers with its version."""
        folders = []
        monkeypatch.setattr(_bootstrap, "make", folders.append)
        monkeypatch.setattr(_bootstrap, "version_of", lambda python: _bootstrap.RUNNING)
        return folders

    def test_is_made_once(self, checkout, made):
        _bootstrap.own_environment()
        assert made == [checkout / ".venv"]
        fake_environment(checkout / ".venv", folder=str(checkout))
        assert _bootstrap.own_environment() == checkout / ".venv"
        assert made == [checkout / ".venv"]

    def test_without_a_stamp_it_is_used_as_it_is(self, checkout, made):
        fake_environment(checkout / ".venv")
        _bootstrap.own_environment()
        assert made == []

    def test_half_filled_is_made_again(self, checkout, made):
        fake_environment(checkout / ".venv", folder=str(checkout), unfinished=True)
        _bootstrap.own_environment()
        assert made == [checkout / ".venv"]

    def test_copied_from_another_folder_is_made_again(self, checkout, made):
        fake_environment(checkout / ".venv", folder="another folder")
        _bootstrap.own_environment()
        assert made == [checkout / ".venv"]

    def test_half_made_is_made_again(self, checkout, made):
        fake_environment(checkout / ".venv")
        (checkout / ".venv/pyvenv.cfg").unlink()
        _bootstrap.own_environment()
        assert made == [checkout / ".venv"]

    @pytest.mark.parametrize("version", [None, "3.99"])
    def test_of_another_or_no_python_is_made_again(self, checkout, made, monkeypatch, version):
        fake_environment(checkout / ".venv", folder=str(checkout))
        monkeypatch.setattr(_bootstrap, "version_of", lambda python: version)
        _bootstrap.own_environment()
        assert made == [checkout / ".venv"]


class TestMake:
    @pytest.mark.parametrize("absent", ["venv", "ensurepip"])
    def test_on_debian_without_venv(self, checkout, monkeypatch, absent):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else name)
        with pytest.raises(SystemExit) as error:
            _bootstrap.make(checkout / ".venv")
        assert f"`sudo apt install python{_bootstrap.RUNNING}-venv`" in sentence(error)

    def test_failure_names_the_folder(self, checkout, monkeypatch):
        monkeypatch.setattr(subprocess, "run", lambda command: subprocess.CompletedProcess(command, 1))
        with pytest.raises(SystemExit) as error:
            _bootstrap.make(checkout / ".venv")
        assert f"delete {checkout / '.venv'}" in sentence(error)


class TestPrepare:
    @pytest.fixture
    def installed(self, checkout, monkeypatch):
        """The extras that were installed, in place of installing them, into an environment that is active."""
        extras = []

        def install(extra, folder, python, key):
            extras.append(extra)
            _bootstrap.write_stamp(folder, {**key, "extra": extra})

        fake_environment(checkout / "active")
        monkeypatch.setenv("VIRTUAL_ENV", str(checkout / "active"))
        monkeypatch.setattr(_bootstrap, "install", install)
        monkeypatch.setattr(_bootstrap, "version_of", lambda python: "3.11")
        return extras

    def test_installs_once(self, checkout, installed):
        assert _bootstrap.prepare("docs") == _bootstrap.prepare("docs") == _bootstrap.python_in(checkout / "active")
        assert installed == ["docs"]

    def test_the_tests_need_more_than_the_book(self, installed):
        for extra in ("docs", "test", "docs", "benchmarks", "test"):
            _bootstrap.prepare(extra)
        assert installed == ["docs", "test", "benchmarks"]

    @pytest.mark.parametrize("source", ["pyproject.toml", "docs/constraints.txt"])
    def test_installs_again_when_a_source_changes(self, checkout, installed, source):
        _bootstrap.prepare("docs")
        (checkout / source).write_text("changed", encoding="utf-8")
        _bootstrap.prepare("docs")
        assert installed == ["docs", "docs"]

    def test_installs_again_for_another_python(self, installed, monkeypatch):
        _bootstrap.prepare("docs")
        monkeypatch.setattr(_bootstrap, "version_of", lambda python: "3.12")
        _bootstrap.prepare("docs")
        assert installed == ["docs", "docs"]

    def test_installs_again_in_another_folder(self, checkout, installed, monkeypatch):
        _bootstrap.prepare("docs")
        other = shutil.copytree(checkout, checkout.parent / "other")
        monkeypatch.setattr(_bootstrap, "ROOT", other)
        _bootstrap.prepare("docs")
        assert installed == ["docs", "docs"]

    def test_a_broken_stamp_counts_as_none(self, checkout, installed):
        (checkout / "active" / _bootstrap.STAMP).write_text('{"extra": "do', encoding="utf-8")
        _bootstrap.prepare("docs")
        assert installed == ["docs"]

    def test_on_a_checkout_that_cannot_be_written_to(self, checkout, monkeypatch):
        monkeypatch.setattr(_bootstrap, "ROOT", checkout / "missing")
        with pytest.raises(SystemExit) as error:
            _bootstrap.prepare("docs")
        assert "cannot be written to: copy it to a folder of your own" in sentence(error)


class TestInstall:
    @pytest.fixture
    def install(self, checkout, monkeypatch):
        """Install by a Python script, in place of pip; the stamp that is left."""
        folder = checkout / "active"
        folder.mkdir()

        def run(script):
            monkeypatch.setattr(_bootstrap, "installer", lambda python: [sys.executable, "-c", script])
            _bootstrap.install("docs", folder, "python", {"python": "3.11"})
            return _bootstrap.read_stamp(folder)

        return run

    def test_leaves_a_stamp(self, install):
        assert install("") == {"python": "3.11", "extra": "docs"}

    def test_an_interrupted_one_is_known_by_its_stamp(self, checkout, install):
        install(f"import shutil; shutil.copy('active/{_bootstrap.STAMP}', '.')")
        assert _bootstrap.read_stamp(checkout)["unfinished"]

    def test_is_told_what_to_install(self, checkout, install):
        install("import sys; open('told', 'w').write(' '.join(sys.argv[1:]))")
        assert (checkout / "told").read_text(encoding="utf-8") == "-c docs/constraints.txt -e .[docs]"

    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            ("NewConnectionError('<...>: Failed to establish a new connection')", "There is no network"),
            ("error: client error (Connect)", "There is no network"),
            ("ERROR: Could not install packages: [Errno 13] Permission denied", "deactivate it"),
            ("OSError: [Errno 30] Read-only file system", "deactivate it"),
            ("ERROR: No space left on device", "for the reason above"),
        ],
    )
    def test_failure_is_explained_and_leaves_no_stamp(self, checkout, install, capfd, output, expected):
        with pytest.raises(SystemExit) as error:
            install(f"print({output!r}); raise SystemExit(1)")
        assert expected in sentence(error)
        assert (output in capfd.readouterr().out) == ("above" in expected)
        assert not (checkout / "active" / _bootstrap.STAMP).exists()

    def test_an_environment_that_cannot_be_written_to(self, checkout):
        with pytest.raises(SystemExit) as error:
            _bootstrap.write_stamp(checkout / "missing", {})
        assert "cannot be written to: deactivate it" in sentence(error)


class TestInstaller:
    @pytest.fixture
    def choose(self, monkeypatch):
        """What is chosen when these parts work."""

        def run(*working, uv=None):
            monkeypatch.setattr(_bootstrap, "succeeds", lambda command: command[2] in working)
            monkeypatch.setattr(shutil, "which", lambda name: uv)
            return _bootstrap.installer("python")[:3]

        return run

    def test_order(self, choose):
        assert choose("pip", uv="uv") == ["python", "-m", "pip"]
        assert choose("ensurepip", uv="uv") == ["uv", "pip", "install"]
        assert choose("ensurepip") == ["python", "-m", "pip"]

    def test_nothing_works(self, choose):
        with pytest.raises(SystemExit) as error:
            choose()
        assert "has no pip: put uv on the PATH" in sentence(error)


class TestRun:
    @pytest.mark.parametrize("code", [0, 1, 5])
    def test_passes_on_the_code(self, checkout, code):
        (checkout / "ends.py").write_text(f"import sys; sys.exit({code})", encoding="utf-8")
        assert _bootstrap.run(sys.executable, "ends") == code

    @pytest.mark.skipif(sys.platform == "win32", reason="processes end by signals on POSIX only")
    def test_an_ended_child_is_a_failure(self, checkout):
        (checkout / "ends.py").write_text("import os; os.kill(os.getpid(), 9)", encoding="utf-8")
        assert _bootstrap.run(sys.executable, "ends") == 128 + 9

    def test_the_child_speaks_utf8(self, checkout, capfd, monkeypatch):
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        (checkout / "says.py").write_text("print('\\u2212')", encoding="utf-8")
        assert _bootstrap.run(sys.executable, "says") == 0
        assert capfd.readouterr().out.strip() == "−"


class TestDocs:
    @pytest.fixture
    def book(self, tmp_path, monkeypatch):
        """A small book, built by a stand-in that records the arguments of Sphinx and ends with `book.code`."""

        class Book:
            folder = tmp_path / "docs"
            calls = []
            code = 0

            def run(self, python, *arguments):
                self.calls.append([str(argument) for argument in arguments])
                return self.code

        book = Book()
        for name in ("index", "lookup/index", "lookup/softmax", "lookup/attention", "_data/hidden"):
            path = book.folder / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        html = book.folder / "_build/html"
        html.mkdir(parents=True)
        (html / "searchindex.js").touch()
        for name, value in (("DOCS", book.folder), ("BUILD", html.parent), ("HTML", html)):
            monkeypatch.setattr(docs, name, value)
        monkeypatch.setattr(_bootstrap, "prepare", lambda extra: f"python of {extra}")
        monkeypatch.setattr(_bootstrap, "run", book.run)
        monkeypatch.setattr(_bootstrap, "speak_utf8", lambda: None)
        return book

    def test_everything(self, book, capsys):
        assert docs.main([]) == 0
        assert book.calls[0][:7] == ["sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q"]
        assert book.calls[0][-2:] == [str(docs.DOCS), str(docs.HTML)]
        assert f"Open {docs.HTML / 'index.html'}" in capsys.readouterr().out

    def test_one_page(self, book, capsys):
        assert docs.main(["lookup/softmax"]) == 0
        assert book.calls[0][-1] == str(book.folder / "lookup/softmax.md")
        assert f"Open {docs.HTML / 'lookup/softmax.html'}" in capsys.readouterr().out

    def test_the_first_build_writes_every_page(self, book):
        docs.main(["lookup/softmax", "--clean"])
        assert book.calls[0][-1] == str(docs.HTML)

    def test_clean_forgets_earlier_builds(self, book):
        docs.main(["--clean"])
        assert not docs.BUILD.exists()

    def test_failure(self, book, capsys):
        book.code = 2
        assert docs.main([]) == 2
        assert "failed" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("name", "page"),
        [
            ("lookup/softmax", "lookup/softmax"),
            ("docs/lookup/softmax.md", "lookup/softmax"),
            ("lookup", "lookup/index"),
            ("lookup/", "lookup/index"),
            ("index", "index"),
        ],
    )
    def test_names_of_pages(self, book, name, page):
        assert docs.find_page(name) == book.folder / f"{page}.md"

    def test_unknown_page(self, book):
        with pytest.raises(SystemExit) as error:
            docs.main(["lookup/sotfmax"])
        assert "no page lookup/sotfmax; the nearest are: lookup/softmax" in sentence(error)
        with pytest.raises(SystemExit) as error:
            docs.main(["_data/hidden"])
        assert "hidden," not in sentence(error)

    def test_serve_builds_at_each_change_and_answers_on_loopback(self, book, capsys, monkeypatch):
        (docs.HTML / "index.html").write_text("first", encoding="utf-8")
        waits = iter(range(4))

        def wait(seconds):
            turn = next(waits)
            if turn == 0:
                address = re.search(r"http://127\.0\.0\.1:\d+/index\.html", capsys.readouterr().out).group()
                with urllib.request.urlopen(address) as answer:
                    assert answer.read() == b"first"
                    assert answer.headers["Cache-Control"] == "no-cache"
            elif turn == 2:
                assert len(book.calls) == 1
                (book.folder / "new.md").touch()
            elif turn == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", wait)
        with pytest.raises(KeyboardInterrupt):
            docs.main(["--serve"])
        assert len(book.calls) == 2

    def test_serve_on_a_port_that_is_taken(self, book):
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as error:
            docs.main(["--serve", "--port", str(taken.getsockname()[1])])
        assert "is not free: give another" in sentence(error)


class TestTests:
    def test_passes_arguments_and_code_on(self, monkeypatch):
        calls = []
        monkeypatch.setattr(_bootstrap, "prepare", lambda extra: f"python of {extra}")
        monkeypatch.setattr(_bootstrap, "run", lambda *command: calls.append(command) or 5)
        monkeypatch.setattr(_bootstrap, "speak_utf8", lambda: None)
        assert tests.main(["-k", "softmax", "--record"]) == 5
        assert calls == [("python of test", "pytest", "-k", "softmax", "--record")]
        tests.main([])
        assert calls[1] == ("python of test", "pytest", "-n", "auto", "--dist", "loadfile")

    def test_benchmarks_have_their_own_files_and_one_thread_for_each_product(self, monkeypatch):
        calls = []
        monkeypatch.setattr(_bootstrap, "prepare", lambda extra: f"python of {extra}")
        monkeypatch.setattr(_bootstrap, "run", lambda *command: calls.append(command) or 0)
        monkeypatch.setattr(_bootstrap, "speak_utf8", lambda: None)
        for name in tests.THREADS:
            monkeypatch.setenv(name, "3")
        monkeypatch.delenv(tests.THREADS[0])
        tests.main(["--benchmarks", "-k", "window", "--record"])
        assert calls == [("python of benchmarks", "pytest", *tests.BENCHMARKS, "-k", "window", "--record")]
        assert [tests.os.environ[name] for name in tests.THREADS] == ["1", "3", "3", "3"]
        assert not list((ROOT / "tests/benchmarks").glob("test_*.py"))

    def test_paths_are_those_of_the_folder_where_they_were_typed(self, tmp_path, monkeypatch):
        (tmp_path / "test_a.py").touch()
        monkeypatch.chdir(tmp_path)
        typed = ["-k", "test_a.py", "test_a.py::test_b", "lookup", "-x"]
        assert tests.from_the_top(typed) == ["-k", "test_a.py", str(tmp_path / "test_a.py::test_b"), "lookup", "-x"]


def installed_extra():
    """The largest extra that is installed here."""
    return "benchmarks" if importlib.util.find_spec("pytest_benchmark") else "test"


class TestConstraints:
    lines = (ROOT / "docs/constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines]

    def pinned(self, python):
        """Name to version on Linux, for one Python."""
        environment = {
            "python_version": python.rpartition(".")[0],
            "python_full_version": python,
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_machine": "x86_64",
            "os_name": "posix",
            "platform_system": "Linux",
        }
        chosen = [pin for pin in self.pins if pin.marker is None or pin.marker.evaluate(environment)]
        names = [canonicalize_name(pin.name) for pin in chosen]
        assert len(names) == len(set(names))
        return {name: next(iter(pin.specifier)).version for name, pin in zip(names, chosen, strict=True)}

    def test_names_versions_and_markers_only(self):
        marker = r"[a-z_]+ [<>=!]=? '[\w.*]+'"
        line = re.compile(rf"[a-z0-9-]+==[0-9a-z.]+( ; {marker}( (and|or) {marker})*)?")
        assert [text for text in self.lines if not line.fullmatch(text)] == []

    @pytest.mark.parametrize("python", PYTHONS)
    def test_every_requirement_has_a_pin_it_admits(self, python):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        pinned = self.pinned(python)
        needed = [text for extra in _bootstrap.EXTRAS for text in extras[extra]]
        for requirement in map(Requirement, project["dependencies"] + needed):
            if requirement.name != "softlookup":
                assert pinned[canonicalize_name(requirement.name)] in requirement.specifier

    def test_what_is_needed_indirectly_is_pinned_too(self):
        pinned = self.pinned("{}.{}.{}".format(*sys.version_info[:3]))
        seen, waiting = set(), [Requirement(f"softlookup[{installed_extra()}]")]
        while waiting:
            parent = waiting.pop()
            name = canonicalize_name(parent.name)
            if (name, *parent.extras) in seen:
                continue
            seen.add((name, *parent.extras))
            assert name in pinned or name == "softlookup"
            for text in importlib.metadata.requires(name) or ():
                child = Requirement(text)
                if child.marker is None or any(
                    child.marker.evaluate({"extra": extra}) for extra in {"", *parent.extras}
                ):
                    waiting.append(child)


def test_the_readme_lists_the_families_in_their_order():
    families = json.loads((ROOT / "docs/_data/families.json").read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| \**([a-z]+)\** \| (.*\?) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows == [(family["family"], family["question"]) for family in families]
