"""Shared by the tests of the preflight: a Hub on the loopback address, and commands in front of all others."""

import http.server
import json
import os
import threading

import pytest

ROLES = {"reader": "read", "writer": "write", "stranger": "read", "fine": "fineGrained", "fine-writer": "fineGrained"}


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers like the Hub. nvidia/open is open, nvidia/gated wants an account that accepted, the rest is not there."""

    def do_GET(self):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in ROLES:
            return self.answer(401, message="Invalid credentials in Authorization header")
        if self.path == "/api/whoami-v2":
            scoped = [{"entity": {"type": "user", "name": "bob"}, "permissions": ["repo.content.read"]}]
            if token == "fine-writer":
                scoped[0]["permissions"].append("repo.write")
            access = {"role": ROLES.get(token), "fineGrained": {"scoped": scoped}}
            return self.answer(200 if token else 401, {"name": "bob", "auth": {"accessToken": access}})
        repo = "/".join(self.path.removeprefix("/api/models").split("/")[1:3])
        if repo == "nvidia/open":
            return self.answer(307)
        if repo == "nvidia/gated":
            status = 200 if token in ("reader", "writer") else 403 if token else 401
            return self.answer(status, code="GatedRepo" if status > 200 else "")
        if repo == "nvidia/busy":
            return self.answer(429)
        return self.answer(404 if token else 401, code="RepoNotFound")

    do_HEAD = do_GET

    def answer(self, status, body=None, code="", message=""):
        text = json.dumps(body or {}).encode()
        self.send_response(status)
        headers = {"Location": "http://127.0.0.2:9/leaks-the-token"} if status == 307 else {}
        headers |= {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": "c" * 40, "ETag": '"e"'}
        for name, value in (headers | {"Content-Length": str(len(text))}).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hub():
    """The address of a Hub; HF_ENDPOINT points a process to it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A function that puts a command in front of all others; it prints `out`, runs `script`, ends with `code`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "unix:///x")

    def add(name, out="", code=0, script=""):
        (folder / f"{name}.out").write_text(out)
        (folder / name).write_text(
            f'#!/bin/sh\necho "$0 $*" >> {folder}/calls\n{script}\ncat {folder}/{name}.out\nexit {code}\n'
        )
        (folder / name).chmod(0o755)
        return folder

    return add
