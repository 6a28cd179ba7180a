"""The documentation as a site: built without a network, referring to no other host, searched in two languages."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src",
          "object": "data"}
"""What a browser fetches by itself; an <a> is followed by people."""
DORMANT = {"unpkg.com": ('class="mermaid"', "a diagram would load its library"),
           "api.github.com": ("data-md-component=source", "a repository's stars would be asked for")}
"""Hosts that the theme's script names, and the mark in a page without which it never asks them."""


class Loads(HTMLParser):
    """What a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name == LOADED.get(tag) and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; any look at the network fails."""
    folder = tmp_path_factory.mktemp("site")
    closed = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
                          cwd=ROOT, env={**os.environ, **closed, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # without --quiet, under which nothing is strict
    return folder


def test_every_page_of_docs_is_built(site):
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    missing = [str(p) for p in pages if not (site / (p.parent if p.name == "index" else p) / "index.html").is_file()]
    assert missing == []
    for name in ("changelog", "contributing", "security"):
        assert (site / name / "index.html").is_file()


def test_nothing_is_loaded_from_another_host(site):
    pages = {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    assert len(pages) > 40
    loaded = {(str(p.relative_to(site)), url) for p, text in pages.items() for url in Loads(text).found}
    assert {(page, url) for page, url in loaded if re.match(r"(\w+:)?//", url)} == set()
    for sheet in site.rglob("*.css"):
        found = re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)|@import", sheet.read_text(encoding="utf-8"))
        assert found == [], sheet.name
    scripts = "".join(p.read_text(encoding="utf-8") for p in (site / "assets").rglob("bundle*.js"))
    named = set(re.findall(r"https?://([\w.-]+\.\w+)/", scripts))
    assert named - {"clipboardjs.com", "www.w3.org"} <= set(DORMANT), "beside a comment and the name of a namespace"
    for mark, why in DORMANT.values():
        assert not [p for p, text in pages.items() if mark in text], why


def test_both_languages_are_in_the_search_index(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert index["config"]["lang"] == ["en", "zh"]
    words = {word for entry in index["docs"] for word in re.split(index["config"]["separator"], entry["text"])}
    assert {"reward", "checkpoint", "训练", "奖励"} <= words
    assert "训练" not in re.split(r"[\s，。、]+", (ROOT / "docs" / "zh" / "index.md").read_text(encoding="utf-8")), \
        "words are told apart by segmentation, not by blanks"


@pytest.mark.full
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize(("query", "page"), [("micro_tokens", "spec/"), ("奖励函数", "zh/")])
def test_the_search_finds_in_a_browser_without_another_host(site, tmp_path, query, page):
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        """Also a page that shows what the search of the first page finds, and is loaded once that is there."""

        def do_GET(self):
            if self.path == "/frame":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(FRAME.replace("QUERY", query).encode())
            elif self.path == "/wait":
                time.sleep(10)
                self.send_error(404)
            else:
                super().do_GET()

        def log_request(self, code="-", size="-"):
            asked.append(f"{getattr(code, 'value', code)} {self.path}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom",
             "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
             f"http://127.0.0.1:{server.server_address[1]}/frame"],
            capture_output=True, text=True, timeout=120, check=True)
        server.shutdown()
    links = re.findall(r'<a href="([^"]*)" class="md-search-result__link"', done.stdout)
    assert any(page in link for link in links), links
    assert [line for line in asked if not line.startswith(("200", "304", "404 /wait"))] == []


FRAME = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<div id="found"></div><iframe src="/?q=QUERY"></iframe><img src="/wait"><script>
setInterval(() => { found.innerHTML = document.querySelector("iframe").contentDocument.querySelector(
  ".md-search-result__list").innerHTML }, 200)</script>"""
