"""The built site, served on this machine the way a host serves it, and a browser that reads it.

The tests read `docs/_build/html`, or the folder that the environment variable SOFTLOOKUP_SITE names. They skip, with
the reason, where the site is not built or no browser is installed.
"""

import contextlib
import gzip
import http.server
import importlib.util
import shutil
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from site_pages import SITE, UNBUILT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PACKED = {".html", ".css", ".js", ".json", ".svg", ".txt", ".xml"}
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing():
    """Why no browser can read the site, or None."""
    if UNBUILT:
        return UNBUILT
    if CHROMIUM is None:
        return "no Chromium is installed"
    if not all(map(importlib.util.find_spec, ("playwright", "axe_playwright_python"))):
        return "playwright is not installed: it comes with the extra `browser`"
    return None


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the site, compressed, and its own page for addresses that do not exist."""

    def do_GET(self):
        path = SITE / urlsplit(self.path).path.lstrip("/")
        path = path / "index.html" if path.is_dir() else path
        found = path.is_file()
        path = path if found else SITE / "404.html"
        body = path.read_bytes() if path.is_file() else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", self.guess_type(path))
        if path.suffix in PACKED:
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def address():
    """Where the site is served, on a free port of the loopback interface."""
    if reason := missing():
        pytest.skip(reason)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium without a window."""
    if reason := missing():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield running
        running.close()


@pytest.fixture(scope="session")
def axe():
    """The script of axe-core."""
    if reason := missing():
        pytest.skip(reason)
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def visit(browser):
    """`visit(url, **options)` opens a page in a profile of its own and notes what goes wrong there."""
    with contextlib.ExitStack() as stack:

        def open_page(url, *, before=None, **options):
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
            stack.callback(context.close)
            page = context.new_page()
            page.requested, page.errors, page.failed = [], [], []
            page.on("response", lambda answer: page.failed.append(answer.url) if answer.status >= 400 else None)
            page.on("request", lambda request: page.requested.append(request.url))
            page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: page.errors.append(str(error)))
            if before:
                page.add_init_script(before)
            page.goto(url, wait_until="load")
            return page

        yield open_page
