"""A Hub on the loopback address that gives folders as repositories."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a1" * 20
TOKEN = "hf_demo_token"


class Hub(BaseHTTPRequestHandler):
    """The few routes of the Hub that reading needs: facts of a repository, and its files at a commit. A repository with
    "secret" in its name is gated. `server.models` and `server.datasets` map names to folders, `server.sent` lists the
    files that were given."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        dataset = self.path.startswith(("/datasets/", "/api/datasets/"))
        repositories = self.server.datasets if dataset else self.server.models
        folder = next((f for repo, f in repositories.items() if f"/{repo}" in self.path), None)
        if "secret" in self.path and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}
            return self.answer(403, b"", gate)
        if folder is None:
            return self.answer(401 if "/api/" in self.path else 404, b"", {"X-Error-Code": "RepoNotFound"})
        if self.path.startswith("/api/"):
            return self.answer(200, json.dumps(self.facts(folder)).encode(), {"Content-Type": "application/json"})
        name = self.path.split(f"/resolve/{COMMIT}/")[1]
        content = (folder / name).read_bytes()
        if self.command == "GET":
            self.server.sent.append(name)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})

    def facts(self, folder):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in files]
        if "/tree/" not in self.path:
            return {"id": "x/y", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        return [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": hashlib.sha1(name.encode()).hexdigest()}
            for name, path in zip(names, files, strict=True)
        ]

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def hub(models=None, datasets=None):
    """The running server; `.server_port` is its port."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    httpd.models, httpd.datasets, httpd.sent = models or {}, datasets or {}, []
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield httpd
    finally:
        httpd.shutdown()
        httpd.server_close()
