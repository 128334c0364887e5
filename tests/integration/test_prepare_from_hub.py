"""The conversion from a Hub: what it asks for, what it says when it is refused, and reuse without the cache."""

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from omni_layouts import as_export
from support import run_script

from cosmos_reason import conversion, omni
from cosmos_reason.demo import tiny_omni

pytestmark = pytest.mark.integration

COMMIT = "a1" * 20
SCRIPT = "prepare_cosmos3_vlm_checkpoint.py"


class Hub(BaseHTTPRequestHandler):
    """The few routes of the Hub that a snapshot needs: model facts, and files at a commit."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        folder = next((f for repo, f in self.server.models.items() if f"/{repo}" in self.path), None)
        if "secret" in self.path and self.headers.get("Authorization") != "Bearer hf_demo_token":
            gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}
            return self.answer(403, b"", gate)
        if folder is None:
            return self.answer(401 if "/api/" in self.path else 404, b"", {"X-Error-Code": "RepoNotFound"})
        if "/api/models/" in self.path:
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            tree = [{"type": "file", "path": f.relative_to(folder).as_posix(), "size": f.stat().st_size} for f in files]
            for entry in tree:
                entry["oid"] = hashlib.sha1(entry["path"].encode()).hexdigest()
            facts = tree if "/tree/" in self.path else {"id": "x/y", "sha": COMMIT}
            return self.answer(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})
        name = self.path.split(f"/resolve/{COMMIT}/")[1]
        content = (folder / name).read_bytes()
        if self.command == "GET":
            self.server.sent.append(name)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("hub")
    tiny_omni.build(base / "nano", seed=1, text="left right yes no")
    (base / "nano" / "vae").mkdir()
    (base / "nano" / "vae" / "weights.bin").write_bytes(b"large and not needed")
    donor = omni.open_source(base / "nano")
    conversion.convert(donor, base / "qwen", 300_000, force=False, jobs=1)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    httpd.models = {"nvidia/Cosmos3-Nano": base / "nano", "lab/secret-nano": base / "nano", "Qwen/donor": base / "qwen"}
    httpd.sent = []
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()


@pytest.fixture
def convert(server, tmp_path):
    def run(name, *flags, endpoint=f"http://127.0.0.1:{server.server_port}"):
        server.sent.clear()
        env = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "", "HF_HUB_DISABLE_XET": "1"}
        flags = ("--checkpoint-path", name, "--output-path", tmp_path / "out", "--json", *flags)
        done = run_script(SCRIPT, *flags, env=env)
        return done, json.loads(done.stdout)

    return run


def test_takes_what_it_needs_and_is_reused_without_the_cache(convert, server, tmp_path):
    done, said = convert("hf_model://nvidia/Cosmos3-Nano", "--cache-dir", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert said["result"]["status"] == "converted" and said["result"]["source"]["commit"] == COMMIT
    assert "vision_encoder/model.safetensors" in server.sent and not [n for n in server.sent if n.startswith("vae/")]
    shutil.rmtree(tmp_path / "cache")
    done, said = convert("Cosmos3-Nano", "--cache-dir", tmp_path / "cache")
    assert said["result"]["status"] == "skipped_existing" and server.sent == []
    done, said = convert("nvidia/Cosmos3-Nano", endpoint="http://127.0.0.1:9")
    assert done.returncode == 0 and [finding["id"] for finding in said["findings"]] == ["CKPT-COMMIT-UNCHECKED"]


def test_a_gated_model_needs_the_token_and_never_shows_it(convert, tmp_path):
    done, said = convert("lab/secret-nano")
    assert done.returncode == 3 and said["findings"][0]["id"] == "HUB-GATED"
    (tmp_path / "secrets.env").write_text("# mine\nOTHER=1\nexport HF_TOKEN='hf_demo_token'\n")
    done, said = convert("lab/secret-nano", "--secrets-env", tmp_path / "secrets.env")
    assert done.returncode == 0 and said["result"]["status"] == "converted"
    assert "hf_demo_token" not in done.stdout + done.stderr
    for path in (tmp_path / "out").iterdir():
        assert b"hf_demo_token" not in path.read_bytes()


def test_an_unknown_model_and_no_network(convert, tmp_path):
    done, said = convert("nobody/nothing")
    assert (done.returncode, said["findings"][0]["id"]) == (3, "HUB-NOT-FOUND")
    done, said = convert("nvidia/Cosmos3-Nano", endpoint="http://127.0.0.1:9")
    assert (done.returncode, said["findings"][0]["id"]) == (3, "HUB-UNREACHABLE")
    assert not (tmp_path / "out").exists()


def test_a_hub_donor_gives_its_small_files_and_only_the_vision_shards(convert, server, tmp_path):
    export = as_export(server.models["nvidia/Cosmos3-Nano"], tmp_path / "export", bare=True)
    done, said = convert(str(export), "--donor", "Qwen/donor")
    assert done.returncode == 0, done.stdout
    assert said["result"]["donor"]["commit"] == COMMIT and "vision tower" in said["result"]["donor"]["supplied"]
    shards = {name for name in server.sent if name.endswith(".safetensors")}
    index = json.loads((server.models["Qwen/donor"] / "model.safetensors.index.json").read_text())["weight_map"]
    assert shards == {file for name, file in index.items() if "visual" in name} < set(index.values())
