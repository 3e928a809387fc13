"""The environment in which the book is built and tested: found, made, repaired and filled.

Both commands, ``python docs`` and ``python tests``, start here. Only the standard library is used,
and the file parses on old Pythons, so that they can say what is missing.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"
STAMP = "softlookup-stamp.json"
EXTRAS = ("docs", "test", "benchmarks")  # each holds those before it
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|Temporary failure in name resolution"
    r"|Network is unreachable|dns error|error sending request|client error \(Connect\)"
)

if sys.version_info < (3, 11):
    sys.exit(
        f"Soft Lookup needs Python 3.11 or newer and this is Python {RUNNING}: install a newer one, "
        "then type its name, for example `python3.13 docs` or `python3.13 tests`."
    )


def prepare(extra):
    """The Python of an environment that holds ``softlookup[extra]``, pinned by ``docs/constraints.txt``."""
    require_writable_checkout()
    folder = active_environment() or own_environment()
    python = python_in(folder)
    key = {"python": version_of(python), "folder": str(ROOT), "sources": digest()}
    stamp = read_stamp(folder)
    enough = EXTRAS[EXTRAS.index(extra) :]
    if stamp.get("extra") not in enough or any(stamp.get(name) != key[name] for name in key):
        install(extra, folder, python, key)
    return python


def run(python, *arguments):
    """Run a module of the environment from the top folder and return its exit code."""
    code = subprocess.run([str(python), "-m", *map(str, arguments)], cwd=ROOT, env=child_variables()).returncode
    return code if code >= 0 else 128 - code


def say(text):
    print(text, flush=True)


def speak_utf8():
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")


def child_variables():
    return {**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8", "PIP_USER": "0"}


def require_writable_checkout():
    try:
        tempfile.TemporaryFile(dir=ROOT).close()
    except OSError:
        sys.exit(f"{ROOT} cannot be written to: copy it to a folder of your own and type the same command there.")


def active_environment():
    """The folder of the environment that is active, or None. The base environment of conda does not count."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    folders = [os.environ.get("VIRTUAL_ENV")]
    if os.environ.get("CONDA_DEFAULT_ENV") != "base":
        folders.append(os.environ.get("CONDA_PREFIX"))
    return next((Path(folder) for folder in folders if folder and python_in(Path(folder))), None)


def own_environment():
    """The folder ``.venv`` of this checkout, made again unless this Python made it, here, to the end."""
    folder = ROOT / ".venv"
    stamp = read_stamp(folder)
    python = python_in(folder)
    moved = stamp.get("folder", str(ROOT)) != str(ROOT)
    sound = python and (folder / "pyvenv.cfg").exists() and version_of(python) == RUNNING
    if not sound or moved or stamp.get("unfinished"):
        make(folder)
    return folder


def make(folder):
    if not all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")):
        sys.exit(
            f"This Python cannot make environments: on Debian or Ubuntu type `sudo apt install python{RUNNING}-venv`, "
            "then the same command again."
        )
    say(f"Making an environment with Python {RUNNING} in {folder}")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)]).returncode:
        sys.exit(f"The environment was not made, for the reason above: delete {folder} and type the command again.")


def install(extra, folder, python, key):
    say(f"Installing what the command needs into {folder} (once; a minute or two)")
    start = time.monotonic()
    command = [*installer(python), "-c", "docs/constraints.txt", "-e", f".[{extra}]"]
    write_stamp(folder, {**key, "extra": extra, "unfinished": True})
    result = subprocess.run(
        command, cwd=ROOT, env=child_variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    if result.returncode:
        (folder / STAMP).unlink()
        sys.exit(explain(result.stdout))
    write_stamp(folder, {**key, "extra": extra})
    say(f"Installed in {time.monotonic() - start:.0f} s")


def installer(python):
    """The command that installs into the environment of ``python``: its own pip, or uv, or the pip Python brings."""
    pip = [str(python), "-m", "pip"]
    options = ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
    if succeeds([*pip, "--version"]):
        return [*pip, *options]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python)]
    if succeeds([str(python), "-m", "ensurepip"]):
        return [*pip, *options]
    sys.exit(f"{python} has no pip: put uv on the PATH, or leave this environment, and type the same command again.")


def explain(output):
    """One sentence about a failed installation, after the installer's own words where these are needed."""
    if NO_NETWORK.search(output):
        return "There is no network, and the first run needs one: connect, then type the same command again."
    if "Permission denied" in output or "Read-only file system" in output:
        return "The active environment cannot be written to: deactivate it, then type the same command again."
    say(output)
    return "The installation failed for the reason above: mend it, then type the same command again."


def python_in(folder):
    names = ("Scripts/python.exe", "python.exe") if os.name == "nt" else ("bin/python",)
    return next((folder / name for name in names if (folder / name).exists()), None)


def version_of(python):
    """Version of an interpreter as "3.11", or None if it does not start."""
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def succeeds(command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def digest():
    """A short name for what the environment is made from."""
    sources = [ROOT / "pyproject.toml", ROOT / "docs" / "constraints.txt"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def read_stamp(folder):
    try:
        return json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write_stamp(folder, stamp):
    try:
        (folder / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
    except OSError:
        sys.exit(f"{folder} cannot be written to: deactivate it, then type the same command again.")
