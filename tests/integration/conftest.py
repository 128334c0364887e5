"""Servers of the integration tests, all on the loopback address."""

import secrets
import shutil
import tempfile
from pathlib import Path

import docker_engine
import pytest
import slurm_cluster

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "canary-key-id",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
    "AWS_REGION": "us-east-1",
}


def pytest_collection_modifyitems(items):
    """Begin with the file that takes longest: a worker that had it last would be waited for."""
    items.sort(key=lambda item: item.path.name != "test_distribution.py")


@pytest.fixture(scope="session")
def s3_endpoint():
    """The address of an S3 server that lasts as long as the tests."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint, monkeypatch, tmp_path):
    """The s3:// name of a fresh bucket.
    This process and its children reach it; the cache is below tmp_path."""
    for name, value in (
        CREDENTIALS | {"AWS_ENDPOINT_URL": s3_endpoint, "COSMOS_CACHE": str(tmp_path / "cache")}
    ).items():
        monkeypatch.setenv(name, value)
    from cosmos_reason.remote import s3

    name = f"bucket-{secrets.token_hex(4)}"
    s3.client().create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture(scope="session")
def docker_engine_of_the_session():
    if why := docker_engine.missing():
        pytest.skip(f"no Docker engine can be started: {why}")
    root = Path(
        tempfile.mkdtemp(prefix="docker-", dir="/tmp")
    )  # a socket's path is at most 107 characters long
    engine = docker_engine.Engine(root)
    try:
        engine.start()
        engine.load_image()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def dockerd(docker_engine_of_the_session, monkeypatch):
    """A real Docker engine on a private socket, for the whole session: DOCKER_HOST points this
    process and its children to it. Gives the engine: `.host`, `.docker(*words)` ->
    CompletedProcess, `.inspect(name)` -> dict.

    Its one image, `docker_engine.IMAGE`, has this machine's /usr, and the tests'
    Python with its packages as `python3`. There is no bridge: containers need
    `--network host` (or none). There are no GPUs.
    """
    monkeypatch.setenv("DOCKER_HOST", docker_engine_of_the_session.host)
    return docker_engine_of_the_session


@pytest.fixture
def free_port():
    """A TCP port of the loopback address that nobody has, and that the kernel gives to nobody."""
    return slurm_cluster.free_ports(1)[0]


@pytest.fixture(scope="session")
def slurm_cluster_of_the_session():
    yield from running_cluster(accounts=False)


def running_cluster(accounts):
    if why := slurm_cluster.missing(accounts):
        pytest.skip(f"no SLURM cluster can be started: {why}")
    root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = slurm_cluster.Cluster(root, accounts)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def accounting_cluster():
    """A real cluster of its own that keeps accounts; its nodes may be taken down."""
    yield from running_cluster(accounts=True)


@pytest.fixture
def slurm(slurm_cluster_of_the_session, monkeypatch):
    """A real cluster of two nodes with two GPUs each (as far as SLURM knows): partition `gpu`
    (default, 60 minutes) and `closed` (down, 10 minutes). SLURM_CONF points this process and its
    children to it. Gives the cluster: `.conf`, `.call(*words)` -> CompletedProcess."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster_of_the_session.conf))
    return slurm_cluster_of_the_session
