"""Build the book: ``python docs``, one page of it, or again at each change (``--serve``)."""

import argparse
import difflib
import http.server
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

import _bootstrap

DOCS = Path(__file__).resolve().parent
BUILD = DOCS / "_build"
HTML = BUILD / "html"


def main(arguments=None):
    options = parser().parse_args(arguments)
    _bootstrap.speak_utf8()
    pages = [find_page(name) for name in options.pages]
    python = _bootstrap.prepare("docs")
    if options.clean and BUILD.exists():
        shutil.rmtree(BUILD)
    if options.serve:
        return serve(python, pages, options.port)
    return build(python, pages)


def parser():
    described = argparse.ArgumentParser(prog="python docs", description="Build the book and check every number in it.")
    described.add_argument("pages", nargs="*", metavar="page", help="only this page, for example lookup/softmax")
    described.add_argument("--serve", action="store_true", help="show the book on this machine, build at each change")
    described.add_argument("--port", type=int, default=0, help="port for --serve (any free one if not given)")
    described.add_argument("--clean", action="store_true", help="forget earlier builds first")
    return described


def find_page(name):
    """The source of a page: ``lookup/softmax``, with or without ``docs/`` and ``.md``, or ``lookup`` for its index."""
    plain = Path(name).as_posix().strip("/")
    plain = plain.removeprefix("docs/").removesuffix(".md")
    names = page_names()
    for candidate in (plain, f"{plain}/index"):
        if candidate in names:
            return DOCS / f"{candidate}.md"
    near = difflib.get_close_matches(plain, names, cutoff=0.5) or names
    sys.exit(f"There is no page {name}; the nearest are: {', '.join(near)}.")


def page_names():
    sources = (path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
    return sorted(path.with_suffix("").as_posix() for path in sources if not path.parts[0].startswith("_"))


def build(python, pages):
    """Build the pages given with warnings as errors; say what to open and how long it took.

    No pages means all of them. The first build writes them all as well, since the search index comes from it.
    """
    start = time.monotonic()
    strict = ["-W", "--keep-going", "-n", "-q", "-D", "book_progress=1"]
    wanted = pages if (HTML / "searchindex.js").exists() else []
    code = _bootstrap.run(python, "sphinx", "-b", "html", *strict, "-d", BUILD / "doctrees", DOCS, HTML, *wanted)
    seconds = f"{time.monotonic() - start:.1f} s"
    if code:
        _bootstrap.say(f"The build failed after {seconds}; the lines above say where.")
    else:
        _bootstrap.say(f"Built in {seconds}. Open {HTML / address(pages)}")
    return code


def address(pages):
    """Where the first of the pages is, below the folder of the built book."""
    return (pages[0].relative_to(DOCS).with_suffix(".html") if pages else Path("index.html")).as_posix()


def serve(python, pages, port):
    """Serve the book on the loopback address and build it, each time in a new process, when a source changes."""
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(HTML)))
    except OSError:
        sys.exit(f"Port {port} is not free: give another, or leave --port out.")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    built = None
    try:
        while True:
            seen = snapshot()
            if seen != built:
                build(python, pages)
                _bootstrap.say(f"See http://127.0.0.1:{server.server_port}/{address(pages)} (Ctrl+C ends)")
                built = seen
            time.sleep(0.5)
    finally:
        server.shutdown()
        server.server_close()


def snapshot():
    """When each source was changed last."""
    folders = [DOCS, DOCS.parent / "src"]
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in paths if not {"_build", "__pycache__"} & set(path.parts)}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the book, never from a cache, without a log."""

    def end_headers(self):
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
